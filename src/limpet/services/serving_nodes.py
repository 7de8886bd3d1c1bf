"""The nodes whose endpoints are in rotation here. Pure."""

from __future__ import annotations

from collections import Counter

from limpet.services.values import ServiceName


class ServingNodes:
    """Kept up Service by Service."""

    def __init__(self) -> None:
        self._of: dict[ServiceName, tuple[str, ...]] = {}
        """Names of nodes by Service; as sets, those of 10,000 Services would take 10 MB."""
        self._count: Counter[str] = Counter()
        """Number of Services by the node's name."""

    def note(self, name: ServiceName, nodes: set[str]) -> None:
        """Notes the nodes that serve this Service; none: it is gone, or nobody does."""
        before = set(self._of.pop(name, ()))
        if nodes:
            self._of[name] = tuple(nodes)
        for each in before - nodes:
            self._count[each] -= 1
        for each in nodes - before:
            self._count[each] += 1

    @property
    def names(self) -> tuple[str, ...]:
        """Names of nodes, those of the most Services first."""
        return tuple(name for name, count in self._count.most_common() if count > 0 and name)
