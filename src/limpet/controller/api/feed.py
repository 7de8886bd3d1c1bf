"""What watching agents are told: every document that is in the store, line by line."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Collection
from dataclasses import dataclass

import msgspec

from limpet.base.decoding import decode_json
from limpet.cluster.api import Code, WatchKind, WatchLine, encode_line
from limpet.cluster.documents import Sealed
from limpet.cluster.kinds import KINDS
from limpet.controller.api.node_words import NodeWords
from limpet.controller.api.shared_works import SharedWorks
from limpet.controller.registry.refusal import RefusedError
from limpet.controller.store.interface import Bookmark, Item, Store

_CHUNK_BYTES = 256 << 10
_KEPT_LINES, _KEPT_LINE_BYTES = 16_384, 16 << 20
_LIST_KEPT_S = 5.0
"""Whoever begins within that time of when it was made gets the same list, and then what changed
since."""


@dataclass(frozen=True, slots=True)
class Chunk:
    lines: bytes
    names: frozenset[str] = frozenset()
    """Names of the documents that these lines tell; empty for a list."""


@dataclass(frozen=True, slots=True)
class _List:
    """All there is."""

    chunks: dict[str, list[bytes]]
    """By kind, those first that others are checked with."""
    since: str
    """To watch from."""


class _Record(msgspec.Struct):
    """The part that every stored document has, whatever else its record holds."""

    sealed: Sealed


class DocumentFeed:
    """Shared by all watchers: a line is made once, and so is the list for those who begin."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lines: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        self._line_bytes = 0
        self._making_lines: SharedWorks[bytes] = SharedWorks()
        self._making_lists: SharedWorks[_List] = SharedWorks()
        self._list = _List({}, "")
        self._listed_at_s = float("-inf")
        self.words = NodeWords()

    async def follow(
        self, since: str | None, kinds: Collection[str] | None = None
    ) -> AsyncGenerator[Chunk, None]:
        """All there is if `since` is None, then what changes. Raises: TooOldError.

        `kinds`: of documents that are told, in this order; None: all.
        """
        kinds = all_kinds() if kinds is None else kinds
        if since is None:
            found = await self._everything()
            since = found.since
            for chunk in (each for kind in kinds for each in found.chunks[kind]):
                yield Chunk(chunk)
        pending: list[bytes] = []
        names: set[str] = set()
        size = 0
        # What goes, goes with a tombstone, which is told; deletions are not.
        async for event in self._store.watch(kinds, since):
            if isinstance(event, Bookmark):
                pending.append(_bookmark(event.version))
            elif isinstance(event, Item):
                line = await self._line(event)
                pending.append(line)
                names.add(event.name)
                size += len(line)
            if pending and (isinstance(event, Bookmark) or size > _CHUNK_BYTES):
                yield Chunk(b"".join(pending), frozenset(names))
                pending, names, size = [], set(), 0

    async def _everything(self) -> _List:
        if time.monotonic() - self._listed_at_s > _LIST_KEPT_S:
            return await self._making_lists.outcome("all", self._keep_list)
        return self._list

    async def _keep_list(self) -> _List:
        self._list = await self._make_list()
        self._listed_at_s = time.monotonic()
        return self._list

    async def _make_list(self) -> _List:
        kinds = all_kinds()
        since = await self._store.mark(kinds)  # what changes from here on is told again
        listings = [await self._store.listing(kind) for kind in kinds]
        chunks = [_chunks_of(listing.items) for listing in listings]
        return _List(dict(zip(kinds, chunks, strict=True)), since)

    async def _line(self, event: Item) -> bytes:
        key = (event.kind, event.version)
        line = self._lines.get(key)
        if line is None:
            return await self._making_lines.outcome(key, lambda: self._keep_line(key, event))
        return line

    async def _keep_line(self, key: tuple[str, str], event: Item) -> bytes:
        line = await self._make_line(event)
        self._lines[key] = line
        self._line_bytes += len(line)
        while len(self._lines) > _KEPT_LINES or self._line_bytes > _KEPT_LINE_BYTES:
            self._line_bytes -= len(self._lines.popitem(last=False)[1])
        return line

    async def _make_line(self, event: Item) -> bytes:
        """What it stands under goes before it: that may have changed since, and be told later."""
        parent = KINDS[event.kind].parent(event.name)
        above = await self._store.get(*parent) if parent is not None else None
        return (_document_line(above) if above else b"") + _document_line(event)


def all_kinds() -> tuple[str, ...]:
    """Those of documents that are told, each behind those that it is checked with."""
    return tuple(kind.name for kind in KINDS.published())


def wanted_kinds(text: str | None) -> tuple[str, ...]:
    """Those of which a watcher wants to hear; None: all. Raises: RefusedError."""
    known = all_kinds()
    if text is None:
        return known
    wanted = text.split(",")
    if strange := set(wanted) - set(known):
        raise RefusedError(
            Code.BAD_REQUEST, f"watch {min(strange)[:40]!r}: no kind of document is called so"
        )
    return tuple(kind for kind in known if kind in wanted)


def _chunks_of(items: Collection[Item]) -> list[bytes]:
    chunks: list[list[bytes]] = [[]]
    size = 0
    for line in map(_document_line, items):
        if size > _CHUNK_BYTES:
            chunks.append([])
            size = 0
        chunks[-1].append(line)
        size += len(line)
    return [b"".join(chunk) for chunk in chunks if chunk]


def _bookmark(version: str) -> bytes:
    return encode_line(WatchLine(WatchKind.BOOKMARK, version))


def _document_line(item: Item) -> bytes:
    """Without a version: of other kinds there may be something earlier that is not told yet."""
    sealed = decode_json(item.value, _Record).sealed
    return encode_line(WatchLine(WatchKind.DOCUMENT, document=sealed))
