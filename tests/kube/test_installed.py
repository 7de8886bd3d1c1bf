"""One command installs Limpet in a cluster without a network; its pods come and go unnoticed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from limpet.lab.kube.world import KubeWorld
from tests.kube.installed import (
    CONTROL_PLANE,
    Stream,
    Watch,
    answers,
    ask,
    bare_world,
    deployment,
    manifest_for,
    rollout,
    running_pods,
)
from tests.kube.test_manifests import SPACE
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(1500)  # the image is built, four kubelets start


@pytest.fixture(scope="module")
def took() -> dict[str, str]:
    """What was done since `kubectl apply`, and when."""
    return {}


@pytest.fixture(scope="module")
def world(
    tmp_path_factory: pytest.TempPathFactory, archive: Path, took: dict[str, str]
) -> Iterator[KubeWorld]:
    """Limpet is applied, and a Deployment beside it that waits for a network."""
    with bare_world(tmp_path_factory.mktemp("installed"), archive) as world:
        assert not world.ready_nodes()
        kubectl = world.plane.kubectl
        kubectl("label", "nodes", "cloud-1", "cloud-2", f"{CONTROL_PLANE}=")
        servers = deployment("server", len(world.machines))
        kubectl("apply", "-f", "-", stdin=json.dumps(servers))
        watch = Watch()
        kubectl("apply", "-f", "-", stdin=manifest_for(world))
        world.await_ready()
        took["all nodes are Ready"] = str(watch)
        rollout(world, "deployment/server", "default")
        pods = running_pods(world, "server", len(world.machines))
        took["a pod runs on each node"] = str(watch)
        client, server = pods["crane-1"], pods["digger-1"]
        wait_until(partial(answers, client, server), "a pod of another site answers")
        took["the first reply from another site"] = str(watch)
        yield world


def test_an_empty_cluster_gets_its_network_by_one_command(
    world: KubeWorld, took: dict[str, str], record_property: Callable[[str, object], None]
) -> None:
    for what, after in took.items():
        record_property(what, after)
        print(f"from apply until {what}: {after}")  # noqa: T201
    rollout(world, "daemonset/limpet-agent")
    rollout(world, "deployment/limpet-controller")
    pods = json.loads(world.plane.kubectl("get", "pods", "-n", SPACE, "-o", "json"))["items"]
    controllers = {
        each["spec"]["nodeName"]
        for each in pods
        if each["metadata"]["labels"]["app.kubernetes.io/component"] == "controller"
    }
    assert controllers == {"cloud-1", "cloud-2"}
    for machine in world.kube_machines:
        status = ask(machine, "status")
        assert status["ready"], status["reasons"]
        assert status["cluster"]["name"] == machine.label


def test_pods_reach_each_other_across_nodes_and_sites_by_both_families(world: KubeWorld) -> None:
    pods = running_pods(world, "server", len(world.machines))

    for client in pods.values():
        for server in pods.values():
            assert len(server.addresses) == 2
            wait_until(partial(answers, client, server), f"{server.name} answers {client.name}")


def test_an_agents_pod_that_goes_and_all_of_them_rolled_over_lose_no_packet_of_other_pods(
    world: KubeWorld,
) -> None:
    pods = running_pods(world, "server", len(world.machines))
    # Not those that go through tunnels: this kernel has no WireGuard, and what stands in for it
    # runs in the agent's pod (docs/kubernetes.md).
    pairs = [("crane-1", "digger-1"), ("digger-1", "crane-1"), ("cloud-1", "cloud-2")]
    streams = [Stream(pods[source], pods[target]) for source, target in pairs]
    try:
        wait_until(lambda: all(each.flows for each in streams), "packets arrive")
        component = "app.kubernetes.io/component=agent"
        here = ("-n", SPACE, "-l", component, "--field-selector=spec.nodeName=crane-1")
        world.plane.kubectl("delete", "pod", *here)
        rollout(world, "daemonset/limpet-agent")
        world.plane.kubectl("rollout", "restart", "daemonset/limpet-agent", "-n", SPACE)
        rollout(world, "daemonset/limpet-agent")
    finally:
        lost = {each.name: each.end() for each in streams}

    assert {name: numbers for name, numbers in lost.items() if numbers} == {}
    assert all(each.sent > 1000 for each in streams)
