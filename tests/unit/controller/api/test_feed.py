"""However many nodes watch, the store is asked once for what all of them are told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from limpet.base.errors import StorageError
from limpet.cluster.api import WatchLine, decode
from limpet.cluster.documents import Sealed
from limpet.cluster.kinds import GRANT, KINDS
from limpet.controller.api.feed import Chunk, DocumentFeed
from limpet.controller.registry.records import NODE, PRESENCE, NodeRecord, PresenceRecord
from limpet.controller.store.interface import Item, Listing, StorePut
from limpet.controller.store.sqlite import SqliteStore
from tests.unit.cluster_values import (
    CLUSTER_KEY,
    grant,
    node_key,
    presence,
    seal_grant,
    seal_presence,
)
from tests.waiting import PATIENCE_S, until

UID = presence(1).uid
WATCHERS = 20


class LateStore(SqliteStore):
    """Answers who reads when it is told to, as one at an API server answers late."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.may_answer = asyncio.Event()
        self.asked: list[str] = []
        self.fails = False

    async def _answer(self, asked: str) -> None:
        self.asked.append(asked)
        await self.may_answer.wait()
        if self.fails:
            raise StorageError("read", asked, "the API server went away")

    async def get(self, kind: str, name: str) -> Item | None:
        await self._answer(f"get {kind}")
        return await super().get(kind, name)

    async def listing(self, kind: str) -> Listing:
        await self._answer(f"list {kind}")
        return await super().listing(kind)


Body = Callable[[LateStore, DocumentFeed], Awaitable[None]]


def with_feed(path: Path, body: Body) -> None:
    async def run() -> None:
        store = LateStore(path / "store.db")
        try:
            async with asyncio.timeout(PATIENCE_S):
                await body(store, DocumentFeed(store))
        finally:
            await store.close()

    asyncio.run(run())


async def begin(feed: DocumentFeed) -> Chunk:
    """As a node does that knows nothing."""
    return await anext(feed.follow(None))


async def begin_all(store: LateStore, feed: DocumentFeed) -> list[asyncio.Task[Chunk]]:
    """All of them wait for the store."""
    tasks = [asyncio.create_task(begin(feed)) for _ in range(WATCHERS)]
    await until(lambda: store.asked)
    return tasks


async def hear_presence(feed: DocumentFeed, since: str) -> list[Sealed | None]:
    """What comes up to the next presence."""
    told: list[Sealed | None] = []
    async for chunk in feed.follow(since):
        told += [decode(line, WatchLine).document for line in chunk.lines.splitlines()]
        if any(each is not None and each.kind == PRESENCE for each in told):
            return [each for each in told if each is not None]
    raise AssertionError("the watch ended")


EACH_ONCE = [f"list {kind.name}" for kind in KINDS.published()]


def test_all_that_begin_at_once_get_one_list_also_where_the_first_of_them_goes(
    tmp_path: Path,
) -> None:
    async def body(store: LateStore, feed: DocumentFeed) -> None:
        first, *others = await begin_all(store, feed)
        first.cancel()
        await asyncio.wait((first,))
        store.may_answer.set()
        assert len({await each for each in others}) == 1
        assert first.cancelled()
        assert store.asked == EACH_ONCE

    with_feed(tmp_path, body)


def test_a_list_that_took_long_serves_also_those_who_come_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead_s = 0.0
    now_s = time.monotonic
    monkeypatch.setattr("time.monotonic", lambda: now_s() + ahead_s)

    async def body(store: LateStore, feed: DocumentFeed) -> None:
        nonlocal ahead_s
        tasks = await begin_all(store, feed)
        ahead_s = PATIENCE_S / 2
        store.may_answer.set()
        found = {await each for each in tasks}
        assert {await begin(feed)} == found
        assert store.asked == EACH_ONCE
        ahead_s = PATIENCE_S / 4 * 3
        await begin(feed)
        assert store.asked == 2 * EACH_ONCE

    with_feed(tmp_path, body)


def test_a_list_that_nobody_waits_for_any_more_is_not_made_and_the_next_one_is(
    tmp_path: Path,
) -> None:
    async def body(store: LateStore, feed: DocumentFeed) -> None:
        tasks = await begin_all(store, feed)
        for each in tasks:
            each.cancel()
        await asyncio.wait(tasks)
        store.may_answer.set()
        await begin(feed)
        assert store.asked == [EACH_ONCE[0], *EACH_ONCE]

    with_feed(tmp_path, body)


def test_what_fails_fails_for_all_who_wait_and_is_tried_again_for_the_next(tmp_path: Path) -> None:
    async def body(store: LateStore, feed: DocumentFeed) -> None:
        tasks = await begin_all(store, feed)
        store.fails = True
        store.may_answer.set()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(each, StorageError) for each in outcomes)
        assert store.asked == EACH_ONCE[:1]
        store.fails = False
        await begin(feed)

    with_feed(tmp_path, body)


def test_what_a_presence_stands_under_is_looked_up_once_for_all_who_are_told(
    tmp_path: Path,
) -> None:
    granted = seal_grant(grant(1), CLUSTER_KEY)
    said = seal_presence(presence(1), node_key(1))

    async def body(store: LateStore, feed: DocumentFeed) -> None:
        node = msgspec.json.encode(NodeRecord(granted, 0.0))
        (version,) = await store.write([StorePut(NODE, UID, node)])
        tasks = [asyncio.create_task(hear_presence(feed, version)) for _ in range(WATCHERS)]
        record = PresenceRecord(said, 1, "boot", (), 0.0)
        await store.write([StorePut(PRESENCE, UID, msgspec.json.encode(record))])
        await until(lambda: store.asked)
        tasks[0].cancel()
        store.may_answer.set()
        assert await asyncio.gather(*tasks[1:]) == [[granted, said]] * (WATCHERS - 1)
        assert store.asked == [f"get {GRANT.name}"]

    with_feed(tmp_path, body)
