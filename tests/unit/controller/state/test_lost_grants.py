"""Machines that hold segments, and whose grants the controller does not know."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from limpet.base.errors import StorageError
from limpet.cluster.api import Code, HelloRequest, PodReport
from limpet.cluster.documents import Sealed
from limpet.cluster.keys import public_key_of, uid_of
from limpet.controller.api.node_requests import NodeRequests
from limpet.controller.registry.records import NODE, STATE
from limpet.controller.registry.refusal import RefusedError
from limpet.controller.registry.tables import live_uids
from limpet.controller.state import recovery
from limpet.controller.state.cluster import Cluster
from limpet.controller.state.published import publish
from limpet.controller.state.tokens import spend_token
from limpet.controller.store.interface import Delete, StorePut
from tests.unit.cluster_values import node_key, presence, seal_presence
from tests.unit.controller.state.cluster_tables import join, join_with
from tests.unit.controller.state.test_cut_off import (
    OneByOneStore,
    fails,
    holders,
    lasting_token,
    next_leader,
    with_cluster,
)

UID = uid_of(public_key_of(node_key(1)))


async def lose_grant(store: OneByOneStore, cluster: Cluster, *, nonsense: bool = False) -> Sealed:
    """While no controller runs. The grant, as its node has it."""
    sealed = await cluster.change(lambda tables: tables.nodes[UID].sealed)
    await cluster.stop()
    item = await store.get(NODE, UID)
    assert item is not None
    change = StorePut(NODE, UID, b"{}", item.version)
    await store.write([change if nonsense else Delete(NODE, UID, item.version)])
    return sealed


@pytest.mark.parametrize("left", ["unreadable", "presence", "report", "token"])
def test_a_node_whose_grant_is_lost_keeps_its_segments_and_is_removed_when_it_has_shown_it(
    tmp_path: Path, left: str
) -> None:
    async def body(store: OneByOneStore, cluster: Cluster) -> None:
        token = await cluster.change(lasting_token)
        await cluster.change(lambda tables: join_with(tables, token, 1, "n1"))
        if left == "presence":
            sealed = seal_presence(presence(1, 7), node_key(1))
            await cluster.change(lambda tables: publish(tables, UID, sealed, 0.0))
        if left == "report":
            await cluster.reports.put(UID, PodReport(1, (), None), 0.0, lambda size: None)
        if left == "token":
            await cluster.change(lambda tables: spend_token(tables, UID))
        shown = await lose_grant(store, cluster, nonsense=left == "unreadable")
        following = await next_leader(store)
        with pytest.raises(RefusedError, match="as soon as the node says hello"):
            await following.remove(UID)
        assert await following.change(holders) == [(UID, False)] * 2
        await following.change(lambda tables: recovery.absorb(tables, [shown], 8, 0.0))
        assert await following.remove(UID) == UID
        assert await following.change(lambda tables: tables.grants[UID].tombstone)
        assert await following.change(holders) == [(UID, True)] * 2
        await following.stop()

    with_cluster(tmp_path, body)


def test_nothing_of_an_unknown_machine_rests_while_the_controller_may_not_know_its_grant(
    tmp_path: Path,
) -> None:
    async def body(store: OneByOneStore, cluster: Cluster) -> None:
        await cluster.change(lambda tables: join(tables, 1, "n1"))
        await lose_grant(store, cluster)
        state = await store.get(STATE, STATE)
        assert state is not None
        await store.write([Delete(STATE, STATE, state.version)])
        following = await next_leader(store)
        with pytest.raises(RefusedError, match="when the recovery is over"):
            await following.remove(UID)
        assert (UID, False) in await following.change(holders)
        await following.stop()

    with_cluster(tmp_path, body)


def test_who_was_removed_without_a_grant_and_shows_one_has_a_tombstone_then(tmp_path: Path) -> None:
    async def body(store: OneByOneStore, cluster: Cluster) -> None:
        await cluster.change(lambda tables: join(tables, 1, "n1"))
        shown = await lose_grant(store, cluster)
        following = await next_leader(store)
        assert await following.remove(UID) == UID
        with pytest.raises(RefusedError, match="was removed") as caught:
            await NodeRequests(following).hello(UID, HelloRequest(1, (shown,)))
        assert caught.value.refused.code is Code.REMOVED
        third = await next_leader(store)
        assert await third.change(lambda tables: tables.grants[UID].tombstone)
        assert await third.change(holders) == [(UID, True)] * 2
        await following.stop()
        await third.stop()

    with_cluster(tmp_path, body)


def test_who_joins_after_what_it_had_left_behind_rests_is_taken_up_as_any_node(
    tmp_path: Path,
) -> None:
    async def body(store: OneByOneStore, cluster: Cluster) -> None:
        token = await cluster.change(lasting_token)
        store.fails = lambda change: change.kind == NODE
        await fails(cluster.change(lambda tables: join_with(tables, token, 1, "n1")))
        following = await next_leader(store)
        assert await following.remove(UID) == UID
        again = await following.change(lasting_token)
        await following.change(lambda tables: join_with(tables, again, 1, "n1"))
        shown = await lose_grant(store, following)
        third = await next_leader(store)
        assert await third.change(lambda tables: recovery.absorb(tables, [shown], 8, 0.0)) == 1
        assert await third.change(live_uids) == [UID]
        await third.stop()

    with_cluster(tmp_path, body)


def test_a_removed_node_whose_old_grant_is_put_back_is_removed_again(tmp_path: Path) -> None:
    async def body(store: OneByOneStore, cluster: Cluster) -> None:
        await cluster.change(lambda tables: join(tables, 1, "n1"))
        old = await store.get(NODE, UID)
        await cluster.remove(UID)
        await cluster.stop()
        tombstone = await store.get(NODE, UID)
        assert old is not None
        assert tombstone is not None
        await store.write([StorePut(NODE, UID, old.value, tombstone.version)])

        following = await next_leader(store)

        assert await following.change(live_uids) == []
        assert await following.change(lambda tables: tables.grants[UID].tombstone)
        assert await following.change(holders) == [(UID, True)] * 2
        await following.stop()

    with_cluster(tmp_path, body)


@pytest.mark.parametrize("written", range(8))
def test_a_machine_of_which_something_rests_stays_in_where_its_join_is_cut_off(
    tmp_path: Path, written: int
) -> None:
    async def body(store: OneByOneStore, cluster: Cluster) -> None:
        token = await cluster.change(lasting_token)
        store.fails = lambda change: change.kind == NODE
        await fails(cluster.change(lambda tables: join_with(tables, token, 1, "n1")))
        following = await next_leader(store)
        assert await following.remove(UID) == UID
        again = await following.change(lasting_token)
        store.cut_off(after=written)
        with contextlib.suppress(StorageError):
            await following.change(lambda tables: join_with(tables, again, 1, "n1"))
        third = await next_leader(store)
        await third.change(lambda tables: join_with(tables, again, 1, "n1"))
        assert await third.change(live_uids) == [UID]
        await third.stop()

    with_cluster(tmp_path, body)
