"""The peers that are asked every second whether they are there: nodes that new connections may go
to, and those that somebody looks at."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable

from limpet.base.errors import LimpetError
from limpet.base.timer import Timer
from limpet.cluster.membership import Membership, News
from limpet.paths.prober import Prober
from limpet.paths.watching import DOUBT_S, LONGEST_LOOK_S, Onlookers, serving


class WatchedPeers:
    """Runs on the event loop's thread."""

    def __init__(self, membership: Membership, probing: Prober) -> None:
        self._membership = membership
        self._probing = probing
        self._names: tuple[str, ...] = ()
        self._serving: frozenset[str] = frozenset()
        self._onlookers = Onlookers()
        self._watched: frozenset[str] = frozenset()
        self._alarm = Timer("watching", self.look)

    def serve(self, names: tuple[str, ...]) -> None:
        """These nodes serve, the most important first."""
        self._names = names
        self.look()

    def watch(self, uids: Iterable[str], for_s: float) -> tuple[int, int]:
        """Somebody looks at this node's pairs for so long, at those with these peers before all.

        How many peers are watched, and how many are asked at all. Raises: LimpetError.
        """
        if not 0 < for_s <= LONGEST_LOOK_S:
            raise LimpetError(
                f"watch: for {for_s:g} s (more than 0, at most {LONGEST_LOOK_S:g}; whoever looks "
                "for longer says so again)"
            )
        self._onlookers.look(uids, time.monotonic() + for_s)
        self.look()
        return len(self._watched), len(self._probed())

    def hear(self, _news: News) -> None:
        self.look()

    def look(self) -> None:
        """Nodes, who of them answers, or who looks, are others than before."""
        now_s = time.monotonic()
        ends_s = self._onlookers.ends_s(now_s)
        looked_at: set[str] = set()
        if ends_s < math.inf:
            looked_at = self._onlookers.looked_at(self._probed(), now_s)
        doubt_ends_s = self._probing.reach.doubted_s + DOUBT_S
        in_doubt = now_s < doubt_ends_s
        self._alarm.set(min(ends_s, doubt_ends_s) if in_doubt else ends_s)
        self._serving = frozenset(self._serving_now(in_doubt=in_doubt))
        watched = self._serving | looked_at
        if watched != self._watched:
            self._watched = watched
            self._probing.set_watched(watched)

    def stop(self) -> None:
        self._alarm.stop()

    def _probed(self) -> set[str]:
        nodes = self._membership.snapshot.nodes
        return {uid for uid in nodes if self._probing.ladder(uid) is not None}

    def _serving_now(self, *, in_doubt: bool) -> set[str]:
        silent = self._probing.reach.silent
        before = self._serving & silent
        if not self._names and not before:
            return set()
        own = self._membership.uid
        nodes = self._membership.snapshot.nodes.items()
        # A removed node keeps its name, which the machine in its place has too.
        uids = (
            (entry.grant.name, uid)
            for uid, entry in nodes
            if uid != own and not entry.grant.tombstone
        )
        return serving(self._names, uids, silent, before, in_doubt=in_doubt)
