"""A whole cluster: kubelets with containerd on nodes of two sites, pods on Limpet."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from limpet.lab.command import LabError
from limpet.lab.kube.image import IMAGE
from limpet.lab.kube.world import KubeWorld
from limpet.lab.topology import load_topology
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(900)  # four kubelets start

_SYSCTLS = (
    *("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops"),
    *("kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes"),
)
_SERVER = "echo $POD > /www/index.html; exec httpd -f -p 80 -h /www"


def _sysctls() -> dict[str, str]:
    return {name: Path("/proc/sys", name).read_text(encoding="ascii") for name in _SYSCTLS}


@pytest.fixture(scope="module")
def sysctls_before() -> dict[str, str]:
    return _sysctls()


@pytest.fixture(scope="module")
def cluster(
    sysctls_before: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KubeWorld]:
    """Three nodes, Ready, with two pods on each that answer HTTP with their names."""
    name = f"k{os.getpid()}"
    world = KubeWorld(load_topology("kube"), name, tmp_path_factory.mktemp("kube") / name)
    try:
        world.up()
        world.plane.kubectl("apply", "-f", "-", stdin=json.dumps(_daemon_set("server")))
        world.plane.kubectl("apply", "-f", "-", stdin=json.dumps(_daemon_set("client")))
        yield world
    finally:
        world.down()


def _daemon_set(name: str) -> Mapping[str, Any]:
    pod_name = {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    container = {
        "name": "server",
        "image": IMAGE,
        "command": ["/bin/sh", "-c", _SERVER],
        "env": [pod_name],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {
                    "containers": [container],
                    "terminationGracePeriodSeconds": 0,
                    "dnsPolicy": "Default",
                },
            },
        },
    }


def running_pods(world: KubeWorld, app: str) -> dict[str, dict[str, Any]]:
    """Pods of a DaemonSet by their nodes, once each node's runs and has its addresses."""

    def found() -> dict[str, dict[str, Any]]:
        items = json.loads(world.plane.kubectl("get", "pods", f"-lapp={app}", "-o", "json"))
        running = {
            pod["spec"]["nodeName"]: pod
            for pod in items["items"]
            if pod["status"]["phase"] == "Running" and pod["status"].get("podIPs")
        }
        return running if running.keys() == world.machines.keys() else {}

    return wait_until(found, f"pods of {app} run on every node")


def addresses(pod: Mapping[str, Any]) -> list[str]:
    return [each["ip"] for each in pod["status"]["podIPs"]]


def test_every_node_is_ready_and_says_its_own_addresses(cluster: KubeWorld) -> None:
    assert cluster.ready_nodes() == cluster.machines.keys()
    nodes = json.loads(cluster.plane.kubectl("get", "nodes", "-o", "json"))["items"]
    for node in nodes:
        told = [a["address"] for a in node["status"]["addresses"] if a["type"] == "InternalIP"]
        machine = cluster.machine(node["metadata"]["name"])
        assert told == [str(each.ip) for each in machine.addresses]


def test_pods_have_addresses_that_limpet_has_recorded(cluster: KubeWorld) -> None:
    for node, pod in running_pods(cluster, "server").items():
        listed = cluster.machine(node).ask("ipam.list", network="limpet")["records"]
        recorded = {each["address"] for each in listed if each["pod"] == pod["metadata"]["name"]}
        assert recorded == set(addresses(pod))
        assert len(recorded) == 2  # one of each family


def fetch(world: KubeWorld, client: Mapping[str, Any], servers: list[str]) -> list[str]:
    """Names that servers at these addresses say to a pod. Raises: LabError when one is silent."""
    urls = [f"http://[{each}]/" if ":" in each else f"http://{each}/" for each in servers]
    script = f"set -e; for url in {' '.join(urls)}; do timeout 5 wget -q -O - $url; done"
    return world.plane.kubectl("exec", client["metadata"]["name"], "--", "sh", "-c", script).split()


def test_pods_reach_each_other_across_nodes_and_sites(cluster: KubeWorld) -> None:
    servers, clients = running_pods(cluster, "server"), running_pods(cluster, "client")

    asked = [(server, each) for server in servers.values() for each in addresses(server)]
    names = [server["metadata"]["name"] for server, _ in asked]
    assert len(asked) == 6

    def all_answer(client: Mapping[str, Any]) -> bool:
        """Running does not mean yet that a server listens."""
        try:
            return fetch(cluster, client, [each for _, each in asked]) == names
        except LabError:
            return False

    for client in clients.values():
        wait_until(partial(all_answer, client), "all answer by both families")


def test_after_a_reboot_of_its_node_a_pod_answers_at_its_addresses(cluster: KubeWorld) -> None:
    server = running_pods(cluster, "server")["crane-2"]
    client = running_pods(cluster, "client")["digger-1"]

    cluster.reboot([cluster.machine("crane-2")])

    def answers() -> bool:
        try:
            return fetch(cluster, client, addresses(server)) == [server["metadata"]["name"]] * 2
        except LabError:
            return False

    wait_until(answers, "a new container of the same pod answers", patience_s=300)
    assert addresses(running_pods(cluster, "server")["crane-2"]) == addresses(server)


def test_what_a_kubelet_sets_system_wide_is_as_it_was_on_this_machine(
    cluster: KubeWorld, sysctls_before: dict[str, str]
) -> None:
    inside = cluster.kube_machines[0].system.run("cat", "/proc/sys/kernel/panic")

    assert inside.strip() == "10"  # what this kubelet wants of its node
    assert _sysctls() == sysctls_before
