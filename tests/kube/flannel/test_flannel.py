"""Limpet's nodes and real flanneld nodes on one VXLAN: their pods reach each other, both ways."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from functools import partial

import pytest

from limpet.lab.world.pod import LabPod
from tests.kube.flannel.flannel_bed import BesideWorld, beside_world
from tests.lab.bed import echo, echoing, limpet
from tests.waiting import wait_until

_TOPOLOGY = """
disk_mib = 0
[cloud]
addresses = ["203.0.113.10/24", "2001:db8:c::10/64"]
[site.harbour]
lan = ["192.168.10.0/24", "fd00:10::/64"]
nodes = { limpet-1 = 0, limpet-2 = 0, flannel-1 = 0, flannel-2 = 0 }
"""


@pytest.fixture(scope="module", name="world")
def _world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BesideWorld]:
    with beside_world(_TOPOLOGY, tmp_path_factory.mktemp("beside"), BesideWorld) as world:
        for number, name in enumerate(("limpet-1", "limpet-2"), 1):
            world.add_limpet(name, number)
        for number, name in enumerate(("flannel-1", "flannel-2"), 100):
            world.add_flannel(name, number)
        for machine in world.machines.values():
            machine.start_pod(f"{machine.label}-pod")
        yield world


def _reach(source: LabPod, target: LabPod) -> None:
    """Both families answer, as soon as both ends have heard of each other."""
    assert [each.version for each in target.addresses] == [4, 6]
    for address in target.addresses:
        wait_until(partial(source.reaches, address.ip, within_s=1))


def test_pods_of_both_reach_each_other_both_ways(world: BesideWorld) -> None:
    for source, target in itertools.permutations(world.pods, 2):
        _reach(source, target)


def test_large_packets_of_tcp_pass_between_both(world: BesideWorld) -> None:
    one, other = world.pod("limpet-1-pod"), world.pod("flannel-1-pod")
    for source, target in ((one, other), (other, one)):
        _reach(source, target)
        with echoing(target.netns):
            for address in target.addresses:
                assert echo(source.netns, "tcp", address.ip, 4_000_000) == "same"


def test_a_node_of_limpet_says_by_its_annotations_what_flannel_says(world: BesideWorld) -> None:
    machine = world.machines["limpet-1"]
    wait_until(lambda: "backend-v6-data" in world.annotations("limpet-1"))
    macs = {name: link["address"] for name, link in machine.links().items() if "limvx" in name}

    assert world.annotations("limpet-1") == {
        "kube-subnet-manager": "true",
        "backend-type": "vxlan",
        "backend-data": f'{{"VNI":1,"VtepMAC":"{macs["limvx4"]}"}}',
        "backend-v6-data": f'{{"VNI":1,"VtepMAC":"{macs["limvx6"]}"}}',
        "public-ip": str(machine.addresses[0].ip),
        "public-ipv6": str(machine.addresses[1].ip),
    }
    assert world.annotations("flannel-1").keys() == world.annotations("limpet-1").keys()


def test_what_a_node_of_flannel_is_can_be_seen(world: BesideWorld) -> None:
    nodes = json.loads(world.controller.command("node", "list", "--output", "json"))
    roles = {each["name"]: each["roles"] for each in nodes["nodes"]}

    assert roles == {
        "limpet-1": ["edge"],
        "limpet-2": ["edge"],
        "flannel-1": ["flannel"],
        "flannel-2": ["flannel"],
    }
    machine = world.machines["limpet-1"]
    peers = {each["name"]: each for each in machine.ask("peers")["peers"]}
    assert peers["flannel-1"]["rung"] == "vxlan"
    assert peers["flannel-1"]["underlay"] == str(world.machines["flannel-1"].addresses[0].ip)
    assert re.search(r"\bflannel-1\b.*\bvxlan\b", limpet(machine, "peer", "list"), re.I)
    assert "limpet-1" in limpet(machine, "status")


def test_a_node_of_limpet_that_moves_is_found_by_flannel_again(world: BesideWorld) -> None:
    """Only its address of IPv4 is another, which a dual-stack flannel passes over by itself."""
    machine = world.machines["limpet-2"]
    pod, other = world.pod("limpet-2-pod"), world.pod("flannel-2-pod")
    _reach(other, pod)
    before = machine.addresses
    fresh = (type(before[0])("192.168.10.77/24"), before[1])

    machine.change_addresses(fresh)

    wait_until(lambda: world.annotations("limpet-2").get("public-ip") == "192.168.10.77")
    _reach(other, pod)
    _reach(pod, other)


def test_a_node_of_flannel_that_is_deleted_is_no_peer_any_more(world: BesideWorld) -> None:
    machine = world.machines["flannel-2"]
    machine.flanneld.stop()
    world.plane.kubectl("delete", "node", "flannel-2")

    def names() -> list[str]:
        nodes = json.loads(world.controller.command("node", "list", "--output", "json"))
        return [each["name"] for each in nodes["nodes"]]

    wait_until(lambda: "flannel-2" not in names())
    there = {
        each["dst"]
        for each in json.loads(
            world.machines["limpet-1"].run("ip", "-j", "route", "show", "table", "5148")
        )
    }
    assert "10.244.100.0/24" in there
    wait_until(
        lambda: (
            "10.244.101.0/24"
            not in world.machines["limpet-1"].run("ip", "route", "show", "table", "5148")
        )
    )


def test_a_node_that_can_be_no_peer_has_an_event_that_says_why(world: BesideWorld) -> None:
    world.make_node("stranger", ["10.99.0.0/24", "fd00:99::/64"])
    macs = re.compile(r"([0-9a-f]{2}:){5}[0-9a-f]{2}")
    for name, value in world.annotations("flannel-1").items():
        own = macs.sub("0e:99:00:00:00:99", value)  # the other's would be the reason
        word = f"flannel.alpha.coreos.com/{name}={own}"
        world.plane.kubectl("annotate", "node", "stranger", word)

    def told() -> str:
        only = "--field-selector=reason=NotBesideFlannel"
        return world.plane.kubectl("get", "events", "-A", only, "-o", "jsonpath={..message}")

    wait_until(lambda: "10.99.0.0/24 is no segment of this cluster" in told())
