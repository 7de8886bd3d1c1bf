"""What this node tells its controller of its ways to others. For one event loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

from limpet.base.rate_limit import TokenBucket
from limpet.paths.report import NodeReport, PairReport, PathReport, difference, more_than_figures

LOOK_EVERY_S = 60.0
"""How often figures are looked at, such as round trips: of these nobody is told."""
ALIVE_EVERY_S = 120.0
"""A report without news says that the node is there."""
AT_ONCE, PER_S = 4, 0.4
"""Reports at once and for long, however ways flap: fewer than the controller takes of one node
(`base.bounds.members`), and of a thousand such nodes as many as it reads in a sixth of a second
each second."""
_BETWEEN_S = 0.5
"""At least between two looks: what changes together is told together."""
_SOME_TIME_S = 5.0
"""Until a look at what is hardly ever another."""
_RESTS, _REST_MOST_S = 50.0, 3.0
"""As many times as long as a look has taken no other one follows, up to that."""

Look = Callable[[Mapping[str, PairReport]], tuple[NodeReport, dict[str, PairReport]]]


class PathReports:
    """Makes reports of what is looked at: whole at first, then by difference."""

    def __init__(self, look: Look) -> None:
        """`look`: what there is to tell now, given the pairs that were told last."""
        self._look = look
        self._sequence = 0
        self._base: int | None = None
        self._told: dict[str, PairReport] = {}
        self._told_node: NodeReport | None = None
        self._sent: tuple[PathReport, dict[str, PairReport]] | None = None
        self._due_s = -math.inf
        self._looked_s = self._told_s = -math.inf
        self._took_s = 0.0
        self._rate = TokenBucket(PER_S, AT_ONCE)

    def begin(self) -> None:
        """The controller may know nothing of this node."""
        self._base, self._told, self._told_node = None, {}, None
        self.changed()

    def changed(self, *, soon: bool = True) -> None:
        """A way to a peer is another, or a peer is silent, or there again.

        Not `soon`: whatever came of documents alone is told within seconds, all of it at once.
        """
        due_s = -math.inf if soon else time.monotonic() + _SOME_TIME_S
        self._due_s = min(self._due_s, due_s)

    @property
    def due_s(self) -> float:
        """When to ask for a report, on the monotonic clock."""
        return min(self._due_s, self._looked_s + LOOK_EVERY_S)

    def report(self) -> PathReport | None:
        """None: there is nothing to tell, or figures alone, which wait for the next look at them: a
        peer that is about to be lost is in doubt first, and that may not hold up the news."""
        now_s = time.monotonic()
        if now_s < self.due_s:
            return None
        are_figures_due = now_s >= self._looked_s + LOOK_EVERY_S
        self._due_s = math.inf
        began_s = time.thread_time()
        node, pairs = self._look(self._told)
        self._took_s = time.thread_time() - began_s
        changed, gone = difference(self._told, pairs)
        before = self._told_node
        is_pressing = before is None or more_than_figures(self._told, pairs, before, node)
        if not is_pressing and not are_figures_due:
            return None
        self._looked_s = now_s
        if not (is_pressing or changed or node != before) and now_s < self._told_s + ALIVE_EVERY_S:
            return None
        self._rate.take(now_s)
        self._sequence += 1
        report = PathReport(self._sequence, node, self._base, changed, gone)
        self._sent = (report, pairs)
        return report

    def pause_s(self) -> float:
        """How long to ask for no further report now."""
        rest_s = min(self._took_s * _RESTS, _REST_MOST_S)
        return max(_BETWEEN_S, rest_s, self._rate.wait_s(time.monotonic()))

    def acknowledged(self) -> None:
        """The controller has what `report` made last."""
        if self._sent is not None:
            report, self._told = self._sent
            self._base, self._told_node = report.sequence, report.node
            self._told_s, self._sent = time.monotonic(), None
