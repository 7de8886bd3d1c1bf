"""So many connections at once, and fewer of one source. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from ipaddress import ip_address
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)
Source = bytes
"""As `source_of` says it."""


def source_of(address: str) -> Source:
    """An address of IPv4, or the /64 of IPv6, of which an attacker rarely has many.

    Raises: ValueError.
    """
    parsed = ip_address(address.partition("%")[0])
    if parsed.version == 6 and parsed.ipv4_mapped is None:
        return parsed.packed[:8]
    return parsed.packed[-4:]


class Places(Generic[T]):
    """Whoever is one too many takes the place of the oldest of its own source; where all places
    are taken, that of the oldest of the source that has most. Each step costs the same, however
    many there are."""

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._sources: dict[T, Source] = {}
        self._of: dict[Source, dict[T, None]] = {}
        self._by_count: dict[int, dict[Source, None]] = {}
        """Sources by how many they have."""
        self._highest = 0

    def __len__(self) -> int:
        return len(self._sources)

    def __contains__(self, one: T) -> bool:
        return one in self._sources

    def __iter__(self) -> Iterator[T]:
        """Oldest first."""
        return iter(self._sources)

    def of(self, source: Source) -> int:
        return len(self._of.get(source, ()))

    def put(self, one: T, source: Source) -> T | None:
        """Who has lost its place, if anybody."""
        leaves: T | None = None
        if self.of(source) >= self._most_of_one:
            leaves = next(iter(self._of[source]))
        elif len(self._sources) >= self._most:
            fullest = next(iter(self._by_count[self._highest]))
            leaves = next(iter(self._of[fullest]))
        if leaves is not None:
            self.drop(leaves)
        self._sources[one] = source
        count = self.of(source)
        self._of.setdefault(source, {})[one] = None
        self._move(source, count, count + 1)
        return leaves

    def drop(self, one: T) -> bool:
        """Whether it had a place."""
        source = self._sources.pop(one, None)
        if source is None:
            return False
        held = self._of[source]
        del held[one]
        self._move(source, len(held) + 1, len(held))
        if not held:
            del self._of[source]
        return True

    def _move(self, source: Source, before: int, now: int) -> None:
        if before:
            del self._by_count[before][source]
            if not self._by_count[before]:
                del self._by_count[before]
        if now:
            self._by_count.setdefault(now, {})[source] = None
        if now > self._highest or (before == self._highest and before not in self._by_count):
            self._highest = now


class PlacesByAddress(Generic[T]):
    """As `Places` for sources; of a source's places each of its addresses has its part, as pods of
    one node have that stand in one /64: who has most of them makes room for another's."""

    def __init__(self, most: int, most_of_one: int) -> None:
        """`most_of_one`: of one source, and so of one address."""
        self._all: Places[T] = Places(most, most_of_one)
        self._most_of_one = most_of_one
        self._within: dict[Source, Places[T]] = {}
        """By address, of each source."""
        self._sources: dict[T, Source] = {}

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, one: T) -> bool:
        return one in self._all

    def __iter__(self) -> Iterator[T]:
        """Oldest first."""
        return iter(self._all)

    def put(self, one: T, address: str) -> T | None:
        """Who has lost its place, if anybody. Raises: ValueError for what is no address."""
        source = source_of(address)
        of_one = self._most_of_one
        within = self._within.setdefault(source, Places(of_one, of_one))
        leaves = within.put(one, address.encode())
        if leaves is not None:
            self._all.drop(leaves)
            del self._sources[leaves]
        self._sources[one] = source
        outside = self._all.put(one, source)
        if outside is not None:
            self._forget(outside)
        return leaves if outside is None else outside

    def drop(self, one: T) -> bool:
        """Whether it had a place."""
        if not self._all.drop(one):
            return False
        self._forget(one)
        return True

    def _forget(self, one: T) -> None:
        source = self._sources.pop(one)
        within = self._within[source]
        within.drop(one)
        if not within:
            del self._within[source]
