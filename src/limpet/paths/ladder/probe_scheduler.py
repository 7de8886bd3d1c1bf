"""Whom to probe next, within a budget for all peers together. Pure, time passed in."""

from __future__ import annotations

import math

from limpet.base.rate_limit import DueQueue

UNANSWERED = 0.25
"""Share of a probe's cost that one costs to a peer that does not answer: a signature of four."""
RATE_PER_S = 150.0
"""Vital probes; each costs both ends two signatures and two checks of one, 0.5 ms."""
BURST = 50.0
OTHER_PER_S = 50.0
"""Others, while nothing vital waits."""
OTHER_BURST = 25.0
OTHER_BESIDE_PER_S = 15.0
"""Others, however much is vital."""
_UNSTRETCHED = 100
"""Peers that the budget suffices for, as often as the ladder wants."""

_ACTIVE, _VITAL, _OTHER = 0, 1, 2


class ProbeScheduler:
    """Vital probes come first, of peers with traffic before all others, then those that are due
    longest; none is forgotten for ever.
    """

    def __init__(self) -> None:
        self._queues: tuple[DueQueue[str], ...] = (DueQueue(), DueQueue(), DueQueue())
        # Until when the budget is spent, as if each probe took its share of the time.
        self._spent_s = -math.inf
        self._other_spent_s = -math.inf

    def put(self, uid: str, *, vital_s: float, other_s: float, active: bool = False) -> None:
        """When the peer's probes are due, instead of what was said before; infinity: never.

        `active`: it has traffic.
        """
        due = (vital_s, math.inf, other_s) if active else (math.inf, vital_s, other_s)
        for queue, due_s in zip(self._queues, due, strict=True):
            queue.put(uid, due_s)

    def drop(self, uid: str) -> None:
        for queue in self._queues:
            queue.drop(uid)

    def take(self, now_s: float) -> tuple[str, bool] | None:
        """A peer whose probes are due, and whether they are vital; None: nobody's, or no budget.

        The peer has to be put again.
        """
        for which, queue in enumerate(self._queues):
            if self._free_s(which) <= now_s and (uid := queue.take(now_s)) is not None:
                return uid, which != _OTHER
        return None

    def spend(self, count: float, now_s: float, *, vital: bool) -> None:
        """So many probes were sent; parts of them as they cost less."""
        if vital:
            self._spent_s = max(self._spent_s, now_s - BURST / RATE_PER_S) + count / RATE_PER_S
            return
        waiting = min(self._queues[_ACTIVE].first_s, self._queues[_VITAL].first_s) <= now_s
        rate_per_s = OTHER_BESIDE_PER_S if waiting else OTHER_PER_S
        since_s = max(self._other_spent_s, now_s - OTHER_BURST / OTHER_PER_S)
        self._other_spent_s = since_s + count / rate_per_s

    def next_s(self, now_s: float) -> float:
        """When `take` has somebody; infinity: when somebody was put."""
        return min(
            max(queue.first_s, self._free_s(which)) for which, queue in enumerate(self._queues)
        )

    def _free_s(self, which: int) -> float:
        """When there is budget."""
        return self._other_spent_s if which == _OTHER else self._spent_s


def stretch_for(peers: int, luck: float) -> float:
    """Factor on the ladders' pauses when so many peers are asked.

    `luck`: from 0 to 1, so that not all nodes ask at the same time.
    """
    return max(1.0, peers / _UNSTRETCHED) * (0.9 + 0.2 * luck)
