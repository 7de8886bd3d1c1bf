"""Large mappings of which little changes at a time: a change costs what changed, not what is there.

A mapping that was made of another by `alter` shares its entries, so that what differs between the
two is found (`differing`) without a look at what they share; also where all was copied in between.
"""

from __future__ import annotations

from collections.abc import Collection, ItemsView, Iterator, Mapping, ValuesView
from typing import Any, TypeVar
from weakref import ref

K = TypeVar("K")
V = TypeVar("V")

_SHARE = 16
"""One in so many entries may have changed before all are copied: once in many changes."""


def alter(mapping: Mapping[K, V], changes: Mapping[K, V | None]) -> Mapping[K, V]:
    """`mapping` with other values for some keys, None: without the key; it stays as it is itself.

    No value is None, and no mapping that is passed in changes later on.
    """
    base, before = _parts(mapping)
    every = {**before, **changes}
    if len(every) * _SHARE <= len(base):
        return _Altered(base, every)
    return _Copied(base, every)


def differing(before: Mapping[K, V], after: Mapping[K, V]) -> set[K]:
    """Keys of which the two do not have the very same object."""
    if before is after:
        return set()
    base, changes = _parts(before)
    other_base, other_changes = _parts(after)
    if base is not other_base:
        keys: Collection[K]
        if isinstance(other_base, _Copied) and other_base.is_of(base):
            keys = {*changes, *other_base.changed, *other_changes}
        else:
            keys = before.keys() | after.keys()
        return {key for key in keys if before.get(key) is not after.get(key)}
    found = {
        key
        for key, value in other_changes.items()
        if (changes[key] if key in changes else base.get(key)) is not value
    }
    # What was put back as it was in the base.
    found |= {
        key
        for key, value in changes.items()
        if key not in other_changes and base.get(key) is not value
    }
    return found


class _Copied(dict[K, V]):
    """What was altered so often that it was copied: it knows of what, and what is different."""

    __slots__ = ("__weakref__", "_former", "changed")

    def __init__(self, base: Mapping[K, V], changes: Mapping[K, V | None]) -> None:
        super().__init__(_copy(base, changes))
        # A plain dict has no weak references, and is copied once only.
        self._former = ref(base) if isinstance(base, _Copied) else None
        self.changed: Collection[K] = tuple(changes) if self._former is not None else ()

    def is_of(self, base: Mapping[K, V]) -> bool:
        """Whether it differs from `base` by `changed` alone."""
        return self._former is not None and self._former() is base


class _Altered(Mapping[K, V]):
    """`base`, but for the keys that are in `changes`."""

    __slots__ = ("base", "changes")

    def __init__(self, base: Mapping[K, V], changes: Mapping[K, V | None]) -> None:
        self.base = base
        self.changes = changes

    def __getitem__(self, key: K) -> V:
        if key not in self.changes:
            return self.base[key]
        value = self.changes[key]
        if value is None:
            raise KeyError(key)
        return value

    def get(self, key: K, default: Any = None) -> Any:
        """As a Mapping's, without an error that is raised and caught."""
        value = self.changes[key] if key in self.changes else self.base.get(key)
        return default if value is None else value

    def __iter__(self) -> Iterator[K]:
        return iter(_copy(self.base, self.changes))

    def items(self) -> ItemsView[K, V]:
        return _copy(self.base, self.changes).items()

    def values(self) -> ValuesView[V]:
        return _copy(self.base, self.changes).values()

    def __len__(self) -> int:
        added = sum((value is not None) - (key in self.base) for key, value in self.changes.items())
        return len(self.base) + added

    def __repr__(self) -> str:
        return repr(_copy(self.base, self.changes))


def _copy(base: Mapping[K, V], changes: Mapping[K, V | None]) -> dict[K, V]:
    return {key: value for key, value in {**base, **changes}.items() if value is not None}


def _parts(mapping: Mapping[K, V]) -> tuple[Mapping[K, V], Mapping[K, V | None]]:
    if isinstance(mapping, _Altered):
        return mapping.base, mapping.changes
    return mapping, {}
