"""Several controllers at a real API server: nothing is granted twice, whoever stops, wakes late or
is killed, and every grant that was answered is in the store."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from limpet.base.errors import LimpetError
from limpet.cluster.kinds import NETWORK
from limpet.cluster.kinds.grant import Grant
from limpet.controller.node_objects.node import NodeSource
from limpet.controller.orchestrator.node_keeper.keeper import settle_cidrs
from limpet.controller.registry.records import NODE, NodeRecord
from limpet.controller.registry.refusal import RefusedError
from limpet.controller.registry.registry import Registry
from limpet.controller.state import nodes
from limpet.controller.state.authority import create_cluster
from limpet.controller.store.interface import Change, Event, Item, Listing, Store
from limpet.controller.store.kubernetes.store import KubernetesStore
from limpet.kubernetes.access.kubeconfig import find_access
from limpet.kubernetes.client import Client
from limpet.lab.kube.control_plane import ControlPlane
from tests.cloud.bed import Member
from tests.controller.machines import Controller, Node, Refusal
from tests.kube.definitions import wait_until_served
from tests.unit.controller.orchestrator.node_keeper.node_tables import Told
from tests.unit.controller.state.cluster_tables import join, network
from tests.waiting import until_answered, wait_until

CRDS = Path(__file__).parents[3] / "deploy" / "crds"
PLURALS = ("clusternetworks", "nodegrants", "nodepresences", "communities")
_numbers = itertools.count()


@pytest.fixture(scope="module", name="plane")
def _plane(api: ControlPlane) -> ControlPlane:
    api.kubectl("apply", "-f", str(CRDS))
    names = (f"{plural}.limpet.dev" for plural in PLURALS)
    wait_until_served(api, *names)
    return api


@pytest.fixture(name="namespace")
def _namespace(plane: ControlPlane) -> str:
    """Without anything of Limpet's."""
    plane.kubectl("delete", ",".join(PLURALS), "--all")
    name = f"limpet-{next(_numbers)}"
    plane.kubectl("create", "namespace", name)
    return name


class Paused:
    """A store whose next write stops after some of its changes, as a process that is stopped."""

    def __init__(self, store: Store, after: int) -> None:
        self._store = store
        self._after: int | None = after
        self.stopped, self.woken = asyncio.Event(), asyncio.Event()

    async def get(self, kind: str, name: str) -> Item | None:
        return await self._store.get(kind, name)

    async def listing(self, kind: str) -> Listing:
        return await self._store.listing(kind)

    async def write(self, changes: Sequence[Change]) -> list[str]:
        if self._after is None:
            return await self._store.write(changes)
        after, self._after = self._after, None
        versions = await self._store.write(changes[:after])
        self.stopped.set()
        await self.woken.wait()
        return versions + await self._store.write(changes[after:])

    async def mark(self, kinds: Collection[str]) -> str:
        return await self._store.mark(kinds)

    def watch(self, kinds: Collection[str], since: str) -> AsyncGenerator[Event, None]:
        return self._store.watch(kinds, since)


async def granted(store: Store) -> dict[str, Grant]:
    """All grants in the store, by uid; no two of nodes that are not removed share a segment."""
    registry = Registry(store, 0.0)
    await registry.start()
    found = await registry.change(lambda tables: dict(tables.grants))
    await registry.stop()
    held = [each for grant in found.values() for each in grant.segments]
    assert len(held) == len(set(held))
    return found


@pytest.mark.parametrize("after", range(5))
def test_a_leader_that_is_stopped_in_the_midst_and_wakes_late_grants_nothing_twice(
    plane: ControlPlane, namespace: str, after: int
) -> None:
    """One segment is free, and both want it."""

    async def run() -> None:
        client = Client(find_access(plane.kubeconfig))
        store = KubernetesStore(client, namespace)
        first = Registry(store, 0.0)
        await first.start()
        await first.change(
            lambda tables: create_cluster(tables, network("10.0.0.0/28", segment_lengths={4: 30}))
        )
        for number in range(1, 5):
            await first.change(lambda tables, n=number: join(tables, n, f"n{n}"))  # type: ignore[misc]
        await first.change(lambda tables: nodes.remove(tables, "n1", 0.0))
        await first.stop()

        paused = Paused(store, after)
        late, next_one = Registry(paused, 0.0), Registry(store, 0.0)
        await late.start()
        asked = asyncio.create_task(late.change(lambda tables: join(tables, 5, "n5", 1.0)))
        await paused.stopped.wait()
        await next_one.start()
        other = next_one.change(lambda tables: join(tables, 6, "n6", 1.0))
        outcomes: list[Any] = [*await asyncio.gather(other, return_exceptions=True)]
        paused.woken.set()
        outcomes += await asyncio.gather(asked, return_exceptions=True)
        await late.stop()
        await next_one.stop()

        known = await granted(store)
        answered = [each for each in outcomes if isinstance(each, Grant)]
        assert len(answered) == 1
        assert all(isinstance(each, Grant | RefusedError) for each in outcomes)
        for grant in answered:
            assert known[grant.uid].segments == grant.segments
        await store.close()
        client.close()

    asyncio.run(run())


@pytest.fixture(name="controllers")
def _controllers(plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[list[Controller]]:
    found = [
        Controller(
            tmp_path / f"c{number}",
            store="kubernetes",
            kubeconfig=str(plane.kubeconfig),
            namespace=namespace,
            pod_cidrs=["10.0.0.0/16"],
        )
        for number in range(2)
    ]
    with ExitStack() as undo:
        for each in found:
            each.start()
            undo.callback(each.kill_if_it_runs)
        yield found


async def joined(controllers: Sequence[Controller], name: str) -> Node:
    """Asks one after the other until one answers, as `limpet join` and a person do."""
    key: bytes | None = None
    for turn in itertools.cycle(controllers):
        node = Node(turn.url, name, key)
        key = node.key
        try:
            await node.join(await asyncio.to_thread(turn.token))
            return node
        except (Refusal, LimpetError, aiohttp.ClientError, OSError):
            await asyncio.sleep(0.2)
    raise AssertionError("there is no controller")


def leads(controller: Controller) -> bool:
    """Its admin socket answers."""
    try:
        controller.ask("network.show")
    except LimpetError:
        return False
    return True


def leader_of(controllers: Sequence[Controller]) -> Controller:
    (found,) = wait_until(lambda: list(filter(leads, controllers))[:1], "somebody leads")
    return found


def kill(leader: Controller, _plane: ControlPlane) -> Callable[[], None]:
    leader.kill()
    return lambda: None


def pause(leader: Controller, _plane: ControlPlane) -> Callable[[], None]:
    os.kill(leader.pid, signal.SIGSTOP)
    return lambda: os.kill(leader.pid, signal.SIGCONT)


def restart_api_server(_leader: Controller, plane: ControlPlane) -> Callable[[], None]:
    plane.restart_process("kube-apiserver", signal.SIGKILL)
    return lambda: None


@pytest.mark.parametrize("fault", [kill, pause, restart_api_server])
def test_after_a_fault_of_the_leader_joins_go_on_and_nothing_is_granted_twice(
    plane: ControlPlane, namespace: str, controllers: list[Controller], fault: Any
) -> None:
    async def run() -> None:
        answered = [await joined(controllers, "before-1"), await joined(controllers, "before-2")]
        under_way = [
            asyncio.create_task(joined(controllers, f"meanwhile-{number}")) for number in range(6)
        ]
        leader = leader_of(controllers)
        heal = await asyncio.to_thread(fault, leader, plane)
        # Who is stopped takes a connection and says nothing, until whoever asks gives up.
        awake = [each for each in controllers if fault is not pause or each is not leader]
        answered.append(await joined(awake, "after"))
        heal()
        answered += await asyncio.gather(*under_way)
        answered.append(await joined(controllers, "healed"))

        client = Client(find_access(plane.kubeconfig))
        store = KubernetesStore(client, namespace)
        known = await granted(store)
        for node in answered:
            assert node.grant.segments
            assert known[node.uid].segments == node.grant.segments
        await store.close()
        client.close()

    asyncio.run(run())


def test_who_joins_at_a_controller_that_follows_is_let_in_by_the_next(
    controllers: list[Controller], tmp_path: Path
) -> None:
    leader = wait_until(lambda: next(filter(leads, controllers), None))
    assert leader is not None
    others = [each for each in controllers if each is not leader]
    at = tuple(f"127.0.0.1:{each.port}" for each in (*others, leader))

    joined = Member(tmp_path / "n", "n").join(leader, controllers=at)

    assert joined.segments


def test_what_is_deleted_by_hand_comes_back_and_nothing_is_granted_twice(
    plane: ControlPlane, namespace: str, controllers: list[Controller]
) -> None:
    async def run() -> None:
        answered = [await joined(controllers, "one"), await joined(controllers, "two")]

        def deleted() -> None:
            plane.kubectl("delete", ",".join(PLURALS), "--all")
            plane.kubectl("delete", "configmaps", "-n", namespace, "-l", "limpet.dev/kind")

        await asyncio.to_thread(deleted)
        client = Client(find_access(plane.kubeconfig))
        store = KubernetesStore(client, namespace)
        for node in answered:
            item = await until_answered(partial(store.get, NODE, node.uid))
            assert item is not None
            assert msgspec.json.decode(item.value, type=NodeRecord).sealed == node.sealed

        async def is_there() -> bool:
            return bool((await store.listing(NETWORK.name)).items)

        await until_answered(is_there)
        answered.append(await joined(controllers, "three"))

        known = await granted(store)
        assert {node.uid for node in answered} == known.keys()
        await store.close()
        client.close()
        await asyncio.sleep(0)

    asyncio.run(run())


def test_a_community_that_is_applied_is_in_the_grants_and_says_so(
    plane: ControlPlane, controllers: list[Controller]
) -> None:
    """By name, also of who joins later; what cannot be read holds up no other, and says why."""

    def community(name: str, **spec: Any) -> str:
        head = {"apiVersion": "limpet.dev/v1alpha1", "kind": "Community"}
        return json.dumps({**head, "metadata": {"name": name}, "spec": spec})

    def condition(name: str) -> str:
        template = "{.status.nodes} {.status.conditions[0].reason} {.status.conditions[0].message}"
        return str(plane.kubectl("get", "community", name, "-o", f"jsonpath={template}"))

    async def run() -> None:
        await joined(controllers, "one")
        odd = {"matchLabels": {"-": "x"}}
        for text in (
            community("harbour", members=["one", "two"], tunnelBackend="ipsec"),
            community("odd", nodeSelector=odd),
        ):
            await asyncio.to_thread(plane.kubectl, "apply", "-f", "-", stdin=text)
        await asyncio.to_thread(
            wait_until, lambda: condition("harbour").startswith("1 Granted ") or None
        )
        assert "not joined yet: two" in condition("harbour")
        await joined(controllers, "two")
        await asyncio.to_thread(
            wait_until, lambda: condition("harbour").startswith("2 Granted ") or None
        )
        await asyncio.to_thread(
            wait_until, lambda: condition("odd").startswith("0 Unreadable read Community odd: spec")
        )
        shown = leader_of(controllers).ask("community.show", community="harbour")
        assert [node["name"] for node in shown["nodes"]] == ["one", "two"]
        assert shown["tunnel_backend"] == "ipsec"

        by_label = community("quay", nodeSelector={"matchLabels": {"example.org/site": "quay"}})
        await asyncio.to_thread(plane.kubectl, "apply", "-f", "-", stdin=by_label)
        node = json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "two"}})
        await asyncio.to_thread(plane.kubectl, "apply", "-f", "-", stdin=node)
        await asyncio.to_thread(plane.kubectl, "label", "node", "two", "example.org/site=quay")
        await asyncio.to_thread(
            wait_until, lambda: condition("quay").startswith("1 Granted ") or None
        )

        await asyncio.to_thread(plane.kubectl, "delete", "community", "harbour")
        await asyncio.to_thread(
            wait_until, lambda: "harbour" not in str(leader_of(controllers).ask("community.list"))
        )
        shown = leader_of(controllers).ask("node.show", node="one")
        assert shown["communities"] == []

    asyncio.run(run())


@pytest.mark.parametrize("after", range(3))
def test_a_late_leader_grants_no_cidr_that_the_next_one_has_granted(
    plane: ControlPlane, namespace: str, after: int
) -> None:
    """Two nodes, and one podCIDR: the Nodes have changed from one leader to the next."""

    async def run() -> None:
        client = Client(find_access(plane.kubeconfig))
        store = KubernetesStore(client, namespace)
        then, now = Told(), Told()
        then.put("n1", "10.0.7.0/24")
        now.put("n2", "10.0.7.0/24")
        first = Registry(store, 0.0, NodeSource(True, (), Told()))
        await first.start()
        await first.change(lambda tables: create_cluster(tables, network("10.0.0.0/16")))
        for number in (1, 2):
            await first.change(lambda tables, n=number: join(tables, n, f"n{n}"))  # type: ignore[misc]
        await first.stop()

        paused = Paused(store, after)
        late = Registry(paused, 0.0, NodeSource(True, (), then))
        next_one = Registry(store, 0.0, NodeSource(True, (), now))
        await late.start()
        asked = asyncio.create_task(late.change(lambda tables: settle_cidrs(tables, 0.0)))
        await paused.stopped.wait()
        await next_one.start()
        other = next_one.change(lambda tables: settle_cidrs(tables, 0.0))
        outcomes: list[Any] = [*await asyncio.gather(other, return_exceptions=True)]
        paused.woken.set()
        outcomes += await asyncio.gather(asked, return_exceptions=True)
        await late.stop()
        await next_one.stop()

        known = await granted(store)
        held = [each for grant in known.values() for each in grant.segments]
        assert len(held) <= 1
        answered = [each for each in outcomes if not isinstance(each, BaseException)]
        for settled in answered:
            for _, grant in settled.granted:
                assert known[grant.uid].segments == grant.segments
        assert all(
            not isinstance(each, BaseException) or isinstance(each, RefusedError)
            for each in outcomes
        )
        await store.close()
        client.close()

    asyncio.run(run())
