"""Addresses of this node that are endpoints of Services. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from limpet.services.catalog import Catalog
from limpet.services.values import ServiceName


class OwnEndpoints:
    """Kept up by changed Services: what one costs is what that one has."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._node = ""
        self._found: dict[ServiceName, tuple[str, ...]] = {}
        self._count: Counter[str] = Counter()

    def of(self, node: str) -> Iterable[str]:
        """Addresses of endpoints on the node of that name, which may be another than before."""
        if node != self._node:
            self._node = node
            self._found.clear()
            self._count.clear()
            self.changed({each.service_key for each in self._catalog.all_slices()})
        return self._count.keys()

    def changed(self, names: Iterable[ServiceName]) -> None:
        """These Services, or their endpoints, are others than before."""
        for name in names if self._node else ():
            found = tuple(
                endpoint.address
                for piece in self._catalog.slices(*name)
                for endpoint in piece.endpoints
                if piece.version and endpoint.node == self._node
            )
            before = self._found.pop(name, ())
            if found:
                self._found[name] = found
            if found != before:
                self._count.update(found)
                self._count.subtract(before)
                for each in before:
                    if not self._count[each]:
                        del self._count[each]
