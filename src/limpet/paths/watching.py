"""Peers that are asked every second whether they are there. Pure, time passed in."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from itertools import islice

from limpet.base.bounds.administrators import LOOKED_AT

MOST_SERVING = 32
"""Nodes with endpoints that are watched, at half a millisecond of a processor each second for each
of them, here and there; of further ones the ladder finds out as of any peer."""
MOST_IN_DOUBT, DOUBT_S = 64, 3.0
"""Instead, so long after some peer did not answer: those that fall silent at once are often many,
as with the uplink of their site. More at once would keep the most important ones waiting."""
MOST_LOOKED_AT = LOOKED_AT.most
"""Peers that are watched for people who look; at half a millisecond of a processor for each probe
that is three hundredths of one; probe and answer of a peer are some 400 bytes a second."""
LONGEST_LOOK_S = 60.0
"""Whoever looks for longer says so again."""


class Onlookers:
    """Leases of whoever looks at this node's pairs just now: they end by themselves."""

    def __init__(self) -> None:
        self._all_until_s = -math.inf
        self._until_s: dict[str, float] = {}
        """Lease ends of peers that are looked at by themselves; who was named last stands last."""

    def look(self, uids: Iterable[str], until_s: float) -> None:
        """Somebody looks at all pairs until then, and at those with these peers before others."""
        self._all_until_s = max(self._all_until_s, until_s)
        for uid in list(uids)[:MOST_LOOKED_AT]:
            self._until_s[uid] = max(self._until_s.pop(uid, -math.inf), until_s)
        while len(self._until_s) > MOST_LOOKED_AT:
            del self._until_s[next(iter(self._until_s))]

    def ends_s(self, now_s: float) -> float:
        """When the next lease ends; infinity: nobody looks."""
        self._until_s = {uid: end_s for uid, end_s in self._until_s.items() if end_s > now_s}
        ends = [*self._until_s.values(), self._all_until_s]
        return min((end_s for end_s in ends if end_s > now_s), default=math.inf)

    def looked_at(self, peers: Collection[str], now_s: float) -> set[str]:
        """At most `MOST_LOOKED_AT` of these peers: those that are looked at by themselves, then
        always the same ones. Those with traffic of pods are asked as often anyway."""
        named = {uid for uid, end_s in self._until_s.items() if end_s > now_s and uid in peers}
        if now_s >= self._all_until_s:
            return named
        others = sorted(uid for uid in peers if uid not in named)
        return named | set(others[: MOST_LOOKED_AT - len(named)])


def serving(
    names: Iterable[str],
    uids: Iterable[tuple[str, str]],
    silent: Collection[str],
    before: Collection[str],
    *,
    in_doubt: bool = False,
) -> set[str]:
    """Uids of the nodes that serve, `names` with the most important first, and of those `before`.

    `uids`: of each node its name and uid. `silent`: who does not answer takes nobody else's place.
    `before`: watched nodes that fell silent since: they are watched until they answer. `in_doubt`:
    some peer did not answer just now.
    """
    by_name = dict(uids)
    most = MOST_IN_DOUBT if in_doubt else MOST_SERVING
    wanted = [uid for name in names if (uid := by_name.get(name)) is not None]
    answering = islice((uid for uid in wanted if uid not in silent), most)
    doubtful = islice((uid for uid in wanted if uid in silent), most)
    there = set(by_name.values()) if before else set()
    return {*answering, *doubtful, *there.intersection(before)}
