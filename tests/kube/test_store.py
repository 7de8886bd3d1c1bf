"""What every store promises, of the store at a real API server; and what only this one has to."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from limpet.cluster.documents import ByCluster, Key, Kind
from limpet.cluster.kinds import GRANT, KINDS, PRESENCE
from limpet.cluster.kinds.network import cluster_keys
from limpet.cluster.seal import seal
from limpet.controller.registry.others import follow_others
from limpet.controller.registry.records import (
    COMMUNITY,
    NODE,
    CommunityRecord,
    NodeRecord,
    PresenceRecord,
    record_types,
)
from limpet.controller.registry.registry import Registry
from limpet.controller.state.authority import create_cluster
from limpet.controller.state.published import publish
from limpet.controller.store.interface import (
    Change,
    Deleted,
    Event,
    Item,
    Listing,
    Store,
    StorePut,
)
from limpet.controller.store.kubernetes.store import KubernetesStore
from limpet.kubernetes.access.kubeconfig import find_access
from limpet.kubernetes.client import Client
from limpet.kubernetes.kinds.resources import document_object
from limpet.lab.kube.control_plane import ControlPlane
from tests.beds.store_suite import (  # noqa: F401 - the suite
    KEPT_DELETIONS,
    OpenStore,
    test_a_change_that_does_not_fit_changes_nothing,
    test_a_store_is_as_a_dictionary_that_is_written_by_one_at_a_time,
    test_a_version_that_was_compacted_is_too_old_and_a_later_one_is_not,
    test_a_version_that_was_never_told_is_too_old,
    test_a_watch_from_a_listing_misses_nothing_and_repeats_nothing,
    test_a_watch_goes_on_after_the_store_was_opened_anew,
    test_a_watcher_hears_of_what_is_written_while_it_waits,
    test_from_a_mark_all_is_told_also_of_kinds_that_have_no_item,
    test_of_many_that_count_up_by_compare_and_swap_none_is_lost,
    test_of_many_that_create_at_once_one_wins,
    test_what_no_store_can_hold_is_refused_and_what_comes_after_it_is_written,
    test_what_was_written_is_read_also_by_the_next_process,
    with_store,
)
from tests.kube.definitions import OURS, wait_until_served
from tests.unit.cluster_values import CLUSTER_KEY, grant, node_key, presence
from tests.unit.controller.state.cluster_tables import join, network
from tests.waiting import until

CRDS = Path(__file__).parents[2] / "deploy" / "crds"


@pytest.fixture(scope="module", name="plane")
def _plane(api: ControlPlane) -> ControlPlane:
    api.kubectl("apply", "-f", str(CRDS))
    wait_until_served(api, *OURS)
    return api


@asynccontextmanager
async def opened(plane: ControlPlane, namespace: str) -> AsyncIterator[KubernetesStore]:
    client = Client(find_access(plane.kubeconfig))
    store = KubernetesStore(client, namespace, kept_events=2 * KEPT_DELETIONS)
    try:
        yield store
    finally:
        await store.close()
        client.close()


class AsGrants:
    """Items of any kind and value as grants, whose objects are named after their nodes."""

    def __init__(self, store: Store, mark: str) -> None:
        self._store = store
        self._mark = mark

    def _uid(self, name: str) -> str:
        digest = hashlib.sha256(f"{self._mark} {name}".encode()).digest()
        return base64.b32encode(digest[:15]).decode().lower()

    def _there(self, change: Change) -> Change:
        if change.kind != "a" or not change.name.isprintable():
            return change
        uid = self._uid(change.name)
        if not isinstance(change, StorePut):
            return replace(change, kind=NODE, name=uid)
        labels = {"value": change.value.hex(), "name": change.name}
        signed = seal(
            GRANT, grant(1, uid=uid, name=f"{self._mark}-{uid}", labels=labels), CLUSTER_KEY
        )
        value = msgspec.json.encode(NodeRecord(signed.sealed, 0.0))
        return StorePut(NODE, uid, value, change.version)

    def _here(self, item: Item) -> Item:
        body = msgspec.json.decode(msgspec.json.decode(item.value, type=NodeRecord).sealed.body)
        labels = body["labels"]
        return Item("a", labels["name"], bytes.fromhex(labels["value"]), item.version)

    async def get(self, kind: str, name: str) -> Item | None:
        if kind != "a":
            return await self._store.get(kind, name)
        item = await self._store.get(NODE, self._uid(name))
        return item and self._here(item)

    async def listing(self, kind: str) -> Listing:
        if kind != "a":
            return await self._store.listing(kind)
        found = await self._store.listing(NODE)
        items = [self._here(item) for item in found.items if self._is_ours(item)]
        return Listing(tuple(sorted(items, key=lambda each: each.name)), found.version)

    def _is_ours(self, item: Item) -> bool:
        sealed = msgspec.json.decode(item.value, type=NodeRecord).sealed
        name: str = msgspec.json.decode(sealed.body)["name"]
        return name.startswith(f"{self._mark}-")

    async def write(self, changes: Sequence[Change]) -> list[str]:
        return await self._store.write([self._there(change) for change in changes])

    async def mark(self, kinds: Collection[str]) -> str:
        return await self._store.mark([NODE if kind == "a" else kind for kind in kinds])

    async def watch(self, kinds: Collection[str], since: str) -> AsyncGenerator[Event, None]:
        there = [NODE if kind == "a" else kind for kind in kinds]
        async for event in self._store.watch(there, since):
            if isinstance(event, Item) and event.kind == NODE:
                if self._is_ours(event):
                    yield self._here(event)
            elif isinstance(event, Deleted) and event.kind == NODE:
                for name in ("w", "x", "y", "z", "there", "before", "after", *map(str, range(99))):
                    if self._uid(name) == event.name:
                        yield replace(event, kind="a", name=name)
            else:
                yield event


_numbers = itertools.count()


@pytest.fixture(params=["config maps", "custom resources"])
def open_store(request: pytest.FixtureRequest, plane: ControlPlane) -> OpenStore:
    """One that begins empty, and is found again by the folder."""
    spaces: dict[Path, str] = {}

    @asynccontextmanager
    async def open_kubernetes(folder: Path) -> AsyncIterator[Store]:
        if folder not in spaces:
            spaces[folder] = f"t{next(_numbers)}"
            plane.kubectl("create", "namespace", spaces[folder])
        async with opened(plane, spaces[folder]) as store:
            yield AsGrants(store, spaces[folder]) if "custom" in request.param else store

    return open_kubernetes


@pytest.fixture
def examples() -> int:
    return 3


def test_communities_are_heard_of_beside_a_kind_that_has_no_object(
    plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written last is an object of another kind: of it the API server says nothing."""
    monkeypatch.setattr(KINDS, "_by_name", dict(KINDS._by_name))
    monkeypatch.setattr(KINDS, "_order", dict(KINDS._order))
    by_cluster = ByCluster[Any](lambda toy, *_: toy, lambda toy, _revision: toy)
    KINDS.register(Kind("toy", dict, signers=cluster_keys, by_cluster=by_cluster))
    plane.kubectl("create", "namespace", "toys")
    heard: list[Key] = []

    async def hear(key: Key) -> None:
        heard.append(key)

    async def work() -> None:
        async with opened(plane, "toys") as store, opened(plane, "toys") as other:
            registry = Registry(store, 0.0)
            mark = await store.mark(list(record_types()))
            await registry.start()
            await registry.change(lambda tables: create_cluster(tables, network()))
            following = asyncio.create_task(follow_others(store, registry, mark, hear))
            for name in ("cranes", "buoys"):
                record = msgspec.json.encode(CommunityRecord())
                await other.write([StorePut(COMMUNITY, name, record)])
                await until(lambda: (COMMUNITY, name) in heard)  # noqa: B023 - within its turn
            following.cancel()
            await asyncio.wait((following,))
            await registry.stop()

    asyncio.run(work())


def test_an_object_of_another_node_takes_no_presences_place(plane: ControlPlane) -> None:
    """What the account of one node can write: objects that are named after it."""
    plane.kubectl("create", "namespace", "forged")

    async def work() -> None:
        async with opened(plane, "forged") as store, opened(plane, "forged") as other:
            registry = Registry(store, 0.0)
            await registry.start()
            await registry.change(lambda tables: create_cluster(tables, network()))
            victim = (await registry.change(lambda tables: join(tables, 1, "victim"))).uid
            evil = (await registry.change(lambda tables: join(tables, 2, "evil"))).uid
            said = seal(PRESENCE, presence(1, 7), node_key(1)).sealed
            await registry.change(lambda tables: publish(tables, victim, said, 0.0))
            await registry.stop()
            nobody = presence(77).uid
            for name, uid in ((f"evil.{victim}", victim), ("evil", nobody)):
                forged = seal(PRESENCE, presence(1, 1 << 40, uid=uid), node_key(2))
                plane.kubectl(
                    *("apply", "-f", "-"),
                    stdin=msgspec.json.encode(document_object(forged, name, "evil")).decode(),
                )

            following = Registry(other, 0.0)
            await following.start()
            known = await following.change(lambda tables: tables.presence(victim))
            assert known is not None
            assert known.sequence == 7
            item = await other.get(PRESENCE.name, victim)
            assert item is not None
            assert msgspec.json.decode(item.value, type=PresenceRecord).sequence == 7
            own = seal(PRESENCE, presence(2, 3), node_key(2)).sealed
            assert await following.change(lambda tables: publish(tables, evil, own, 0.0)) == 3
            await following.stop()

    asyncio.run(work())
