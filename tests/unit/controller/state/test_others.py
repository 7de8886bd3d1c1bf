"""What others write to the store is taken, put right, or written again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace as replace_fields

from limpet.base.bounds.neighbours import CHANGES_AT_ONCE
from limpet.cluster.api import token_id
from limpet.cluster.documents import Key, Sealed
from limpet.cluster.keys import public_key_of
from limpet.cluster.kinds import GRANT, NETWORK, POLICY, PRESENCE
from limpet.cluster.kinds.grant import Grant
from limpet.cluster.kinds.policy import SignedPolicy
from limpet.cluster.seal import open_sealed, seal
from limpet.controller.registry.others import follow_others
from limpet.controller.registry.records import (
    COMMUNITY,
    NODE,
    SEGMENT,
    TOKEN,
    CommunityRecord,
    DocumentRecord,
    NodeRecord,
    PresenceRecord,
    record_types,
)
from limpet.controller.registry.refusal import RefusedError
from limpet.controller.registry.registry import Registry
from limpet.controller.registry.rotation import rotate_key
from limpet.controller.registry.tables import Tables, live_uids
from limpet.controller.state import nodes, tokens
from limpet.controller.state.authority import create_cluster, remake_network
from limpet.controller.state.problems import problems_of
from limpet.controller.state.published import publish
from limpet.controller.store.interface import (
    Change,
    ConflictError,
    Delete,
    Event,
    Listing,
    StorePut,
    TooOldError,
)
from limpet.controller.store.sqlite import SqliteStore
from tests.unit.cluster_values import grant, node_key, presence
from tests.unit.controller.state.cluster_tables import join, network, new_tables, new_token
from tests.waiting import PATIENCE_S, until

Body = Callable[[SqliteStore, Registry], Awaitable[None]]


def with_registry(path: Path, body: Body) -> None:
    """One that follows what others write, with node 1 in its cluster."""

    async def run() -> None:
        store = SqliteStore(path / "store.db")
        registry = Registry(store, 0.0)
        since = (await store.listing(NODE)).version
        await registry.start()
        await registry.change(lambda tables: create_cluster(tables, network()))
        await registry.change(lambda tables: join(tables, 1, "n1"))
        heard: list[Key] = []

        async def hear(key: Key) -> None:
            heard.append(key)

        following = asyncio.create_task(follow_others(store, registry, since, hear))
        try:
            await body(store, registry)
        finally:
            following.cancel()
            await asyncio.wait((following,))
            await registry.stop()
            await store.close()

    asyncio.run(run())


def said(sequence: int, key: int = 1) -> bytes:
    document = seal(PRESENCE, presence(1, sequence), node_key(key))
    return msgspec.json.encode(PresenceRecord(document.sealed, sequence, "boot", (), 0.0))


def sealed(sequence: int, number: int = 1) -> Sealed:
    return seal(PRESENCE, presence(number, sequence), node_key(number)).sealed


UID = presence(1).uid


def test_a_presence_that_the_node_wrote_itself_is_taken(tmp_path: Path) -> None:
    async def body(store: SqliteStore, registry: Registry) -> None:
        (version,) = await store.write([StorePut(PRESENCE.name, UID, said(7))])
        await until(lambda: registry.has_written(PRESENCE.name, UID, version))
        held = await registry.change(lambda tables: tables.presence(UID))
        assert held is not None
        assert held.sequence == 7

        await store.write([Delete(PRESENCE.name, UID, version)])
        await until(lambda: not registry.has_written(PRESENCE.name, UID, version))
        assert await registry.change(lambda tables: tables.presence(UID)) is None

    with_registry(tmp_path, body)


def test_a_presence_of_another_key_or_an_older_one_is_put_right(tmp_path: Path) -> None:
    async def body(store: SqliteStore, registry: Registry) -> None:
        (version,) = await store.write([StorePut(PRESENCE.name, UID, said(7))])
        await until(lambda: registry.has_written(PRESENCE.name, UID, version))
        for wrong in (said(9, key=2), said(3)):
            item = await store.get(PRESENCE.name, UID)
            assert item is not None
            await store.write([StorePut(PRESENCE.name, UID, wrong, item.version)])
            while (item := await store.get(PRESENCE.name, UID)) is None or item.value != said(7):
                await asyncio.sleep(0)

    with_registry(tmp_path, body)


def test_grants_and_segments_that_were_deleted_by_hand_come_back(tmp_path: Path) -> None:
    async def body(store: SqliteStore, registry: Registry) -> None:
        before = {}
        for kind in (NODE, SEGMENT, NETWORK.name):
            (item,) = (await store.listing(kind)).items
            before[kind] = item
            await store.write([Delete(kind, item.name, item.version)])
        for kind, item in before.items():
            while (again := await store.get(kind, item.name)) is None:
                await asyncio.sleep(0)
            assert again.value == item.value

    with_registry(tmp_path, body)


def test_a_token_that_is_put_back_lets_in_nobody_whom_it_would_not_have_let_in(
    tmp_path: Path,
) -> None:
    async def body(store: SqliteStore, registry: Registry) -> None:
        removed, used = [token_id(await registry.change(new_token)) for _ in range(2)]
        before = {each: await store.get(TOKEN, each) for each in (removed, used)}
        await registry.change(lambda tables: tokens.remove_tokens(tables, [removed], 1.0))
        await registry.change(
            lambda tables: tables.put(
                TOKEN, used, replace_fields(tables.tokens[used], used_by=UID, held_since_s=1.0)
            )
        )
        held = await store.get(TOKEN, used)
        await registry.change(lambda tables: tokens.spend_token(tables, UID))

        for old in (before[removed], before[used], held):
            assert old is not None
            known = await store.get(TOKEN, old.name)
            assert known is not None
            assert known.value != old.value
            await store.write([StorePut(TOKEN, old.name, old.value, known.version)])
            while (item := await store.get(TOKEN, old.name)) is None or item.value != known.value:
                await asyncio.sleep(0)

    with_registry(tmp_path, body)


def test_a_community_that_was_edited_is_read(tmp_path: Path) -> None:
    async def body(store: SqliteStore, registry: Registry) -> None:
        value = msgspec.json.encode(CommunityRecord("site=harbour"))
        (version,) = await store.write([StorePut(COMMUNITY, "harbour", value)])
        await until(lambda: registry.has_written(COMMUNITY, "harbour", version))
        held: Any = await registry.change(lambda tables: tables.communities["harbour"])
        assert held.selector == "site=harbour"

    with_registry(tmp_path, body)


def test_a_network_that_is_gone_is_signed_again_by_keys_that_count() -> None:
    tables = new_tables()
    grant = join(tables, 1, "n1")
    rotate_key(tables, node_key(99))
    (segment,) = grant.segments
    former = tables.network
    pinned = tables.pinned
    records = {kind: dict(tables._records[kind]) for kind in tables._records}
    again = Tables(0.0)
    for kind, found in records.items():
        for name, record in found.items():
            if kind != NETWORK.name:
                again.load(kind, name, msgspec.json.encode(record), type(record))
    assert not again.has_network

    remake_network(again, network())

    assert again.network.keys == former.keys
    assert again.pinned == pinned == public_key_of(again.authority.cluster_keys[0])
    assert segment in again.space.holdings
    assert open_sealed(again.nodes[grant.uid].sealed, again).value.name == "n1"


class Forgetful(SqliteStore):
    """Others write a community while it is followed, and it knows no more what they wrote."""

    async def watch(self, kinds: Collection[str], since: str) -> AsyncGenerator[Event, None]:
        if await self.get(COMMUNITY, "cranes") is None:
            await self.write(
                [StorePut(COMMUNITY, "cranes", msgspec.json.encode(CommunityRecord()))]
            )
            raise TooOldError("watch: that is no longer known")
        async for event in super().watch(kinds, since):
            yield event


def test_what_was_written_while_nothing_was_told_is_heard_when_all_is_read_again(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        store = Forgetful(tmp_path / "store.db")
        registry = Registry(store, 0.0)
        await registry.start()
        await registry.change(lambda tables: create_cluster(tables, network()))
        heard: list[Key] = []

        async def hear(key: Key) -> None:
            heard.append(key)

        mark = await store.mark([COMMUNITY])
        following = asyncio.create_task(follow_others(store, registry, mark, hear))
        await until(lambda: (COMMUNITY, "cranes") in heard)
        following.cancel()
        await asyncio.wait((following,))
        await registry.stop()
        await store.close()

    asyncio.run(run())


def test_after_an_error_that_nobody_has_foreseen_others_are_followed_as_before(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        store = SqliteStore(tmp_path / "store.db")
        registry = Registry(store, 0.0)
        await registry.start()
        await registry.change(lambda tables: create_cluster(tables, network()))
        heard: list[Key] = []

        async def hear(key: Key) -> None:
            heard.append(key)
            if len(heard) == 1:
                raise RuntimeError("no new thread")

        mark = await store.mark([COMMUNITY])
        following = asyncio.create_task(follow_others(store, registry, mark, hear))
        for name in ("cranes", "diggers"):
            record = msgspec.json.encode(CommunityRecord())
            await store.write([StorePut(COMMUNITY, name, record)])
            await until(lambda name=name: (COMMUNITY, name) in heard)  # type: ignore[misc]
        following.cancel()
        await asyncio.wait((following,))
        await registry.stop()
        await store.close()

    asyncio.run(run())


def test_a_node_that_writes_on_and_on_is_heard_now_and_then_and_as_it_is_by_then(
    tmp_path: Path,
) -> None:
    """Each presence that is heard goes on to all others."""
    times = 3 * CHANGES_AT_ONCE.most

    async def run() -> list[Key]:
        store = SqliteStore(tmp_path / "store.db")
        registry = Registry(store, 0.0)
        await registry.start()
        await registry.change(lambda tables: create_cluster(tables, network()))
        await registry.change(lambda tables: join(tables, 1, "n1"))
        heard: list[Key] = []
        turns = asyncio.Semaphore(0)

        async def hear(key: Key) -> None:
            heard.append(key)
            turns.release()

        mark = await store.mark(list(record_types()))
        following = asyncio.create_task(follow_others(store, registry, mark, hear))
        version = None
        for number in range(times):
            put = StorePut(PRESENCE.name, UID, said(10 + number), version)
            (version,) = await store.write([put])
            if number < CHANGES_AT_ONCE.most:
                await asyncio.wait_for(turns.acquire(), PATIENCE_S)

        async def is_newest() -> bool:
            held = await registry.change(lambda tables: tables.presence(UID))
            return held is not None and held.sequence == 10 + times - 1

        async with asyncio.timeout(PATIENCE_S):
            while not await is_newest():
                await turns.acquire()
        following.cancel()
        await asyncio.wait((following,))
        await registry.stop()
        await store.close()
        return heard

    assert len(asyncio.run(run())) < times - 10


def test_presences_that_nobody_signed_or_of_nobody_are_not_taken_when_all_is_read(
    tmp_path: Path,
) -> None:
    """As a node can write them at Kubernetes, where they are objects."""

    async def body(store: SqliteStore, registry: Registry) -> None:
        nobodys = seal(PRESENCE, presence(77, 1), node_key(1))
        record = PresenceRecord(nobodys.sealed, 1, "boot", (), 0.0)
        await store.write(
            [
                StorePut(PRESENCE.name, UID, said(1 << 40, key=2)),
                StorePut(PRESENCE.name, nobodys.name, msgspec.json.encode(record)),
            ]
        )
        other = Registry(store, 0.0)
        await other.start()
        assert await other.change(lambda tables: dict(tables.presences)) == {}
        assert set(other.unreadable) == {(PRESENCE.name, UID), (PRESENCE.name, nobodys.name)}
        await other.change(lambda tables: publish(tables, UID, sealed(3), 0.0))
        presence_now = await other.change(lambda tables: tables.presence(UID))
        assert presence_now is not None
        assert presence_now.sequence == 3
        await other.change(lambda tables: rotate_key(tables, node_key(200)))
        await other.stop()

    with_registry(tmp_path, body)


def test_grants_and_policies_that_the_cluster_has_not_signed_are_not_read(tmp_path: Path) -> None:
    """From another cluster, or forged; what a former key has signed counts."""

    async def body(store: SqliteStore, registry: Registry) -> None:
        foreign = seal(GRANT, grant(9, name="n9", revision=10**6), node_key(201))
        policy = SignedPolicy("NetworkPolicy/shop/web", 10**6, {})
        strange = seal(POLICY, policy, node_key(201))
        former = await registry.change(lambda tables: tables.nodes[UID])
        await registry.change(lambda tables: rotate_key(tables, node_key(200)))
        item = await store.get(NODE, UID)
        assert item is not None
        lies = [
            StorePut(NODE, UID, msgspec.json.encode(former), item.version),
            StorePut(NODE, foreign.name, msgspec.json.encode(NodeRecord(foreign.sealed, 0.0))),
            StorePut(
                POLICY.name, strange.name, msgspec.json.encode(DocumentRecord(strange.sealed))
            ),
        ]
        await store.write(lies)

        other = Registry(store, 0.0)
        await other.start()

        assert await other.change(live_uids) == [UID]
        assert await other.change(lambda tables: tables.find(strange.key)) is None
        assert other.unreadable.keys() == {foreign.key, strange.key}
        assert "no key of this cluster has signed it" in other.unreadable[foreign.key]
        await other.stop()

    with_registry(tmp_path, body)


def test_a_grant_of_nobodys_that_is_put_into_the_store_makes_no_member(tmp_path: Path) -> None:
    async def body(store: SqliteStore, registry: Registry) -> None:
        foreign = seal(GRANT, grant(9, name="n9", revision=10**6), node_key(201))
        record = NodeRecord(foreign.sealed, 0.0)
        (version,) = await store.write([StorePut(NODE, foreign.name, msgspec.json.encode(record))])
        await until(lambda: registry.has_written(NODE, foreign.name, version))
        assert not registry.is_member(foreign.name)
        assert foreign.key in registry.unreadable

    with_registry(tmp_path, body)


class Hostile(SqliteStore):
    """One node writes its presence whenever the controller is about to."""

    hostile_uid = ""
    readings = 0

    async def listing(self, kind: str) -> Listing:
        self.readings += 1
        return await super().listing(kind)

    async def write(self, changes: Sequence[Change]) -> list[str]:
        for each in changes:
            if (each.kind, each.name) == (PRESENCE.name, self.hostile_uid):
                raise ConflictError(each.kind, each.name, "it was changed by another")
        return await super().write(changes)


def test_a_node_that_writes_its_presence_all_the_time_is_in_nobody_elses_way(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        store = Hostile(tmp_path / "store.db")
        registry = Registry(store, 0.0)
        await registry.start()
        await registry.change(lambda tables: create_cluster(tables, network()))
        await registry.change(lambda tables: join(tables, 1, "n1"))
        evil = (await registry.change(lambda tables: join(tables, 2, "evil"))).uid
        await registry.change(lambda tables: publish(tables, evil, sealed(1, 2), 0.0))
        store.hostile_uid, store.readings = evil, 0

        refused, _, joined = await asyncio.gather(
            registry.change(lambda tables: publish(tables, evil, sealed(2, 2), 0.0)),
            registry.change(lambda tables: publish(tables, UID, sealed(5), 0.0)),
            registry.change(lambda tables: join(tables, 3, "n3")),
            return_exceptions=True,
        )
        assert isinstance(refused, RefusedError)
        assert isinstance(joined, Grant)
        assert await registry.change(lambda tables: tables.versions(evil)) == {PRESENCE.name: 1}
        assert await registry.change(lambda tables: tables.versions(UID)) == {PRESENCE.name: 5}
        await registry.change(lambda tables: nodes.remove(tables, evil, 0.0))
        assert store.readings == 0
        store.hostile_uid = ""
        await registry.change(lambda tables: None)
        assert await store.get(PRESENCE.name, evil) is None
        await registry.stop()
        await store.close()

    asyncio.run(run())


def test_who_names_the_endpoint_of_a_presence_of_nobody_is_told_as_others_are() -> None:
    tables = new_tables()
    grant = join(tables, 1, "n1")
    endpoints = ((ip_address("203.0.113.9"), 7000),)
    for number in (1, 77):
        tables.put_document(seal(PRESENCE, presence(number, endpoints=endpoints), node_key(number)))
    assert problems_of(tables, grant, 0.0) == []
