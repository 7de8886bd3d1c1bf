"""What happens to a node's links is repaired without a restart, and pods stay reachable."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from limpet.lab.world.machine import Machine
from limpet.lab.world.world import World
from tests.lab.bed import ONE_LAN, a_world, everybody_reaches_everybody, route_devices
from tests.waiting import wait_until

TWO_NODES = ONE_LAN.replace(", node-3 = 1", "")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with a_world(TWO_NODES, tmp_path_factory.mktemp("repair")) as made:
        yield made


def mtu_bytes(text: str) -> int:
    (link,) = json.loads(text)
    return int(link["mtu"])


def take_uplink_up(machine: Machine, ifname: str = "eth0") -> None:
    """As a DHCP client does."""
    machine.run("ip", "link", "set", ifname, "up")
    for address in machine.addresses:
        machine.run("ip", "addr", "replace", str(address), "dev", ifname, "nodad")


def test_a_new_pod_has_the_mtu_that_the_uplink_has_now(world: World) -> None:
    node = world.machine("node-1")
    for uplink, pod_bytes in ((1400, 1350), (1500, 1450)):
        node.run("ip", "link", "set", "eth0", "mtu", str(uplink))
        wait_until(lambda: node.ask("status")["mtu_bytes"] == uplink)  # noqa: B023

        pod = node.start_pod(f"pod-at-{uplink}")

        assert mtu_bytes(pod.run("ip", "-j", "link", "show", "eth0")) == pod_bytes
        node.stop_pod(pod.name)


def test_an_uplink_that_comes_after_the_agent_is_used(world: World) -> None:
    node = world.machine("node-1")
    node.stop_agent()
    node.run("ip", "addr", "flush", "dev", "eth0")
    node.run("ip", "link", "set", "eth0", "down")
    node.start_agent()
    assert node.ask("status")["cluster"]["links"] == []

    take_uplink_up(node)

    everybody_reaches_everybody(world)


def test_a_renamed_uplink_is_used_under_its_new_name(world: World) -> None:
    node, peer = world.machine("node-1"), world.machine("node-2")
    (pod,) = peer.pods.values()
    for old, new in (("eth0", "wan0"), ("wan0", "eth0")):
        node.run("ip", "link", "set", old, "down")
        node.run("ip", "link", "set", old, "name", new)
        take_uplink_up(node, new)

        everybody_reaches_everybody(world)
        wait_until(lambda: route_devices(node, pod) == {new})  # noqa: B023


def test_addresses_that_move_to_a_bridge_over_the_uplink_are_used_there(world: World) -> None:
    node = world.machine("node-2")
    node.run("ip", "link", "add", "br-lan", "type", "bridge")
    node.run("ip", "link", "set", "eth0", "master", "br-lan")
    node.run("ip", "addr", "flush", "dev", "eth0")
    take_uplink_up(node, "br-lan")

    everybody_reaches_everybody(world)
