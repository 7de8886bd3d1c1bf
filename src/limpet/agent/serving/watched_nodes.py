"""The nodes with endpoints that new connections may go to: they are asked often whether they are
there."""

from __future__ import annotations

from limpet.cluster.membership import Membership
from limpet.paths.prober import Prober

_MOST_WATCHED = 32
"""Nodes that are asked every second, at two milliseconds of a processor for all of them; of further
ones the ladder finds out as of any peer."""


class WatchedNodes:
    """Those that fell silent while they were watched are watched on, until they answer."""

    def __init__(self, membership: Membership, probing: Prober) -> None:
        self._membership = membership
        self._probing = probing
        self._serving: tuple[str, ...] = ()
        self._watched: frozenset[str] = frozenset()

    def put(self, names: tuple[str, ...]) -> None:
        """These nodes serve, the most important first."""
        self._serving = names
        self.look()

    def look(self) -> None:
        """Nodes, or who of them answers, are others than before."""
        wanted = set(self._serving[:_MOST_WATCHED])
        nodes = self._membership.snapshot.nodes
        watched = {
            uid
            for uid, entry in nodes.items()
            if entry.grant.name in wanted and uid != self._membership.uid
        }
        watched |= self._watched & self._probing.reach.silent & nodes.keys()
        if watched != self._watched:
            self._watched = frozenset(watched)
            self._probing.set_watched(self._watched)
