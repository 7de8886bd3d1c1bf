"""Services at the socket, with pods in the cgroups that real kubelets make for them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from limpet.base.errors import LimpetError
from limpet.lab.command import side_by_side
from limpet.lab.kube.machine import KubeMachine
from limpet.lab.kube.runtimes import CRUN
from limpet.lab.kube.world import KubeWorld
from limpet.lab.topology import parse_topology
from tests.beds.namespaces import Netns
from tests.kube.installed.cluster import (
    CONTROL_PLANE,
    ask,
    import_image,
    rollout,
    running_pods,
)
from tests.kube.installed.test_installed import limpet
from tests.kube.installed.test_manifests import MANIFEST, SPACE
from tests.kube.services.service_day import (
    HOLDER,
    NAME,
    eventually,
    manifest_with_services,
    mount_bpffs,
    now_s,
    rounds_of,
)
from tests.kube.services.socket_pods import (
    CLASSES,
    answers_of,
    asking_pod,
    await_at_the_socket,
    group_of,
    of_the_node,
    serving_pods,
    tracked,
)

pytestmark = pytest.mark.timeout(1500)  # the image is built, two kubelets start

TOPOLOGY = """
kubernetes = true
bare = true
disk_mib = 0
[cloud]
addresses = ["203.0.113.10/24"]
[site.harbour]
lan = ["192.168.10.0/24"]
nodes = { crane-1 = 0, crane-2 = 0 }
"""
NODES = ("crane-1", "crane-2")
OF_THE_NODE = "of-the-node"
ASKING = (*CLASSES, OF_THE_NODE)
HELD = 50


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, archive: Path) -> Iterator[KubeWorld]:
    """Agents in pods serve at the socket; on each node is an endpoint. Kubelets make a cgroup for
    each class of QoS and each pod."""
    name = f"v{os.getpid()}"
    made = KubeWorld(
        parse_topology(TOPOLOGY, name, "a test"), name, tmp_path_factory.mktemp("ebpf") / name
    )
    for machine in made.kube_machines:
        machine.system.kubelet_settings["cgroupsPerQOS"] = True
        machine.system.oci_runtime = CRUN
    try:
        made.up()
        side_by_side(lambda machine: import_image(machine, archive), made.kube_machines)
        side_by_side(mount_bpffs, made.kube_machines)
        kubectl = made.plane.kubectl
        kubectl("label", "node", "crane-2", f"{CONTROL_PLANE}=")
        kubectl("label", "nodes", *NODES, f"serves={NAME}")
        kubectl("apply", "-f", "-", stdin=manifest_with_services(made, backend="ebpf"))
        kubectl("apply", "-f", str(MANIFEST.parent / "dns.yaml"))
        made.await_ready()
        apply(made, *serving_pods(NODES))
        for each in (f"deployment/{NAME}", "daemonset/limpet-agent", "daemonset/limpet-dns"):
            rollout(made, each, "default" if NAME in each else SPACE)
        asking = [asking_pod("crane-1", *each) for each in CLASSES.items()]
        apply(made, *asking, of_the_node(asking_pod("crane-1", OF_THE_NODE, {})))
        (crane,) = (each for each in made.kube_machines if each.label == "crane-1")
        # Each test may be run alone, and nftables may serve what a pod asks first.
        for name in ASKING:
            await_at_the_socket(crane, name, source_of(made, name), address_of_service(made))
        yield made
    finally:
        made.down()


@pytest.fixture
def machine(world: KubeWorld) -> KubeMachine:
    """The node where all pods are that ask."""
    found = world.machine("crane-1")
    assert isinstance(found, KubeMachine)
    return found


@pytest.fixture
def address(world: KubeWorld) -> str:
    return address_of_service(world)


def address_of_service(world: KubeWorld) -> str:
    return world.plane.kubectl("get", "service", NAME, "-o", "jsonpath={.spec.clusterIP}")


def apply(world: KubeWorld, *objects: object) -> None:
    items = {"apiVersion": "v1", "kind": "List", "items": objects}
    world.plane.kubectl("apply", "-f", "-", stdin=json.dumps(items))


def told_of(world: KubeWorld, pod: str, path: str) -> str:
    return world.plane.kubectl("get", "pod", pod, "-o", f"jsonpath={{{path}}}")


def source_of(world: KubeWorld, pod: str) -> str:
    """The address of a pod, once it has one."""
    eventually(lambda: told_of(world, pod, ".status.podIP"), f"{pod} has an address")
    return told_of(world, pod, ".status.podIP")


def test_pods_of_every_class_and_of_the_node_are_served_at_the_socket(
    world: KubeWorld, machine: KubeMachine, address: str
) -> None:
    serving = {each.name for each in running_pods(world, NAME, len(NODES)).values()}
    for name in ASKING:
        await_at_the_socket(machine, name, source_of(world, name), address)
        eventually(
            lambda name=name: {each.by for each in answers_of(machine, name)} >= serving,  # type: ignore[misc]
            "both endpoints answer",
        )
    for name in CLASSES:
        uid = told_of(world, name, ".metadata.uid")
        assert group_of(machine, name, uid), "it is in a group of its class"
        assert told_of(world, name, ".status.qosClass").lower() == name

    said = limpet(world, "status", "--node=crane-1")
    assert "Services: served by this node, by ebpf (" in said.stdout
    assert "not by eBPF" not in said.stdout
    found = limpet(world, "doctor", "--node=crane-1")
    assert "ok     this node serves Services, by ebpf (" in found.stdout
    assert "eBPF" not in found.stdout


def test_a_port_of_the_node_is_served_by_nftables_to_who_comes_from_outside(
    world: KubeWorld, machine: KubeMachine
) -> None:
    path = "jsonpath={.spec.ports[0].nodePort}"
    port = int(world.plane.kubectl("get", "service", NAME, "-o", path))
    its = str(machine.addresses[0].ip)
    serving = {each.name for each in running_pods(world, NAME, len(NODES)).values()}
    outside = Netns(world.netns_of("harbour.router"))
    with outside.connected(its, port) as asked:
        asked.sendall(b"who\n")
        assert asked.recv(1000).decode().strip() in serving
        source, its_port = asked.getsockname()
        assert ("tcp", source, str(its_port)) in tracked(machine, its)


def test_a_pod_that_comes_later_is_served_and_one_that_goes_leaves_nothing(
    world: KubeWorld, machine: KubeMachine, address: str
) -> None:
    late = asking_pod("crane-1", "late", CLASSES["burstable"])
    late["spec"]["containers"] += asking_pod("crane-1", "late-held", {}, HOLDER, str(HELD))["spec"][
        "containers"
    ]
    late["spec"]["containers"][1]["name"] = "holder"
    apply(world, late)
    await_at_the_socket(machine, "late", source_of(world, "late"), address)
    eventually(lambda: rounds_of(machine, "late-held"), "connections are held")
    uid = told_of(world, "late", ".metadata.uid")
    assert group_of(machine, "burstable", uid)
    assert connections(machine) >= HELD

    world.plane.kubectl("delete", "pod", "late", "--wait=true")
    eventually(lambda: not group_of(machine, "burstable", uid), "its groups are empty")
    eventually(lambda: connections(machine) < HELD, "its sockets are forgotten")


def connections(machine: KubeMachine) -> int:
    try:
        shown = ask(machine, "service", name=f"default/{NAME}")["endpoints"]
    except LimpetError:
        return HELD  # the agent starts
    return sum(each["connections"] for each in shown)


def test_connections_and_clients_do_not_notice_that_agents_are_replaced(
    world: KubeWorld, machine: KubeMachine, address: str
) -> None:
    """Nor is anything translated meanwhile."""
    apply(world, asking_pod("crane-1", "holder", {}, HOLDER, str(HELD)))
    eventually(lambda: rounds_of(machine, "holder"), f"{HELD} connections are held")
    rounds, began_s, before = len(rounds_of(machine, "holder")), now_s(), tracked(machine, address)

    world.plane.kubectl("rollout", "restart", "daemonset/limpet-agent", "-n", SPACE)
    rollout(world, "daemonset/limpet-agent")
    ended_s = now_s()
    eventually(lambda: rounds_of(machine, "holder")[-1].began_s > ended_s, "asked once more")

    during = rounds_of(machine, "holder")[rounds:]
    assert [each for each in during if each.failed or each.count != HELD] == []
    for name in ASKING:
        asked = answers_of(machine, name, began_s)
        assert [each for each in asked if each.why or each.peer != address] == [], name
    assert tracked(machine, address) <= before
    assert ask(machine, "services")["backend"] == "ebpf"


def test_a_kubelet_that_starts_anew_changes_nothing(
    world: KubeWorld, machine: KubeMachine, address: str
) -> None:
    groups = {
        name: group_of(machine, name, told_of(world, name, ".metadata.uid")) for name in CLASSES
    }
    began_s = now_s()
    machine.restart_kubelet()
    apply(world, asking_pod("crane-1", "later", CLASSES["guaranteed"]))
    await_at_the_socket(machine, "later", source_of(world, "later"), address)
    for name in ASKING:
        await_at_the_socket(machine, name, source_of(world, name), address)
        asked = answers_of(machine, name, began_s)
        assert [each for each in asked if each.why or each.peer != address] == [], name
    for name in CLASSES:
        assert group_of(machine, name, told_of(world, name, ".metadata.uid")) == groups[name]
