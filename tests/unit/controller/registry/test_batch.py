"""What is asked for at one time is answered by what was written of it, and by nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from limpet.base.errors import LimpetError, StorageError
from limpet.cluster.documents import Sealed
from limpet.controller.registry.records import NODE, PRESENCE, TOKEN
from limpet.controller.registry.refusal import RefusedError
from limpet.controller.registry.tables import Tables
from limpet.controller.state import nodes
from limpet.controller.state.cluster import Cluster
from limpet.controller.state.grants import live_grant
from limpet.controller.state.published import publish
from limpet.controller.store.interface import Change
from tests.unit.cluster_values import node_key, presence, seal_presence
from tests.unit.controller.state.cluster_tables import join, new_token
from tests.unit.controller.state.test_cut_off import OneByOneStore, with_cluster

UID = presence(1).uid


def sealed(sequence: int) -> Sealed:
    return seal_presence(presence(1, sequence), node_key(1))


def publish_it(tables: Tables, sequence: int = 3) -> int:
    return publish(tables, UID, sealed(sequence), 0.0)


def is_presence(change: Change) -> bool:
    return change.kind == PRESENCE


@pytest.mark.parametrize("conflicts", [True, False])
def test_who_asks_again_for_what_is_not_written_is_not_told_that_it_is(
    tmp_path: Path, *, conflicts: bool
) -> None:
    async def body(store: OneByOneStore, cluster: Cluster) -> None:
        await cluster.change(lambda tables: join(tables, 1, "n1"))
        if conflicts:
            store.conflicts = is_presence
        else:
            store.fails = is_presence
        *answers, second = await asyncio.gather(
            *(cluster.change(publish_it) for _ in range(7)),
            cluster.change(lambda tables: join(tables, 2, "n2")),
            return_exceptions=True,
        )
        assert await store.get(PRESENCE, UID) is None
        assert all(isinstance(each, LimpetError) for each in answers)
        assert not isinstance(second, BaseException)

        store.fails = store.conflicts = lambda change: False
        assert await cluster.change(publish_it) == 3
        assert await store.get(PRESENCE, UID) is not None

    with_cluster(tmp_path, body)


def test_who_reads_or_is_refused_by_what_is_not_written_is_answered_by_what_is(
    tmp_path: Path,
) -> None:
    async def body(store: OneByOneStore, cluster: Cluster) -> None:
        await cluster.change(lambda tables: join(tables, 1, "n1"))
        await cluster.change(publish_it)
        store.fails = is_presence
        failed, versions, older, same = await asyncio.gather(
            cluster.change(lambda tables: publish_it(tables, 5)),
            cluster.change(lambda tables: tables.versions(UID)),
            cluster.change(lambda tables: publish_it(tables, 2)),
            cluster.change(publish_it),
            return_exceptions=True,
        )
        assert isinstance(failed, StorageError)
        assert versions == {PRESENCE: 3}
        assert isinstance(older, RefusedError)
        assert older.refused.version == 3
        assert same == 3

    with_cluster(tmp_path, body)


def test_nobody_is_handed_a_tombstone_that_is_not_written(tmp_path: Path) -> None:
    async def body(store: OneByOneStore, cluster: Cluster) -> None:
        await cluster.change(lambda tables: join(tables, 1, "n1"))
        store.fails = lambda change: change.kind == NODE
        answers = await asyncio.gather(
            cluster.change(lambda tables: nodes.remove(tables, UID, 0.0)),
            cluster.change(lambda tables: live_grant(tables, UID)),
            return_exceptions=True,
        )
        assert all(isinstance(each, StorageError) for each in answers)
        store.fails = lambda change: False
        assert (await cluster.change(lambda tables: live_grant(tables, UID))).name == "n1"

        _, refused = await asyncio.gather(
            cluster.change(lambda tables: nodes.remove(tables, UID, 0.0)),
            cluster.change(lambda tables: live_grant(tables, UID)),
            return_exceptions=True,
        )
        assert isinstance(refused, RefusedError)
        assert refused.refused.document is not None

    with_cluster(tmp_path, body)


def test_who_is_refused_by_what_is_written_is_told_so_while_the_store_fails(
    tmp_path: Path,
) -> None:
    async def body(store: OneByOneStore, cluster: Cluster) -> None:
        await cluster.change(lambda tables: join(tables, 1, "n1"))
        await cluster.change(publish_it)
        store.fails = lambda change: True
        refused, failed = await asyncio.gather(
            cluster.change(lambda tables: publish_it(tables, 2)),
            cluster.change(lambda tables: publish_it(tables, 5)),
            return_exceptions=True,
        )
        assert isinstance(refused, RefusedError)
        assert isinstance(failed, StorageError)

    with_cluster(tmp_path, body)


def test_trouble_with_the_store_is_over_when_something_is_written_and_not_before(
    tmp_path: Path,
) -> None:
    async def body(store: OneByOneStore, cluster: Cluster) -> None:
        await cluster.change(lambda tables: join(tables, 1, "n1"))
        store.fails = lambda change: True
        with pytest.raises(StorageError):
            await cluster.change(lambda tables: join(tables, 2, "n2"))
        joining = cluster.store_trouble
        assert joining
        with pytest.raises(StorageError):
            await cluster.change(publish_it)
        assert cluster.store_trouble not in ("", joining)
        await cluster.change(lambda tables: tables.put(TOKEN, "nobodys", None))
        assert cluster.store_trouble

        store.fails, store.conflicts = lambda change: False, is_presence
        with pytest.raises(RefusedError):
            await cluster.change(publish_it)
        assert cluster.store_trouble
        await cluster.change(new_token)
        assert not cluster.store_trouble
        with pytest.raises(RefusedError):  # the node writes it itself at the same time
            await cluster.change(publish_it)
        assert not cluster.store_trouble

    with_cluster(tmp_path, body)


def test_a_presence_that_the_store_does_not_take_is_trouble_beside_what_it_takes(
    tmp_path: Path,
) -> None:
    async def body(store: OneByOneStore, cluster: Cluster) -> None:
        await cluster.change(lambda tables: join(tables, 1, "n1"))
        store.fails = is_presence
        await asyncio.gather(
            cluster.change(new_token), cluster.change(publish_it), return_exceptions=True
        )
        assert PRESENCE in cluster.store_trouble

    with_cluster(tmp_path, body)
