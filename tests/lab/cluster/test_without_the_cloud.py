"""The cloud is cut; the nodes go on, change, reboot, and tell it all when it is back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from limpet.agent.policies.words import UNHEARD
from limpet.cluster.snapshot import completeness
from limpet.lab.world.machine import Machine
from limpet.lab.world.world import World
from tests.lab.bed import (
    TWO_SITES,
    a_world,
    everybody_reaches_everybody,
    findings,
    limpet,
    listening,
    remember,
    route_devices,
    routes,
    vtep_macs,
)
from tests.lab.policies_of_all_nodes import asked
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with a_world(TWO_SITES, tmp_path_factory.mktemp("cut")) as world:
        node = world.machine("crane-1")
        for number in range(2):  # more than half of the five that a segment has
            node.start_pod(f"early-{number}")
        wait_until(lambda: len(prefixes_of(node, 4)) == 2)
        yield world


@pytest.fixture
def cut(world: World) -> World:
    """The world, whose nodes know each other; its cloud is cut, and was when it was set up."""
    if not world.wires.cuts():
        everybody_reaches_everybody(world)
        world.cut("cloud")
    return world


def prefixes_of(machine: Machine, version: int) -> set[str]:
    """Its segments."""
    prefixes = [each["prefix"] for each in machine.ask("status")["segments"]]
    return {prefix for prefix in prefixes if ip_network(prefix).version == version}


def test_a_pod_that_restarts_keeps_its_address_and_is_reached(cut: World) -> None:
    node = cut.machine("crane-1")
    pod = next(iter(node.pods.values()))
    before = pod.addresses

    node.stop_pod(pod.name)
    again = node.start_pod(pod.name)

    assert again.addresses == before
    everybody_reaches_everybody(cut)


def test_new_pods_start_past_the_end_of_the_segment(cut: World) -> None:
    node = cut.machine("crane-1")
    pods = [node.start_pod(f"more-{number}") for number in range(6)]

    firsts = {pod.addresses[0].network for pod in pods}
    assert len(firsts) == 2
    everybody_reaches_everybody(cut)
    for pod in pods:
        node.stop_pod(pod.name)


def test_a_node_reboots_and_peers_that_heard_nothing_reach_it(cut: World) -> None:
    node = cut.machine("crane-2")
    macs, pods = vtep_macs(node), remember(node)
    segments = node.ask("status")["segments"]

    cut.reboot([node])

    assert vtep_macs(node) == macs
    assert remember(node) == pods
    assert [s["prefix"] for s in node.ask("status")["segments"]] == [s["prefix"] for s in segments]
    everybody_reaches_everybody(cut)


def test_a_changed_address_is_heard_of_by_neighbours(cut: World) -> None:
    cut.change_addresses([cut.machine("crane-1")])

    everybody_reaches_everybody(cut)


def test_two_nodes_that_change_at_once_find_each_other_on_their_link(cut: World) -> None:
    cut.change_addresses([cut.machine("crane-1"), cut.machine("crane-2")])

    everybody_reaches_everybody(cut)
    (pod,) = cut.machine("crane-2").pods.values()
    wait_until(lambda: route_devices(cut.machine("crane-1"), pod) == {"eth0"})


def test_a_whole_site_reboots_at_once_in_1970(cut: World) -> None:
    machines = cut.select("harbour")
    before = {machine.label: (vtep_macs(machine), remember(machine)) for machine in machines}
    for machine in machines:
        machine.set_clock("1970-01-01 00:00:00")

    cut.reboot(machines)

    assert {m.label: (vtep_macs(m), remember(m)) for m in machines} == before
    everybody_reaches_everybody(cut)


def test_when_the_cloud_is_back_it_learns_all_of_it_and_nothing_flaps(cut: World) -> None:
    node, far = cut.machine("crane-1"), cut.machine("digger-1")
    new = node.start_pod("started-during-the-cut")
    everybody_reaches_everybody(cut)
    (neighbour,) = cut.machine("crane-2").pods.values()
    # After the reboot of the test before, the pair of one LAN may still climb to it from VXLAN.
    wait_until(lambda: route_devices(node, neighbour) == {"eth0"})
    before = prefixes_of(far, 4)
    with listening(node) as stop:
        cut.restore("cloud")
        wait_until(lambda: held(cut).get(new.name) == {str(a.ip) for a in new.addresses})
        wait_until(lambda: addresses_in_the_cloud(cut) == addresses_on_the_nodes(cut))
        # What comes by the same way after all of it: another segment of a peer, and its route.
        more = [far.start_pod(f"last-{number}") for number in range(3)]
        wait_until(lambda: prefixes_of(far, 4) > before)
        wait_until(lambda: prefixes_of(far, 4) <= routes(node).keys())

        told = stop()

    assert [line for line in told if line.startswith("Deleted")] == []
    everybody_reaches_everybody(cut)
    node.stop_pod(new.name)
    for pod in more:
        far.stop_pod(pod.name)


def held(world: World) -> dict[str, set[str]]:
    """Addresses by pod, as `limpet pod list` says in the cloud."""
    document: Any = json.loads(world.controller.command("pod", "list", "--output", "json"))
    return {each["pod"]: set(each["addresses"]) for each in document["pods"]}


def addresses_in_the_cloud(world: World) -> dict[str, set[str]]:
    found = {}
    for name in world.machines:
        presence = world.controller.ask("node.show", node=name)["presence"]
        found[name] = set(presence["addresses"])
    return found


def addresses_on_the_nodes(world: World) -> dict[str, set[str]]:
    return {
        machine.label: {str(address.ip) for address in machine.addresses}
        for machine in world.machines.values()
    }


ONE_NODE = """
[cloud]
addresses = ["203.0.113.10/24", "2001:db8:c::10/64"]
[site.lan]
lan = ["192.168.10.0/24", "fd00:10::/64"]
nodes = { node-1 = 2 }
"""
CLOSED = """
[[policies]]
apiVersion = "networking.k8s.io/v1"
kind = "NetworkPolicy"
metadata = { name = "closed", namespace = "default" }
[policies.spec]
podSelector = {}
policyTypes = ["Ingress"]
"""


def test_new_hardware_that_is_cut_off_after_its_join_is_under_the_clusters_policies(
    tmp_path: Path,
) -> None:
    with a_world(ONE_NODE, tmp_path) as alone:
        node = alone.machine("node-1")
        (tmp_path / "closed.toml").write_text(CLOSED)
        asked(alone, "policy", "apply", str(tmp_path / "closed.toml"))
        alone.controller.command("node", "replace", "node-1")
        token = alone.controller.token()
        node.stop_agent()
        node.join(token, alone.controller.endpoints, "--new-identity")
        alone.cut("cloud")
        node.power_off()
        node.power_on()

        one, other = node.pods.values()
        assert listed(node) == (["closed"], [])
        assert not one.reaches(other.addresses[0].ip, within_s=1)

        # With a disk that may have lost some: closed, also without any, until all were heard.
        asked(alone, "policy", "delete", "default/closed")
        alone.restore("cloud")
        wait_until(lambda: listed(node) == ([], []))
        alone.cut("cloud")
        node.power_off()
        completeness.doubt(node.disk / "state" / "cluster")
        node.power_on()
        one, other = node.pods.values()
        assert listed(node) == (["not-heard-yet"], [UNHEARD])
        assert f"PODS ARE CLOSED: {UNHEARD}" in limpet(node, "status")
        assert findings(node)["policies-unheard"] == UNHEARD
        assert not one.reaches(other.addresses[0].ip, within_s=1)
        alone.restore("cloud")
        wait_until(lambda: listed(node) == ([], []))
        assert one.reaches(other.addresses[0].ip, within_s=10)

        # So with one that has lost all that the node knew of its cluster.
        alone.cut("cloud")
        node.stop_agent()
        for lost in ("snapshot.log", "own.log"):
            (node.disk / "state" / "cluster" / lost).unlink()
        node.start_agent()
        assert listed(node) == (["not-heard-yet"], [UNHEARD])
        assert not one.reaches(other.addresses[0].ip, within_s=1)
        alone.restore("cloud")
        wait_until(lambda: listed(node) == ([], []))
        assert one.reaches(other.addresses[0].ip, within_s=10)


def listed(machine: Machine) -> tuple[list[str], list[str]]:
    """Names of the policies there, and what is wrong with them."""
    said = machine.ask("policy.list")
    return [each["name"] for each in said["policies"]], said["problems"]
