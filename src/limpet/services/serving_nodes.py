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
        """Number of Services by the node's name; of no name that none has: whoever writes slices
        says any names, one after the other."""
        self._names: tuple[str, ...] | None = ()
        """As they were asked for; None: they may be others."""

    def __len__(self) -> int:
        """Number of names that are held."""
        return len(self._count)

    def note(self, name: ServiceName, nodes: set[str]) -> None:
        """Notes the nodes that serve this Service; none: it is gone, or nobody does."""
        before = set(self._of.pop(name, ()))
        if nodes:
            self._of[name] = tuple(nodes)
        if before == nodes:
            return
        self._names = None
        for each in before - nodes:
            self._count[each] -= 1
            if not self._count[each]:
                del self._count[each]
        for each in nodes - before:
            self._count[each] += 1

    @property
    def names(self) -> tuple[str, ...]:
        """Names of nodes, those of the most Services first."""
        if self._names is None:
            self._names = tuple(name for name, _ in self._count.most_common() if name)
        return self._names
