"""Kubernetes' Nodes and nodes of the pod network, at a real API server with a real controller."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from limpet.cluster.kinds.grant import ZONE_LABEL
from limpet.controller.node_objects.node import REPLACE_LABEL
from limpet.lab.command import LabError
from limpet.lab.kube.control_plane import ControlPlane
from tests.controller.machines import Controller, Node, Refusal
from tests.kube.conftest import control_plane_alone
from tests.kube.definitions import wait_until_served
from tests.waiting import wait_until

CRDS = Path(__file__).parents[3] / "deploy" / "crds"
PLURALS = ("clusternetworks", "nodegrants", "nodepresences", "communities")
MakeController = Callable[..., Controller]
_numbers = itertools.count()


@pytest.fixture(scope="module", name="plane")
def _plane(api: ControlPlane) -> ControlPlane:
    install(api)
    return api


def install(plane: ControlPlane) -> None:
    plane.kubectl("apply", "-f", str(CRDS))
    names = (f"{plural}.limpet.dev" for plural in PLURALS)
    wait_until_served(plane, *names)


@pytest.fixture(name="controllers")
def _controllers(plane: ControlPlane, tmp_path: Path) -> Iterator[MakeController]:
    """Makes controllers of one new cluster, started; they are killed afterwards."""
    plane.kubectl("delete", ",".join(PLURALS), "--all")
    plane.kubectl("delete", "nodes", "--all")
    namespace = f"limpet-{next(_numbers)}"
    plane.kubectl("create", "namespace", namespace)
    made: list[Controller] = []

    def make(**settings: Any) -> Controller:
        controller = Controller(
            tmp_path / f"c{len(made)}",
            store="kubernetes",
            kubeconfig=str(plane.kubeconfig),
            namespace=namespace,
            **settings,
        )
        made.append(controller)
        return controller.start()

    yield make
    for each in made:
        each.kill_if_it_runs()


def put_node(plane: ControlPlane, name: str, *cidrs: str, **labels: str) -> None:
    """As a kubelet makes it, and Kubernetes' controller manager gives it podCIDRs."""
    metadata = {"name": name, "labels": labels}
    body = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
    plane.kubectl("apply", "-f", "-", stdin=json.dumps(body))
    if cidrs:
        spec = {"spec": {"podCIDR": cidrs[0], "podCIDRs": list(cidrs)}}
        plane.kubectl("patch", "node", name, "-p", json.dumps(spec))


async def joined(controller: Controller, name: str, key: bytes | None = None) -> Node:
    node = Node(controller.url, name, key)
    await node.join(await asyncio.to_thread(token_of, controller))
    return node


def token_of(controller: Controller) -> str:
    """As soon as it leads."""
    return str(wait_until(lambda: _token(controller)))


def _token(controller: Controller) -> str | None:
    try:
        return controller.token()
    except Exception:  # noqa: BLE001 - it does not lead yet
        return None


def condition(plane: ControlPlane, name: str) -> str:
    """Whether a node is as its Node is, and why not, as its NodeGrant says."""
    path = "{.status.conditions[?(@.type=='MatchesNode')]['status','reason']}"
    return str(plane.kubectl("get", "nodegrant", name, "-o", f"jsonpath={path}")).strip()


def segments_of(controller: Controller, name: str) -> list[str]:
    found: list[str] = controller.ask("node.show", node=name)["segments"]
    return found


def has_problem(controller: Controller, name: str, words: str) -> None:
    """Returns when it is the only one of the node."""

    def holds() -> bool:
        found = controller.ask("node.show", node=name)["problems"]
        return len(found) == 1 and words in found[0]

    wait_until(holds, words)


def test_nodes_get_the_cidrs_that_kubernetes_gave_them_and_more_of_the_controllers_own(
    plane: ControlPlane, controllers: MakeController
) -> None:
    controller = controllers(
        segments_from="nodes",
        pod_cidrs=["10.244.0.0/15", "fd00:244::/48"],
        own_cidrs=["10.245.0.0/16"],
    )
    put_node(plane, "one", "10.244.7.0/24", "fd00:244:0:7::/64")
    put_node(plane, "two")

    async def run() -> None:
        one = await joined(controller, "one")
        assert [str(each) for each in one.grant.segments] == ["10.244.7.0/24", "fd00:244:0:7::/64"]
        more = await one.request_segments(4)
        assert str(more.segments[-1]) == "10.245.0.0/24"

        # It has none yet, and hears of them as soon as they are there.
        two = await joined(controller, "two")
        assert two.grant.segments == ()
        await asyncio.to_thread(has_problem, controller, "two", "has no podCIDRs yet")
        async with two.watch() as lines:
            await asyncio.to_thread(put_node, plane, "two", "10.244.8.0/24")
            async for line in lines:
                document = line.document
                if document is not None and document.kind == "grant":
                    grant = two.open(document)
                    if grant.uid == two.uid and grant.segments:
                        assert [str(each) for each in grant.segments] == ["10.244.8.0/24"]
                        break
        await one.close()
        await two.close()

    asyncio.run(run())


def test_what_a_node_may_not_have_is_told_and_given_when_it_is_free(
    plane: ControlPlane, controllers: MakeController
) -> None:
    """Kubernetes hands on what a removed node had; its addresses rest first."""
    controller = controllers(segments_from="nodes", pod_cidrs=["10.244.0.0/16"], quarantine_s=3600)
    put_node(plane, "one", "10.244.7.0/24")

    async def run() -> None:
        one = await joined(controller, "one")
        assert [str(each) for each in one.grant.segments] == ["10.244.7.0/24"]
        await asyncio.to_thread(put_node, plane, "two", "10.244.7.0/24")
        two = await joined(controller, "two")
        assert two.grant.segments == ()
        older = "also that of Node one, which is older"
        await asyncio.to_thread(has_problem, controller, "two", older)
        events = "{.items[*].message}"
        await asyncio.to_thread(
            wait_until,
            lambda: "which is older" in plane.kubectl("get", "events", "-o", f"jsonpath={events}"),
        )

        await asyncio.to_thread(
            wait_until, lambda: condition(plane, "two") == "False PodCIDRsRefused"
        )

        controller.ask("node.remove", node="one")
        await asyncio.to_thread(plane.kubectl, "delete", "node", "one")
        await asyncio.to_thread(wait_until, lambda: "rests until" in str(problems("two")))
        controller.kill()
        rested = controllers(segments_from="nodes", pod_cidrs=["10.244.0.0/16"], quarantine_s=0)
        await asyncio.to_thread(token_of, rested)
        await asyncio.to_thread(wait_until, lambda: segments_of(rested, "two") == ["10.244.7.0/24"])
        await asyncio.to_thread(wait_until, lambda: condition(plane, "two") == "True Matches")

    def problems(name: str) -> Any:
        return controller.ask("node.show", node=name)["problems"]

    asyncio.run(run())


def state_of(controller: Controller, name: str) -> str:
    """Also of one that was removed."""
    found = [each["state"] for each in controller.ask("node.list")["nodes"] if each["name"] == name]
    return ",".join(found)


def test_a_node_whose_node_was_deleted_is_removed_after_the_grace_time_whoever_leads_then(
    plane: ControlPlane, controllers: MakeController
) -> None:
    """And nobody else: not who never was a Node, nor whose Node a new list lacks."""
    controller = controllers(node_grace_s=1e6)
    for name in ("one", "returns", "unheard"):
        put_node(plane, name)

    async def run() -> None:
        await joined(controller, "one")
        returns = await joined(controller, "returns")
        await joined(controller, "unheard")
        await joined(controller, "outside")
        await asyncio.to_thread(plane.kubectl, "delete", "node", "one", "returns")
        for name in ("one", "returns"):
            await asyncio.to_thread(
                wait_until, lambda n=name: state_of(controller, n) == "node deleted"
            )
        put_node(plane, "returns")
        await asyncio.to_thread(wait_until, lambda: state_of(controller, "returns") == "granted")

        controller.kill()
        plane.kubectl("delete", "node", "unheard")
        following = controllers(node_grace_s=1)
        await asyncio.to_thread(token_of, following)
        await asyncio.to_thread(wait_until, lambda: state_of(following, "one") == "removed")
        for name in ("returns", "outside", "unheard"):
            assert state_of(following, name) == "granted"
        (problem,) = following.ask("node.show", node="unheard")["problems"]
        assert "nobody has told that it was deleted" in problem
        returns.url = following.url
        before = returns.grant
        await returns.hello()
        assert returns.grant.segments == before.segments
        await returns.close()

    asyncio.run(run())


def test_a_new_machine_takes_a_nodes_place_by_a_label_that_its_kubelet_may_not_set(
    plane: ControlPlane, controllers: MakeController
) -> None:
    controller = controllers()
    put_node(plane, "one")
    kubelet = plane.write_kubeconfig("kubelet", "system:node:one", groups=["system:nodes"])

    async def run() -> None:
        former = await joined(controller, "one")
        with pytest.raises(Refusal, match="another machine is the Node one") as refused:
            await joined(controller, "one")
        assert f"{REPLACE_LABEL}={former.uid}" in str(refused.value)

        word = f"limpet.node-restriction.kubernetes.io/replace={former.uid}"
        with pytest.raises(LabError, match="is not allowed to modify labels"):
            plane.kubectl("--kubeconfig", str(kubelet), "label", "node", "one", word)
        plane.kubectl("label", "node", "one", word)
        await asyncio.to_thread(
            wait_until, lambda: state_of(controller, "one") == "awaits replacement"
        )
        heir = await joined(controller, "one")
        assert heir.grant.segments == former.grant.segments
        with pytest.raises(Refusal, match=heir.uid):
            await joined(controller, "one")  # it counts once

    asyncio.run(run())


def test_fabedges_labels_put_nodes_into_communities(
    plane: ControlPlane, controllers: MakeController
) -> None:
    controller = controllers(fabedge_labels=True)
    for name in ("one", "two"):
        put_node(plane, name)

    async def run() -> None:
        await joined(controller, "one")
        await joined(controller, "two")
        plane.kubectl("label", "node", "one", "fabedge/edge-community=harbour")
        plane.kubectl("label", "node", "two", "bocloud.com/edge-community=harbour")
        for name in ("one", "two"):
            await asyncio.to_thread(wait_until, lambda n=name: communities(n) == ["harbour"])
        assert "harbour" in plane.kubectl("get", "communities", "-o", "name")
        plane.kubectl("label", "node", "two", "bocloud.com/edge-community-")
        await asyncio.to_thread(wait_until, lambda: communities("two") == [])
        assert communities("one") == ["harbour"]

    def communities(name: str) -> Any:
        return controller.ask("node.show", node=name)["communities"]

    asyncio.run(run())


def test_the_zone_of_a_node_reaches_its_grant(
    plane: ControlPlane, controllers: MakeController
) -> None:
    """The label of the Node that kube-proxy reads, also where no community asks for it."""
    controller = controllers()
    put_node(plane, "one", **{ZONE_LABEL: "hall", "other": "x"})

    async def run() -> None:
        await joined(controller, "one")
        await asyncio.to_thread(wait_until, lambda: zone() == {ZONE_LABEL: "hall"})
        plane.kubectl("label", "--overwrite", "node", "one", f"{ZONE_LABEL}=yard")
        await asyncio.to_thread(wait_until, lambda: zone() == {ZONE_LABEL: "yard"})
        plane.kubectl("label", "node", "one", f"{ZONE_LABEL}-")
        await asyncio.to_thread(wait_until, lambda: zone() == {})

    def zone() -> Any:
        return controller.ask("node.show", node="one")["labels"]

    asyncio.run(run())


def test_a_node_that_is_deleted_while_nobody_leads_was_heard_of_by_who_leads_next(
    plane: ControlPlane, controllers: MakeController
) -> None:
    leader = controllers()
    token_of(leader)
    put_node(plane, "one")

    async def run() -> None:
        await joined(leader, "one")
        follower = controllers()
        await asyncio.to_thread(
            wait_until, lambda: "follows" in follower.log.read_text() and _hears_nodes(follower)
        )
        leader.kill()
        plane.kubectl("delete", "node", "one")
        await asyncio.to_thread(token_of, follower)
        await asyncio.to_thread(wait_until, lambda: state_of(follower, "one") == "node deleted")

    asyncio.run(run())


def _hears_nodes(controller: Controller) -> bool:
    lines = controller.log.read_text().splitlines()
    return any("connected to the API server" in line and "nodes" in line for line in lines)


def test_what_a_real_controller_manager_hands_out_becomes_segments(tmp_path: Path) -> None:
    """Of both families, to nodes that joined before and after."""
    with control_plane_alone(tmp_path) as plane:
        plane.pod_networks = ("10.244.0.0/16", "fd00:244::/56")
        plane.start(only_api=True)
        install(plane)
        plane.kubectl("create", "namespace", "limpet")
        controller = Controller(
            tmp_path / "c",
            store="kubernetes",
            kubeconfig=str(plane.kubeconfig),
            segments_from="nodes",
            pod_cidrs=list(plane.pod_networks),
        ).start()
        try:
            put_node(plane, "before")

            async def run() -> None:
                before = await joined(controller, "before")
                assert before.grant.segments == ()
                await asyncio.to_thread(plane.start_process, "kube-controller-manager")
                put_node(plane, "after")
                for name in ("before", "after"):
                    if name == "after":
                        await joined(controller, name)
                    await asyncio.to_thread(
                        wait_until, lambda n=name: len(segments_of(controller, n)) == 2
                    )
                    assert segments_of(controller, name) == json.loads(
                        plane.kubectl("get", "node", name, "-o", "jsonpath={.spec.podCIDRs}")
                    )

            asyncio.run(run())
        finally:
            controller.kill_if_it_runs()
