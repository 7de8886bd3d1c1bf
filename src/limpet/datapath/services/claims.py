"""The Service that has a key of the table, of several that want it. Pure."""

from __future__ import annotations

from collections.abc import Collection

from limpet.services.values import ServiceName

Place = tuple[str, bytes]
"""A map, and a key in it."""


class Claims:
    """The first that asks has it until it wants it no more."""

    def __init__(self) -> None:
        self._holder: dict[Place, ServiceName] = {}
        self._contested: dict[Place, set[ServiceName]] = {}
        """Who has come too late."""

    def claim(self, place: Place, name: ServiceName) -> ServiceName:
        """Who has it now."""
        holder = self._holder.setdefault(place, name)
        if holder != name:
            self._contested.setdefault(place, set()).add(name)
        return holder

    def give_back(self, places: Collection[Place], name: ServiceName) -> set[ServiceName]:
        """What of it is its own; who may have it now."""
        waiting: set[ServiceName] = set()
        for each in places:
            if self._holder.get(each) == name:
                del self._holder[each]
                waiting |= self._contested.pop(each, set())
        return waiting - {name}

    def of(self, name: ServiceName) -> set[Place]:
        """All that it has. Looks at everybody's."""
        return {place for place, holder in self._holder.items() if holder == name}
