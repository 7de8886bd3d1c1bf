"""The Service that has a key of the table, of several that want it. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from limpet.services.values import ServiceName

Place = tuple[str, bytes]
"""A map, and a key in it."""


class Claims:
    """The first that asks has it until it wants it no more."""

    def __init__(self) -> None:
        self._holder: dict[str, dict[bytes, ServiceName]] = defaultdict(dict)
        """By map and key: a pair for each would take 2 MB of 10,000 Services."""
        self._contested: dict[Place, set[ServiceName]] = {}
        """Who has come too late."""

    def claim(self, place: Place, name: ServiceName) -> ServiceName:
        """Who has it now."""
        map_name, key = place
        holder = self._holder[map_name].setdefault(key, name)
        if holder != name:
            self._contested.setdefault(place, set()).add(name)
        return holder

    def give_back(self, places: Collection[Place], name: ServiceName) -> set[ServiceName]:
        """What of it is its own; who may have it now."""
        waiting: set[ServiceName] = set()
        for map_name, key in places:
            held = self._holder[map_name]
            if held.get(key) == name:
                del held[key]
                waiting |= self._contested.pop((map_name, key), set())
        return waiting - {name}

    def of(self, name: ServiceName) -> set[Place]:
        """All that it has. Looks at everybody's."""
        return {
            (map_name, key)
            for map_name, held in self._holder.items()
            for key, holder in held.items()
            if holder == name
        }
