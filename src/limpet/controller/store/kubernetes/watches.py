"""Watches of the store: what followers of each kind have heard, one after the other."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Collection

from limpet.base.errors import StorageError
from limpet.controller.store.interface import Bookmark, Event, TooOldError
from limpet.controller.store.kubernetes.follower import Follower, ItemSource
from limpet.controller.store.kubernetes.items import ItemObject
from limpet.controller.store.kubernetes.positions import positions_in, text_of
from limpet.controller.store.kubernetes.rows import row_of
from limpet.controller.store.kubernetes.words import told
from limpet.kubernetes.client import Client

BOOKMARK_S = 30.0
"""Between bookmarks while nothing happens; what reads a watch takes silence for a dead link."""
_MARK_S = 60.0
"""For whole lists of all kinds."""


class Watches:
    """A follower of each kind, from when it is first asked for."""

    def __init__(self, client: Client, namespace: str, kept_events: int) -> None:
        self._client = client
        self._namespace = namespace
        self._kept_events = kept_events
        self._followers: dict[str, Follower] = {}
        self._closed = False

    async def close(self) -> None:
        self._closed = True
        for follower in self._followers.values():
            await follower.close()

    def note(self, kind: str, name: str, made: ItemObject) -> None:
        """The store has written it."""
        if follower := self._followers.get(kind):
            follower.note(name, made)

    def follower(self, kind: str) -> Follower:
        follower = self._followers.get(kind)
        if follower is None:
            source = ItemSource(self._client, kind, row_of(kind), self._namespace)
            follower = Follower(source, self._kept_events)
            self._followers[kind] = follower
        return follower

    async def mark(self, kinds: Collection[str]) -> str:
        """Where the followers are: no watch has to reach back from there. An API server need not
        tell that it has told all: of an object with another label it says nothing."""
        followers = {kind: self.follower(kind) for kind in kinds}
        positions: dict[str, int] = {}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_MARK_S):
                for kind, follower in followers.items():
                    positions[kind] = await follower.ready()
        if missing := followers.keys() - positions.keys():
            raise StorageError(
                "follow", ", ".join(sorted(missing)), "the API server does not list them"
            )
        return text_of(positions)

    async def watch(self, kinds: Collection[str], since: str) -> AsyncGenerator[Event, None]:
        followers = {kind: self.follower(kind) for kind in kinds}
        positions = positions_in(since, kinds)
        for kind, follower in followers.items():
            await self._catch_up(kind, follower, positions[kind])
        lives = {kind: follower.life for kind, follower in followers.items()}
        bookmark, due_s = since, 0.0
        now_s = asyncio.get_running_loop().time
        while not self._closed:
            changes = {kind: follower.changed for kind, follower in followers.items()}
            for kind, follower in followers.items():
                if follower.life != lives[kind]:
                    raise TooOldError(
                        f"watch {kind}: the API server's state is another than it was"
                    )
                position = follower.position
                for event in follower.since(positions[kind]):
                    yield event
                    bookmark, due_s = event.version, 0.0
                positions[kind] = max(positions[kind], position)
            if len(positions) > 1:
                bookmark = text_of(positions)
            if now_s() >= due_s and not any(change.done() for change in changes.values()):
                yield Bookmark(bookmark)
                due_s = now_s() + BOOKMARK_S
            await asyncio.wait(
                changes.values(),
                timeout=max(0.0, due_s - now_s()),
                return_when=asyncio.FIRST_COMPLETED,
            )

    async def _catch_up(self, kind: str, follower: Follower, since: int) -> None:
        """Raises: TooOldError."""
        with told("watch", kind):
            position = await follower.ready()
            if since > position:
                page = await follower.source.first_page()
                if since > int(page.resource_version):
                    raise TooOldError(f"watch {kind} from {since}: it is not there yet")
            await follower.reach_back(since)
