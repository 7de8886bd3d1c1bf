"""What watching agents are told: the network and the nodes' entries, line by line."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from dataclasses import dataclass

import msgspec

from limpet.cluster.api import WatchKind, WatchLine, encode_line
from limpet.controller.state.records import (
    NETWORK,
    NODE,
    PRESENCE,
    NetworkRecord,
    NodeRecord,
    PresenceRecord,
)
from limpet.controller.store.interface import Bookmark, Item, Store

_KINDS = (NETWORK, NODE, PRESENCE)
_CHUNK_BYTES = 256 << 10
_KEPT_LINES = 16_384
_LIST_KEPT_S = 5.0
"""Whoever begins within that time gets the same list, and then what changed since."""


@dataclass(frozen=True, slots=True)
class Chunk:
    lines: bytes
    uids: frozenset[str] = frozenset()
    """Of the nodes that these lines tell of; of a list, none."""


class Feed:
    """Shared by all watchers: a line is made once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lines: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        self._list: tuple[list[bytes], str] = ([], "")
        self._listed_at_s = float("-inf")

    async def follow(self, since: str | None) -> AsyncIterator[Chunk]:
        """All there is if `since` is None, then what changes. Raises: TooOldError."""
        if since is None:
            chunks, since = await self._everything()
            for chunk in chunks:
                yield Chunk(chunk)
        pending: list[bytes] = []
        uids: set[str] = set()
        size = 0
        # A presence goes with its node's tombstone, which is told: deletions are not.
        async for event in self._store.watch(_KINDS, since):
            if isinstance(event, Bookmark):
                pending.append(_bookmark(event.version))
            elif isinstance(event, Item):
                line = await self._line(event)
                pending.append(line)
                uids.add(event.name)
                size += len(line)
            if pending and (isinstance(event, Bookmark) or size > _CHUNK_BYTES):
                yield Chunk(b"".join(pending), frozenset(uids))
                pending, uids, size = [], set(), 0

    async def _everything(self) -> tuple[list[bytes], str]:
        now_s = time.monotonic()
        if now_s - self._listed_at_s > _LIST_KEPT_S:
            self._list = await self._make_list()
            self._listed_at_s = now_s
        return self._list

    async def _make_list(self) -> tuple[list[bytes], str]:
        networks = await self._store.listing(NETWORK)
        nodes = await self._store.listing(NODE)
        presences = {item.name: item for item in (await self._store.listing(PRESENCE)).items}
        lines = [_network_line(item) for item in networks.items]
        lines += [_entry_line(node, presences.get(node.name), "") for node in nodes.items]
        chunks: list[list[bytes]] = [[]]
        size = 0
        for line in lines:
            if size > _CHUNK_BYTES:
                chunks.append([])
                size = 0
            chunks[-1].append(line)
            size += len(line)
        # From the oldest of the lists: what changed between them is told again.
        return [b"".join(chunk) for chunk in chunks], networks.version

    async def _line(self, event: Item) -> bytes:
        key = (event.kind, event.version)
        line = self._lines.get(key)
        if line is None:
            line = await self._make_line(event)
            self._lines[key] = line
            if len(self._lines) > _KEPT_LINES:
                self._lines.popitem(last=False)
        return line

    async def _make_line(self, event: Item) -> bytes:
        if event.kind == NETWORK:
            return _network_line(event)
        node = await self._store.get(NODE, event.name)
        if node is None:
            return b""
        return _entry_line(node, await self._store.get(PRESENCE, event.name), event.version)


def _bookmark(version: str) -> bytes:
    return encode_line(WatchLine(WatchKind.BOOKMARK, version))


def _network_line(item: Item) -> bytes:
    record = msgspec.json.decode(item.value, type=NetworkRecord)
    return encode_line(WatchLine(WatchKind.NETWORK, network=record.sealed))


def _entry_line(node: Item, presence: Item | None, version: str) -> bytes:
    """A presence may be newer than the event: that is told again, and does no harm."""
    grant = msgspec.json.decode(node.value, type=NodeRecord).sealed
    sealed = None
    if presence is not None:
        sealed = msgspec.json.decode(presence.value, type=PresenceRecord).sealed
    return encode_line(WatchLine(WatchKind.ENTRY, version, grant=grant, presence=sealed))
