"""The registry: batches, failures, and a store that has no transactions."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Collection, Sequence
from pathlib import Path

import pytest

from limpet.base.errors import StorageError
from limpet.cluster.kinds.grant import Grant
from limpet.controller.registry.refusal import RefusedError
from limpet.controller.registry.registry import Registry
from limpet.controller.registry.tables import Tables
from limpet.controller.state import grants
from limpet.controller.state.authority import create_cluster
from limpet.controller.store.interface import Change, ConflictError, Event, Item, Listing, Store
from limpet.controller.store.sqlite import SqliteStore
from tests.unit.controller.state.cluster_tables import join, network
from tests.waiting import PATIENCE_S


class OneByOne:
    """A store as Kubernetes is: every change by itself; now and then it fails in the midst."""

    def __init__(self, store: Store, seed: int) -> None:
        self._store = store
        self._random = random.Random(seed)
        self.failures = 0

    async def get(self, kind: str, name: str) -> Item | None:
        return await self._store.get(kind, name)

    async def listing(self, kind: str) -> Listing:
        return await self._store.listing(kind)

    async def write(self, changes: Sequence[Change]) -> list[str]:
        versions = []
        for change in changes:
            if self._random.random() < 0.02:
                self.failures += 1
                raise StorageError("write", "store", "it went away")
            versions += await self._store.write([change])
        return versions

    async def mark(self, kinds: Collection[str]) -> str:
        return await self._store.mark(kinds)

    def watch(self, kinds: Collection[str], since: str) -> AsyncGenerator[Event, None]:
        return self._store.watch(kinds, since)


async def joined(registry: Registry, number: int) -> Grant:
    """Asks until it is answered, as a node does."""
    for _ in range(200):
        try:
            return await registry.change(lambda tables: join(tables, number, f"n{number}"))
        except (RefusedError, StorageError):
            continue
    raise AssertionError("it was never answered")


@pytest.mark.parametrize("seed", range(3))
def test_two_controllers_on_a_store_without_transactions_grant_nothing_twice(
    tmp_path: Path, seed: int
) -> None:
    async def run() -> None:
        sqlite = SqliteStore(tmp_path / "store.db")
        store = OneByOne(sqlite, seed)
        first = Registry(sqlite, 0.0)
        await first.start()
        await first.change(lambda tables: create_cluster(tables, network("10.0.0.0/12")))
        await first.stop()
        one, two = Registry(store, 0.0), Registry(store, 0.0)
        await one.start()
        await two.start()
        answered = await asyncio.gather(
            *(
                joined(registry, number)
                for number in range(1, 61)
                for registry in (one, two)[number % 2 :][:1]
            )
        )
        await one.stop()
        await two.stop()
        reread = Registry(sqlite, 0.0)
        await reread.start()
        known = await reread.change(lambda tables: dict(tables.grants))
        await reread.stop()
        await sqlite.close()
        assert store.failures
        held = [segment for grant in known.values() for segment in grant.segments]
        assert len(held) == len(set(held))
        for grant in answered:
            assert set(grant.segments) <= set(known[grant.uid].segments)

    asyncio.run(run())


def test_concurrent_requests_share_commits_and_one_that_fails_spoils_no_other(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        store = SqliteStore(tmp_path / "store.db")
        registry = Registry(store, 0.0)
        await registry.start()
        await registry.change(
            lambda tables: create_cluster(tables, network("10.0.0.0/16", segment_quota=2))
        )
        uids = [
            (await registry.change(lambda tables, n=n: join(tables, n, "n"))).uid  # type: ignore[misc]
            for n in range(1, 20)
        ]
        outcomes = await asyncio.gather(
            *(
                registry.change(
                    lambda tables, uid=uid: grants.request_segments(  # type: ignore[misc]
                        tables, uid, tables.grants[uid].generation, (4,), 0.0
                    )
                )
                for uid in uids
                for _ in range(3)
            ),
            return_exceptions=True,
        )
        assert sum(isinstance(each, RefusedError) for each in outcomes) == 2 * len(uids)
        held = await registry.change(lambda tables: len(tables.space.holdings))
        assert held == 2 * len(uids)
        await registry.stop()
        await store.close()

    asyncio.run(run())


def test_what_fails_without_a_word_of_ours_is_the_askers_alone(tmp_path: Path) -> None:
    async def run() -> None:
        store = SqliteStore(tmp_path / "store.db")
        registry = Registry(store, 0.0)
        await registry.start()
        with pytest.raises(ZeroDivisionError):
            await registry.change(lambda tables: 1 // 0)
        await registry.change(lambda tables: create_cluster(tables, network()))
        await registry.stop()
        await store.close()

    asyncio.run(run())


class Surprising(OneByOne):
    """A store that fails once in a way that nobody has foreseen."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, 0)
        self.surprises = 1

    async def write(self, changes: Sequence[Change]) -> list[str]:
        if self.surprises:
            self.surprises -= 1
            raise RuntimeError("nobody has foreseen this")
        return await self._store.write(changes)


def test_an_error_that_nobody_has_foreseen_is_the_askers_and_holds_up_no_later_one(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        sqlite = SqliteStore(tmp_path / "store.db")
        first = Registry(sqlite, 0.0)
        await first.start()
        await first.change(lambda tables: create_cluster(tables, network("10.0.0.0/12")))
        await first.stop()
        registry = Registry(Surprising(sqlite), 0.0)
        await registry.start()
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(RuntimeError, match="nobody has foreseen this"):
                await registry.change(lambda tables: join(tables, 1, "n1"))
            grant = await registry.change(lambda tables: join(tables, 1, "n1"))
            assert grant.name == "n1"
            await registry.stop()
        await sqlite.close()

    asyncio.run(run())


def test_what_was_asked_for_is_made_again_of_what_another_wrote_meanwhile(tmp_path: Path) -> None:
    async def run() -> None:
        store = SqliteStore(tmp_path / "store.db")
        first, second = Registry(store, 0.0), Registry(store, 0.0)
        await first.start()
        await first.change(lambda tables: create_cluster(tables, network("10.0.0.0/16")))
        await second.start()
        one = await first.change(lambda tables: join(tables, 1, "n1"))
        seen: list[set[str]] = []

        def ask(tables: Tables) -> Grant:
            seen.append(set(tables.grants))
            return join(tables, 2, "n2")

        two, again = await asyncio.gather(
            second.change(ask), second.change(lambda tables: join(tables, 3, "n3"))
        )
        assert seen == [set(), {one.uid}]
        assert not set(one.segments) & set(two.segments)
        known = await second.change(lambda tables: set(tables.grants))
        assert known == {one.uid, two.uid, again.uid}
        await first.stop()
        await second.stop()
        await store.close()

    asyncio.run(run())


class Contended(OneByOne):
    """A store where another is always the first."""

    async def write(self, changes: Sequence[Change]) -> list[str]:
        raise ConflictError(changes[0].kind, changes[0].name, "it was changed by another")


def test_a_store_where_another_always_writes_first_is_left_with_words(tmp_path: Path) -> None:
    async def run() -> None:
        sqlite = SqliteStore(tmp_path / "store.db")
        first = Registry(sqlite, 0.0)
        await first.start()
        await first.change(lambda tables: create_cluster(tables, network()))
        await first.stop()
        registry = Registry(Contended(sqlite, 0), 0.0)
        await registry.start()
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(RefusedError, match="ask again"):
                await registry.change(lambda tables: join(tables, 1, "n1"))
            assert not await registry.change(lambda tables: dict(tables.grants))
            await registry.stop()
        await sqlite.close()

    asyncio.run(run())
