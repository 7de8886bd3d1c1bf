"""A commit that is cut off in the midst, as at Kubernetes: the next leader goes on from there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import ip_network
from pathlib import Path

import pytest
from msgspec.structs import replace as replace_fields

from limpet.base.addresses import Prefix
from limpet.base.errors import LimpetError, StorageError
from limpet.cluster.api import JoinRequest, join_proof, token_id
from limpet.cluster.documents import Known, Sealed
from limpet.cluster.keys import public_key_of, uid_of
from limpet.cluster.kinds import GRANT, KINDS, NETWORK
from limpet.cluster.kinds.grant import Grant, Role
from limpet.cluster.merge import merge
from limpet.cluster.seal import open_sealed
from limpet.controller.communities import communities
from limpet.controller.registry.records import (
    AUTHORITY,
    COMMUNITY,
    NODE,
    STATE,
    TOKEN,
    CommunityRecord,
    NodeRecord,
    SegmentRecord,
    record_types,
)
from limpet.controller.registry.refusal import RefusedError
from limpet.controller.registry.tables import Tables, live_uids
from limpet.controller.settings import ControllerSettings
from limpet.controller.state import grants, nodes, recovery
from limpet.controller.state.cluster import Cluster
from limpet.controller.state.grants import JoinedNode
from limpet.controller.state.published import publish
from limpet.controller.state.tokens import (
    HELD_S,
    TokenState,
    remove_tokens,
    spend_token,
    state_of,
)
from limpet.controller.store.interface import Change, ConflictError, Delete, Item, StorePut
from limpet.controller.store.sqlite import SqliteStore
from tests.unit.cluster_values import node_key, presence, seal_presence
from tests.unit.controller.state.cluster_tables import join, join_with, new_tables, new_token

Fails = Callable[[Change], bool]


class OneByOneStore(SqliteStore):
    """Writes every change by itself, and fails where it is told to."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.fails: Fails = lambda change: False
        self.conflicts: Fails = lambda change: False
        self.wrote: list[Change] = []

    async def write(self, changes: Sequence[Change]) -> list[str]:
        versions: list[str] = []
        for change in changes:
            if self.fails(change):
                raise StorageError("write", change.kind, "the API server went away")
            if self.conflicts(change):
                raise ConflictError(change.kind, change.name, "it was changed by another")
            versions += await super().write([change])
            self.wrote.append(change)
        return versions

    def cut_off(self, *, after: int) -> None:
        """From now on so many changes are written, and no more."""
        self.wrote.clear()
        self.fails = lambda change: len(self.wrote) >= after


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
    store.wrote.clear()
    cluster = Cluster(store, ControllerSettings())
    await cluster.start()
    return cluster


async def fails(change: Awaitable[object]) -> None:
    with pytest.raises(StorageError):
        await change


def lasting_token(tables: Tables) -> str:
    token = new_token(tables)
    record = replace_fields(tables.tokens[token_id(token)], expires_at_s=1e12)
    tables.put(TOKEN, token_id(token), record)
    return token


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


@pytest.mark.parametrize("written", range(5))
def test_a_join_that_is_cut_off_anywhere_lets_in_who_asks_again(
    tmp_path: Path, written: int
) -> None:
    async def body(store: OneByOneStore, cluster: Cluster) -> None:
        token = await cluster.change(lasting_token)
        store.cut_off(after=written)
        await fails(cluster.change(lambda tables: join_with(tables, token, 1, "n1")))
        assert len(store.wrote) == written
        following = await next_leader(store)
        for each in (cluster, following):
            grant = await each.change(lambda tables: join_with(tables, token, 1, "n1"))
            assert (grant.uid, len(grant.segments)) == (uid_of(public_key_of(node_key(1))), 2)
            with pytest.raises(RefusedError):
                await each.change(lambda tables: join_with(tables, token, 2, "n2"))
        await following.stop()

    with_cluster(tmp_path, body)


def test_who_was_cut_off_in_its_join_can_be_shut_out_by_removing_its_token(tmp_path: Path) -> None:
    async def body(store: OneByOneStore, cluster: Cluster) -> None:
        token = await cluster.change(lasting_token)
        store.fails = lambda change: change.kind == NODE
        await fails(cluster.change(lambda tables: join_with(tables, token, 1, "n1")))
        following = await next_leader(store)
        removed = await following.change(lambda tables: remove_tokens(tables, (), 1.0, every=True))
        assert removed.removed == (token_id(token),)
        with pytest.raises(RefusedError, match="administrator removed"):
            await following.change(lambda tables: join_with(tables, token, 1, "n1"))
        await following.stop()

    with_cluster(tmp_path, body)


def holders(tables: Tables) -> list[tuple[str, bool]]:
    """Of each segment: whose, and whether it rests."""
    found = tables.space.holdings.values()
    return [(each.uid, each.resting_since_s is not None) for each in found]


def publish_first(tables: Tables) -> str:
    """A node with a presence; its uid."""
    uid = join(tables, 1, "n1").uid
    publish(tables, uid, seal_presence(presence(1, 7), node_key(1)), 0.0)
    return uid


@pytest.mark.parametrize("written", range(4))
def test_a_removal_that_is_cut_off_anywhere_leaves_the_removed_node_nothing(
    tmp_path: Path, written: int
) -> None:
    async def body(store: OneByOneStore, cluster: Cluster) -> None:
        uid = await cluster.change(publish_first)
        store.cut_off(after=written)
        await fails(cluster.remove("n1"))
        following = await next_leader(store)
        if not await following.change(lambda tables: tables.grants[uid].tombstone):
            await following.remove("n1")
        assert await following.change(holders) == [(uid, True)] * 2
        assert await cluster.remove(uid) == uid  # which knows nothing of it as yet
        assert await cluster.change(holders) == [(uid, True)] * 2
        await following.stop()

    with_cluster(tmp_path, body)


@pytest.mark.parametrize("written", range(5))
def test_after_a_removal_that_is_cut_off_anywhere_the_next_machine_of_the_name_is_in_what_names_it(
    tmp_path: Path, written: int
) -> None:
    async def body(store: OneByOneStore, cluster: Cluster) -> None:
        def two_of_a_name(tables: Tables) -> tuple[str, str]:
            tables.put(COMMUNITY, "vault", CommunityRecord(members=("n1",)))
            return join(tables, 1, "n1", 1.0).uid, join(tables, 2, "n1", 2.0).uid

        first, second = await cluster.change(two_of_a_name)
        store.cut_off(after=written)
        await fails(cluster.remove(first))
        store.fails = lambda change: False
        await cluster.remove(first)
        grant = await cluster.change(lambda tables: tables.grants[second])
        assert grant.communities == ("vault",)

    with_cluster(tmp_path, body)


def test_a_removal_goes_through_while_the_node_writes_its_presence(tmp_path: Path) -> None:
    async def body(store: OneByOneStore, cluster: Cluster) -> None:
        uid = await cluster.change(publish_first)

        def once(change: Change) -> bool:
            if isinstance(change, Delete):
                store.conflicts = lambda change: False
            return isinstance(change, Delete)

        store.conflicts = once
        assert await cluster.remove("n1") == uid
        assert await cluster.change(holders) == [(uid, True)] * 2

    with_cluster(tmp_path, body)


def test_what_a_removed_node_still_holds_rests_when_it_is_removed_again() -> None:
    tables = new_tables()
    uid = publish_first(tables)
    nodes.remove(tables, uid, 1.0)
    prefix = next(iter(tables.space.holdings))
    tables.put_segment(prefix, SegmentRecord(uid))
    assert nodes.remove(tables, uid, 2.0).uid == uid
    assert holders(tables) == [(uid, True)]
    with pytest.raises(RefusedError, match="was removed"):
        nodes.remove(tables, uid, 3.0)


@pytest.mark.parametrize("written", range(12))
def test_a_recovery_that_begins_and_is_cut_off_leaves_no_token_and_no_replacement_of_before(
    tmp_path: Path, written: int
) -> None:
    async def body(store: OneByOneStore, cluster: Cluster) -> None:
        await cluster.change(two_nodes)
        await cluster.change(lambda tables: nodes.await_replacement(tables, "n2", wanted=True))
        tokens = [await cluster.change(lasting_token) for _ in range(2)]
        state = await store.get(STATE, STATE)
        assert state is not None
        await store.write([Delete(STATE, STATE, state.version)])
        store.cut_off(after=written)
        await fails(Cluster(store, ControllerSettings()).start())

        following = await next_leader(store)
        assert await following.change(lambda tables: tables.state.recovery)
        await following.change(recovery.resume)
        for token in tokens:
            with pytest.raises(RefusedError, match="nobody made this token"):
                await following.change(lambda tables: join_with(tables, token, 3, "n3"))  # noqa: B023
        assert not await following.change(
            lambda tables: [uid for uid, each in tables.nodes.items() if each.awaits_replacement]
        )
        await following.stop()

    with_cluster(tmp_path, body)


async def put_back(store: OneByOneStore, copy: list[Item]) -> None:
    """The store is as it was once, and the controller goes on."""
    for kind in record_types():
        for item in (await store.listing(kind)).items:
            await store.write([Delete(kind, item.name, item.version)])
    for item in copy:
        await store.write([StorePut(item.kind, item.name, item.value)])


@pytest.mark.parametrize("written", range(8))
def test_what_a_store_that_was_put_back_has_lost_is_written_whatever_fails(
    tmp_path: Path, written: int
) -> None:
    async def body(store: OneByOneStore, cluster: Cluster) -> None:
        token = await cluster.change(lasting_token)
        await cluster.change(two_nodes)
        kinds = record_types()
        copy = [item for kind in kinds for item in (await store.listing(kind)).items]
        removed = await cluster.remove("n2")
        third = await cluster.change(lambda tables: join_with(tables, token, 3, "n3"))
        await put_back(store, copy)
        store.cut_off(after=written)
        await fails(cluster._registry.read_again())
        store.fails = lambda change: False
        fourth = await cluster.change(lambda tables: join(tables, 4, "n4"))
        assert not set(third.segments) & set(fourth.segments)

        following = await next_leader(store)
        known = await following.change(lambda tables: dict(tables.grants))
        assert known[removed].tombstone
        assert known[third.uid].segments == third.segments
        assert not await following.change(lambda tables: tables.state.recovery)
        with pytest.raises(RefusedError):
            await following.change(lambda tables: join_with(tables, token, 5, "n5"))
        await following.stop()

    with_cluster(tmp_path, body)


def test_a_store_that_is_half_put_right_is_recovered_by_the_next_leader(tmp_path: Path) -> None:
    async def body(store: OneByOneStore, cluster: Cluster) -> None:
        await cluster.change(two_nodes)
        kinds = record_types()
        copy = [item for kind in kinds for item in (await store.listing(kind)).items]
        third = await cluster.change(lambda tables: join(tables, 3, "n3"))
        await put_back(store, copy)
        store.fails = lambda change: change.kind == STATE
        await fails(cluster._registry.read_again())

        following = await next_leader(store)
        assert third.uid in await following.change(lambda tables: dict(tables.grants))
        assert await following.change(lambda tables: tables.state.recovery)
        await following.stop()

    with_cluster(tmp_path, body)


def test_a_grant_that_was_deleted_by_hand_is_written_at_the_next_try(tmp_path: Path) -> None:
    async def body(store: OneByOneStore, cluster: Cluster) -> None:
        await cluster.change(two_nodes)
        (uid,) = await cluster.change(lambda tables: tables.uids_of("n1"))
        for problem in ("fails", "conflicts"):
            item = await store.get(NODE, uid)
            assert item is not None
            await store.write([Delete(NODE, uid, item.version)])
            store.fails = lambda change: problem == "fails" and change.kind == NODE  # noqa: B023
            store.conflicts = lambda change: change.kind == NODE
            with pytest.raises(LimpetError):
                await cluster._registry.hear({(NODE, uid)})
            store.fails = store.conflicts = lambda change: False
            await cluster._registry.hear({(NODE, uid)})
            assert await store.get(NODE, uid) is not None

    with_cluster(tmp_path, body)


def test_a_grant_that_was_put_back_by_hand_is_written_at_the_next_try(tmp_path: Path) -> None:
    async def body(store: OneByOneStore, cluster: Cluster) -> None:
        await cluster.change(two_nodes)
        (uid,) = await cluster.change(lambda tables: tables.uids_of("n1"))
        old = await store.get(NODE, uid)
        assert old is not None
        await cluster.change(lambda tables: nodes.label(tables, "n1", {"site": "harbour"}, ()))
        now = await store.get(NODE, uid)
        assert now is not None
        await store.write([StorePut(NODE, uid, old.value, now.version)])
        store.conflicts = lambda change: change.kind == NODE
        with pytest.raises(LimpetError):
            await cluster._registry.hear({(NODE, uid)})
        store.conflicts = lambda change: False
        await cluster._registry.hear({(NODE, uid)})
        again = await store.get(NODE, uid)
        assert again is not None
        assert again.value == now.value

    with_cluster(tmp_path, body)


def join_by_account(tables: Tables, number: int) -> JoinedNode:
    key, token = node_key(number), "account.of.n1"
    request = JoinRequest(token, "n1", public_key_of(key), join_proof(token, "n1", key))
    return grants.join_by_account(tables, request, 0.0)


def furnish(tables: Tables) -> None:
    """A relay with two segments of a family, a prefix behind it, and in a community by name."""
    uid = tables.uids_of("n1")[0]
    communities.create(tables, "harbour", ["n1"])
    behind = frozenset({ip_network("192.168.7.0/24")})
    nodes.set_node(
        tables, "n1", nodes.Altered(frozenset({Role.RELAY})), nodes.Altered(behind), anyway=True
    )
    grants.request_segments(tables, uid, tables.grants[uid].generation, (4,), 0.0)


def terms(grant: Grant) -> tuple[object, ...]:
    return grant.name, grant.roles, grant.communities, grant.prefixes_behind, grant.segments


@pytest.mark.parametrize("written", range(6))
@pytest.mark.parametrize("by_account", [True, False])
def test_who_replaces_a_machine_has_all_of_it_where_that_is_cut_off_anywhere(
    tmp_path: Path, written: int, *, by_account: bool
) -> None:
    async def body(store: OneByOneStore, cluster: Cluster) -> None:
        token = await cluster.change(lasting_token)

        def first(tables: Tables) -> Grant:
            if by_account:
                join_by_account(tables, 1)
            else:
                join_with(tables, token, 1, "n1")
            furnish(tables)
            nodes.await_replacement(tables, "n1", wanted=by_account)
            return tables.grants[tables.uids_of("n1")[0]]

        def second(tables: Tables) -> str:
            if by_account:
                return join_by_account(tables, 2).uid
            return join_with(tables, token, 2, "n1", 2 * HELD_S).uid

        dead = await cluster.change(first)
        store.cut_off(after=written)
        await fails(cluster.change(second))
        following = await next_leader(store)
        uid = await following.change(second)
        known = await following.change(lambda tables: dict(tables.grants))
        assert terms(known[uid]) == terms(dead)
        assert known[dead.uid].tombstone
        assert await following.change(lambda tables: tables.nodes[dead.uid].replaced_by) == uid
        assert {each for each, _ in await following.change(holders)} == {uid}
        await following.stop()

    with_cluster(tmp_path, body)


def segments_of_several(tables: Tables) -> set[Prefix]:
    """Those that more than one node has."""
    live = [prefix for uid in live_uids(tables) for prefix in tables.grants[uid].segments]
    return {prefix for prefix in live if live.count(prefix) > 1}


@pytest.mark.parametrize("written", range(5))
@pytest.mark.parametrize("called_off", [True, False])
def test_who_took_no_place_in_the_end_has_nothing_of_the_node_that_is_there(
    tmp_path: Path, written: int, *, called_off: bool
) -> None:
    """It was cut off when it took that one's place, and comes by another token, or that one is
    back."""

    async def body(store: OneByOneStore, cluster: Cluster) -> None:
        token = await cluster.change(lasting_token)

        def first(tables: Tables) -> Grant:
            grant = join(tables, 1, "n1") if called_off else join_with(tables, token, 1, "n1")
            nodes.await_replacement(tables, grant.uid, wanted=called_off)
            return grant

        there = await cluster.change(first)
        store.cut_off(after=written)
        await fails(cluster.change(lambda tables: join_with(tables, token, 2, "n1", 2 * HELD_S)))
        following = await next_leader(store)
        if called_off:
            await following.change(
                lambda tables: nodes.await_replacement(tables, there.uid, wanted=False)
            )
        again = token if called_off else await following.change(lasting_token)
        came = await following.change(lambda tables: join_with(tables, again, 2, "n1", 3 * HELD_S))
        known = await following.change(lambda tables: tables.grants[there.uid])
        assert (known.tombstone, known.segments) == (False, there.segments)
        assert len(came.segments) == len(there.segments)
        assert not await following.change(segments_of_several)
        await following.remove(came.uid)
        assert sorted(await following.change(holders)) == sorted(
            [(there.uid, False)] * 2 + [(came.uid, True)] * 2
        )
        await following.stop()

    with_cluster(tmp_path, body)


def test_who_confirms_while_another_is_cut_off_in_taking_its_place_stays(tmp_path: Path) -> None:
    async def body(store: OneByOneStore, cluster: Cluster) -> None:
        token = await cluster.change(lasting_token)
        there = await cluster.change(lambda tables: join_with(tables, token, 1, "n1"))
        store.fails = lambda change: change.kind == NODE
        await fails(cluster.change(lambda tables: join_with(tables, token, 2, "n1", 2 * HELD_S)))
        following = await next_leader(store)
        with pytest.raises(RefusedError, match="as n1"):
            await following.change(lambda tables: join_with(tables, token, 2, "n2", 3 * HELD_S))
        await following.change(lambda tables: spend_token(tables, there.uid))
        with pytest.raises(RefusedError, match="used by another node"):
            await following.change(lambda tables: join_with(tables, token, 2, "n1", 3 * HELD_S))
        assert await following.change(live_uids) == [there.uid]
        await following.stop()

    with_cluster(tmp_path, body)


def run_by_flannel(tables: Tables) -> None:
    prefix, key = tables.space.segment(4, 7), node_key(9)
    flannel = Grant(
        uid=uid_of(public_key_of(key)),
        name="n1",
        public_key=public_key_of(key),
        generation=1,
        revision=tables.next_revision(),
        segments=(prefix,),
        roles=frozenset({Role.FLANNEL}),
    )
    tables.hold(prefix, flannel.uid)
    tables.sign(GRANT, flannel, NodeRecord(Sealed(GRANT.name, b"", b""), 0.0))


@pytest.mark.parametrize("written", range(6))
def test_who_joins_where_flannel_ran_is_no_node_of_flannels_where_that_is_cut_off_anywhere(
    tmp_path: Path, written: int
) -> None:
    async def body(store: OneByOneStore, cluster: Cluster) -> None:
        await cluster.change(run_by_flannel)
        token = await cluster.change(lasting_token)
        store.cut_off(after=written)
        await fails(cluster.change(lambda tables: join_with(tables, token, 1, "n1")))
        following = await next_leader(store)
        grant = await following.change(lambda tables: join_with(tables, token, 1, "n1"))
        assert grant.roles == {Role.EDGE}
        assert await following.change(lambda tables: tables.space.segment(4, 7)) in grant.segments
        assert await following.change(live_uids) == [grant.uid]
        await following.stop()

    with_cluster(tmp_path, body)


def test_what_a_machine_holds_that_was_cut_off_and_never_asks_again_rests_when_it_is_removed(
    tmp_path: Path,
) -> None:
    async def body(store: OneByOneStore, cluster: Cluster) -> None:
        token = await cluster.change(lasting_token)
        store.fails = lambda change: change.kind == TOKEN
        await fails(cluster.change(lambda tables: join_with(tables, token, 1, "n1")))
        gone = uid_of(public_key_of(node_key(1)))
        following = await next_leader(store)
        assert await following.change(holders) == [(gone, False)] * 2
        store.cut_off(after=1)
        await fails(following.remove(gone))
        store.fails = lambda change: False
        assert await following.remove(gone) == gone
        assert await following.change(holders) == [(gone, True)] * 2
        with pytest.raises(RefusedError, match="there is none"):
            await following.remove(gone)
        await following.stop()

    with_cluster(tmp_path, body)


def test_a_token_lets_in_another_where_the_machine_that_holds_it_was_cut_off_and_gave_up(
    tmp_path: Path,
) -> None:
    async def body(store: OneByOneStore, cluster: Cluster) -> None:
        token = await cluster.change(lasting_token)
        store.fails = lambda change: change.kind == NODE
        await fails(cluster.change(lambda tables: join_with(tables, token, 1, "n1")))
        following = await next_leader(store)
        with pytest.raises(RefusedError, match="if it gave up, ask again"):
            await following.change(lambda tables: join_with(tables, token, 2, "n1", HELD_S - 1))
        later = await following.change(lambda tables: join_with(tables, token, 2, "n1", HELD_S + 1))
        with pytest.raises(RefusedError, match="if it gave up, ask again"):
            await following.change(lambda tables: join_with(tables, token, 1, "n1", HELD_S + 2))
        assert await following.change(live_uids) == [later.uid]
        await following.stop()

    with_cluster(tmp_path, body)


async def cut_off_in_taking_a_place(store: OneByOneStore, cluster: Cluster) -> tuple[str, Cluster]:
    """Machine 2 was about to take machine 1's place, which has not confirmed its answer. The token
    of both, and who leads next."""
    token = await cluster.change(lasting_token)
    await cluster.change(lambda tables: join_with(tables, token, 1, "n1"))
    store.fails = lambda change: change.kind == NODE
    await fails(cluster.change(lambda tables: join_with(tables, token, 2, "n1", 2 * HELD_S)))
    return token, await next_leader(store)


def state_at(tables: Tables, token: str) -> TokenState:
    return state_of(tables, token_id(token), 2 * HELD_S)


def test_a_token_is_spent_when_whom_it_let_in_is_removed_also_where_it_names_another(
    tmp_path: Path,
) -> None:
    async def body(store: OneByOneStore, cluster: Cluster) -> None:
        token, following = await cut_off_in_taking_a_place(store, cluster)
        assert await following.change(lambda tables: state_at(tables, token)) is TokenState.HELD
        await following.remove("n1")
        assert await following.change(lambda tables: state_at(tables, token)) is TokenState.USED
        for number, name in ((3, "other"), (3, "n1"), (2, "n1")):
            with pytest.raises(RefusedError, match="used by another node"):
                await following.change(
                    lambda tables: join_with(tables, token, number, name, 4 * HELD_S)  # noqa: B023
                )
        assert await following.change(live_uids) == []
        await following.stop()

    with_cluster(tmp_path, body)


@pytest.mark.parametrize("is_removed", [True, False])
def test_who_confirms_keeps_its_place_whatever_became_of_who_was_about_to_take_it(
    tmp_path: Path, *, is_removed: bool
) -> None:
    """That one came by a token of its own, and may be removed."""

    async def body(store: OneByOneStore, cluster: Cluster) -> None:
        token, following = await cut_off_in_taking_a_place(store, cluster)
        (there,) = await following.change(live_uids)
        other = await following.change(lasting_token)
        await following.change(lambda tables: join_with(tables, other, 2, "n2", 3 * HELD_S))
        if is_removed:
            await following.remove("n2")
            assert await following.change(lambda tables: state_at(tables, token)) is TokenState.HELD
        await following.change(lambda tables: spend_token(tables, there))
        assert await following.change(lambda tables: state_at(tables, token)) is TokenState.USED
        for name in ("n1", "n2"):
            with pytest.raises(RefusedError, match="used by another node"):
                await following.change(
                    lambda tables: join_with(tables, token, 3, name, 5 * HELD_S)  # noqa: B023
                )
        assert there in await following.change(live_uids)
        await following.stop()

    with_cluster(tmp_path, body)


@pytest.mark.parametrize("ended", ["removed", "confirmed by the other", "neither"])
def test_whom_a_token_let_in_has_its_answer_again_where_the_token_names_another(
    tmp_path: Path, ended: str
) -> None:
    async def body(store: OneByOneStore, cluster: Cluster) -> None:
        token, following = await cut_off_in_taking_a_place(store, cluster)
        (there,) = await following.change(live_uids)
        if ended == "removed":
            ids = [token_id(token)]
            await following.change(lambda tables: remove_tokens(tables, ids, 2 * HELD_S))
        if ended == "confirmed by the other":
            other = await following.change(lasting_token)
            came = await following.change(lambda tables: join_with(tables, other, 2, "n2"))
            await following.change(lambda tables: spend_token(tables, came.uid))
        again = await following.change(
            lambda tables: join_with(tables, token, 1, "n1", 2 * HELD_S + 1)
        )
        assert again.uid == there
        with pytest.raises(RefusedError):
            await following.change(lambda tables: join_with(tables, token, 3, "n1", 3 * HELD_S))
        if ended == "confirmed by the other":
            with pytest.raises(RefusedError, match="used by another node"):
                await following.change(lambda tables: join_with(tables, token, 3, "n1", 9 * HELD_S))
        await following.stop()

    with_cluster(tmp_path, body)
