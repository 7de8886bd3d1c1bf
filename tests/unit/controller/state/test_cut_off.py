"""A commit that is cut off in the midst, as at Kubernetes: the next leader goes on from there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path

import pytest

from limpet.base.errors import StorageError
from limpet.cluster.documents import Known
from limpet.cluster.kinds import KINDS, NETWORK
from limpet.cluster.merge import merge
from limpet.cluster.seal import open_sealed
from limpet.controller.registry.records import AUTHORITY, NODE, STATE
from limpet.controller.registry.tables import Tables
from limpet.controller.settings import ControllerSettings
from limpet.controller.state.cluster import Cluster
from limpet.controller.store.interface import Change
from limpet.controller.store.sqlite import SqliteStore
from tests.unit.controller.state.cluster_tables import join

Fails = Callable[[Change], bool]


class OneByOneStore(SqliteStore):
    """Writes every change by itself, and fails where it is told to."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.fails: Fails = lambda change: False
        self.wrote: list[Change] = []

    async def write(self, changes: Sequence[Change]) -> list[str]:
        versions: list[str] = []
        for change in changes:
            if self.fails(change):
                raise StorageError("write", change.kind, "the API server went away")
            versions += await super().write([change])
            self.wrote.append(change)
        return versions

    def cut_off(self, *, after: int, of: Collection[str] = ()) -> None:
        """From now on so many changes (of these kinds) are written, and no more."""
        self.wrote.clear()
        self.fails = lambda change: len([e for e in self.wrote if not of or e.kind in of]) >= after


Body = Callable[[OneByOneStore, Cluster], Awaitable[None]]


def with_cluster(path: Path, body: Body) -> None:
    async def run() -> None:
        store = OneByOneStore(path / "store.db")
        cluster = Cluster(store, ControllerSettings())
        await cluster.start()
        try:
            await body(store, cluster)
        finally:
            await cluster.stop()
            await store.close()

    asyncio.run(run())


async def next_leader(store: OneByOneStore) -> Cluster:
    """Another process, with the store as it lies there."""
    store.fails = lambda change: False
    cluster = Cluster(store, ControllerSettings())
    await cluster.start()
    return cluster


async def fails(change: Awaitable[object]) -> None:
    with pytest.raises(StorageError):
        await change


def two_nodes(tables: Tables) -> None:
    join(tables, 1, "n1")
    join(tables, 2, "n2")


@pytest.mark.parametrize("written", range(1, 5))
def test_a_rotation_that_is_cut_off_anywhere_is_finished_and_loses_no_key(
    tmp_path: Path, written: int
) -> None:
    async def body(store: OneByOneStore, cluster: Cluster) -> None:
        await cluster.change(two_nodes)
        heard = Known(KINDS, await cluster.change(lambda tables: tables.pinned))
        for sealed in await cluster.change(lambda tables: tables.first_documents):
            heard = merge(heard, [open_sealed(sealed, heard)])[0]
        store.cut_off(after=written)
        await fails(cluster.rotate_key())
        kinds = [each.kind for each in store.wrote]
        assert kinds == [STATE, AUTHORITY, NETWORK.name, NODE][:written]

        following = await next_leader(store)
        eras, key_count, network_count = await following.change(
            lambda tables: (
                {document.era for uid in tables.grants if (document := tables.find((NODE, uid)))},
                len(tables.authority.cluster_keys),
                len(tables.network.keys),
            )
        )
        assert (key_count, network_count) == ((1, 1) if written == 1 else (2, 2))
        assert eras == {key_count - 1}
        await following.change(lambda tables: join(tables, 3, "n3"))
        await following.rotate_key()
        for sealed in await following.change(lambda tables: tables.first_documents):
            open_sealed(sealed, heard)
        await following.stop()

    with_cluster(tmp_path, body)


@pytest.mark.parametrize("written", range(3))
def test_a_first_start_that_is_cut_off_anywhere_is_begun_again(
    tmp_path: Path, written: int
) -> None:
    async def run() -> None:
        store = OneByOneStore(tmp_path / "store.db")
        store.cut_off(after=written)
        await fails(Cluster(store, ControllerSettings()).start())
        cluster = await next_leader(store)
        assert await cluster.change(lambda tables: join(tables, 1, "n1").segments)
        assert not await cluster.change(lambda tables: tables.state.recovery)
        await cluster.stop()
        await store.close()

    asyncio.run(run())
