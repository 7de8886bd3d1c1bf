"""Looks at maps of which the kernel tells nobody that somebody else has changed them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Protocol

_AT_ONCE = 192
"""Elements that are read and compared at once, of 60,000 in 0.4 ms of CPU: by two looks a second
0.09 % of a core. The kernel reads whole buckets, so that some less come."""
_ENOUGH = _AT_ONCE // 2
"""A look that has come by so many ends."""
_KEYS = 100
"""Keys that are asked for one by one in the same time."""
_WALKED_EACH = 10
"""So many looks apart a map with no more than these is gone through for what others have added:
most of it is empty buckets, up to 0.3 ms of them. Source: kernel/bpf/hashtab.c,
__htab_map_lookup_and_delete_batch."""


class KernelMap(Protocol):
    """A map of the kernel's."""

    def batches(self, most: int) -> Iterator[Iterable[tuple[bytes, bytes]]]:
        """All elements, so many at most at once."""

    def get(self, key: bytes) -> bytes | None:
        """None: it is not there."""


class MapLooks:
    """At some elements after the others, until all of all maps have had their turn.

    Elements are read as they lie in the map, so those that somebody has added are found as well.
    One that is gone is missed when the map has been gone through: there are less than were put.
    Where some were put or deleted meanwhile, that says nothing, and its keys are asked for instead.
    Of a map with few elements that is done first, and it is gone through now and then.
    """

    def __init__(self) -> None:
        self._changes: dict[str, int] = {}
        """How often what is put was changed, by map."""
        self._turn: Iterator[tuple[int, bool]] | None = None
        self._looks = 0
        self._walked: dict[str, int] = {}
        """With which look each map was gone through last."""

    def changed(self, name: str) -> None:
        """By whoever looks."""
        self._changes[name] = self._changes.get(name, 0) + 1

    def restart(self) -> None:
        """Other maps, or others are put than were."""
        self._turn = None

    def is_other(
        self, maps: Mapping[str, KernelMap], put: Mapping[str, Mapping[bytes, bytes]]
    ) -> bool:
        """An element of those whose turn it is is not as it was put. Raises: KernelError."""
        looked = 0
        self._looks += 1
        self._turn = self._turn or self._all(maps, put)
        for count, is_right in self._turn:
            looked += count
            if not is_right or looked >= _ENOUGH:
                return not is_right
        self._turn = None
        return False

    def _all(
        self, maps: Mapping[str, KernelMap], put: Mapping[str, Mapping[bytes, bytes]]
    ) -> Iterator[tuple[int, bool]]:
        """Steps: at how many elements, and whether they are as they were put."""
        for name in put:
            if len(put[name]) <= _KEYS and self._looks < self._walked.get(name, 0) + _WALKED_EACH:
                yield len(put[name]), _are_there(maps[name], put[name], list(put[name]))
                continue
            self._walked[name] = self._looks
            changes, seen = self._changes.get(name), 0
            for batch in maps[name].batches(_AT_ONCE):
                found = dict(batch)
                seen += len(found)
                yield len(found), found.items() <= put[name].items()
            if self._changes.get(name) == changes:
                yield 0, seen == len(put[name])
                continue
            keys = iter(list(put[name]))
            while some := list(islice(keys, _KEYS)):
                yield _AT_ONCE, _are_there(maps[name], put[name], some)


def _are_there(there: KernelMap, put: Mapping[bytes, bytes], keys: Iterable[bytes]) -> bool:
    return all(there.get(key) == put.get(key) for key in keys)
