"""The interface to where the cluster's state lives. Kubernetes' verbs and watch fit it.

An item is some bytes under a kind and a name. A version names a state of the whole store; it is
compared for equality and handed back, nothing else.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from limpet.base.errors import LimpetError


class ConflictError(LimpetError):
    """An item is not as the change expected it: there already, changed since, or gone."""

    def __init__(self, kind: str, name: str, cause: str) -> None:
        super().__init__(f"change {kind} {name}: {cause}")
        self.kind = kind
        self.name = name


class TooOldError(LimpetError):
    """The store no longer knows what happened since that version: list anew."""


@dataclass(frozen=True, slots=True)
class Item:
    kind: str
    name: str
    value: bytes
    version: str
    """Version of the store when this value was written."""


@dataclass(frozen=True, slots=True)
class Listing:
    items: tuple[Item, ...]
    """By name."""
    version: str
    """To watch from: nothing is missed and nothing that is in the list is told again."""
    unreadable: tuple[tuple[str, str], ...] = ()
    """Items that lie there and nobody can read: name, as far as it can be told, and why."""


@dataclass(frozen=True, slots=True)
class StorePut:
    """A value for an item whose version is still this one; None: for one that is not there."""

    kind: str
    name: str
    value: bytes
    version: str | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Deletes an item whose version is still this one."""

    kind: str
    name: str
    version: str


Change = StorePut | Delete


@dataclass(frozen=True, slots=True)
class Deleted:
    kind: str
    name: str
    version: str


@dataclass(frozen=True, slots=True)
class Bookmark:
    """Everything up to this version has been told."""

    version: str


Event = Item | Deleted | Bookmark


class Store(Protocol):
    """What every store promises; `tests/unit/controller/store/test_stores.py` holds it to that."""

    async def get(self, kind: str, name: str) -> Item | None:
        """The item as of the last write that was answered, or of a later one."""

    async def listing(self, kind: str) -> Listing:
        """All items of a kind, as of one moment."""

    async def write(self, changes: Sequence[Change]) -> list[str]:
        """The version of each item after its change; durable when this returns.

        In order. A store with transactions makes all changes or none; another may stop at the
        first that does not fit, so callers order them such that every beginning is safe.

        Raises: ConflictError; StorageError when nothing could be written.
        """

    async def mark(self, kinds: Collection[str]) -> str:
        """A version to watch these kinds from: what is read after this call, and what such a watch
        tells, is all there is; whether there are items of a kind or not.

        Raises: StorageError.
        """

    def watch(self, kinds: Collection[str], since: str) -> AsyncGenerator[Event, None]:
        """What changed after `since`, in order, for ever; states between may be left out.

        A bookmark follows when everything known is told, and now and then. The order is that of
        each kind; who watches several goes on from a bookmark, never from an item's version.

        Raises: TooOldError, also in the midst, for a reader that is too slow.
        """
