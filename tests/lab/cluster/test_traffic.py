"""Pods and nodes on several links reach each other, by paths that were proven."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from limpet.lab.world.machine import Machine
from limpet.lab.world.world import World
from tests.lab.bed import (
    ONE_LAN,
    TWO_SITES,
    Pinging,
    a_world,
    echo,
    echoing,
    everybody_reaches_everybody,
    route_devices,
    routes,
    vtep_macs,
)
from tests.lab.policies import nodes_are_let_in_by_their_address, policies_hold
from tests.lab.policies_of_all_nodes import cluster_policies_hold
from tests.lab.rungs import is_as_planned, until_on
from tests.waiting import wait_until

FILTERING = ONE_LAN.replace("nodes =", "drops_unknown_sources = true\nnodes =")
UDP_HEADERS = {4: 28, 6: 48}
MTU_BYTES = {"eth0": 1450, "limvx4": 1450, "limvx6": 1430}
"""Of pods, and of VXLAN by the underlay that answered first: IPv6 has the larger header."""


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with a_world(TWO_SITES, tmp_path_factory.mktemp("sites")) as world:
        yield world


def test_sites_without_a_nat_need_no_tunnel_as_the_lab_says_beforehand(sites: World) -> None:
    wait_until(lambda: is_as_planned(sites))


@pytest.mark.parametrize(
    ("source", "target"),
    [("crane-1", "crane-2"), ("crane-1", "digger-1"), ("digger-1", "crane-2")],
)
def test_pods_of_different_nodes_exchange_full_size_packets(
    sites: World, source: str, target: str
) -> None:
    (pod,) = sites.machine(source).pods.values()
    (peer,) = sites.machine(target).pods.values()
    # A pair without a path takes the first way that answers: an encrypted one carries less.
    until_on(sites, source, target, "route", "vxlan")
    wait_until(lambda: route_devices(sites.machine(source), peer) <= MTU_BYTES.keys())
    mtu_bytes = min(MTU_BYTES[device] for device in route_devices(sites.machine(source), peer))
    with echoing(peer.netns):
        for address in peer.addresses:
            largest = mtu_bytes - UDP_HEADERS[address.version]
            assert echo(pod.netns, "tcp", address.ip, 1 << 20) == "same"
            assert echo(pod.netns, "udp", address.ip, 64) == "same"
            assert echo(pod.netns, "udp", address.ip, largest, whole=True) == "same"
            assert echo(pod.netns, "udp", address.ip, 8000) == "same"


@pytest.mark.parametrize(
    ("source", "target", "rung"),
    [("crane-1", "crane-2", "route"), ("crane-2", "digger-1", "vxlan")],
)
def test_policies_hold_on_a_plain_route_and_in_vxlan(
    sites: World, source: str, target: str, rung: str
) -> None:
    until_on(sites, source, target, rung)
    policies_hold(sites.machine(source), sites.machine(target))
    nodes_are_let_in_by_their_address(sites.machine(source), sites.machine(target))


def test_policies_of_the_cluster_hold_on_every_node(sites: World, tmp_path: Path) -> None:
    cluster_policies_hold(sites, tmp_path)


def test_nodes_reach_pods_and_pods_reach_nodes_by_overlay_address(sites: World) -> None:
    node = sites.machine("crane-1")
    (pod,) = sites.machine("digger-1").pods.values()
    with echoing(pod.netns):
        for address in pod.addresses:
            assert echo(node.name, "tcp", address.ip, 1 << 16) == "same"
    with echoing(node.name):
        for overlay in node.overlay_addresses():
            assert echo(pod.netns, "tcp", overlay, 1 << 16) == "same"
            assert echo(pod.netns, "udp", overlay, 64) == "same"


def test_one_link_is_a_plain_route_and_a_router_between_is_vxlan(sites: World) -> None:
    (neighbour,) = sites.machine("crane-2").pods.values()
    (far,) = sites.machine("digger-1").pods.values()
    node = sites.machine("crane-1")

    wait_until(lambda: route_devices(node, neighbour) == {"eth0"})

    assert route_devices(node, far) <= {"limvx4", "limvx6"}


def test_what_others_damage_comes_back_and_pods_do_not_notice(sites: World) -> None:
    node = sites.machine("crane-1")
    macs, wanted = vtep_macs(node), routes(node)
    links = links_of_pods(node)

    for damage in (
        ("ip", "link", "delete", next(iter(macs))),
        ("ip", "route", "flush", "table", "5148"),
        ("ip", "neigh", "flush", "dev", "limvx4", "nud", "permanent"),
        ("nft", "flush", "ruleset"),
        ("ip", "link", "set", "eth0", "down"),
    ):
        node.run(*damage)
        if damage[-1] == "down":
            node.run("ip", "link", "set", "eth0", "up")
            node.run("ip", "route", "replace", "default", "via", "192.168.10.1")
            for address in node.addresses:
                if address.version == 6:  # the kernel takes it away with the link
                    node.run("ip", "addr", "replace", str(address), "dev", "eth0", "nodad")
        everybody_reaches_everybody(sites)

    assert vtep_macs(node) == macs
    wait_until(lambda: routes(node).keys() == wanted.keys())
    assert links_of_pods(node) == links


def links_of_pods(node: Machine) -> set[str]:
    """And their bridge. The tunnel's program brings its own when it is up, as late as that is."""
    own = {link for link in node.links() if link.startswith("lim")}
    return {link for link in own if not link.startswith(("limvx", "limwg"))}


def test_an_agent_is_upgraded_without_losing_a_packet(sites: World) -> None:
    node, peer = sites.machine("crane-1"), sites.machine("digger-1")
    (pod,) = node.pods.values()
    (far,) = peer.pods.values()
    (neighbour,) = sites.machine("crane-2").pods.values()
    everybody_reaches_everybody(sites)
    # What others have damaged is mended: an agent that ends amid that leaves it as it is.
    wait_until(lambda: is_as_planned(sites))
    wait_until(lambda: route_devices(node, neighbour) == {"eth0"})
    with ExitStack() as running:
        pinging = [
            running.enter_context(Pinging(pod.netns, address.ip))
            for target in (far, neighbour)
            for address in target.addresses
        ]
        for machine in (node, peer):
            machine.stop_agent()
            machine.start_agent()
        everybody_reaches_everybody(sites)
        counts = [each.stop() for each in pinging]

    assert all(sent > 10 for sent, _answered in counts)
    assert [answered for _sent, answered in counts] == [sent for sent, _answered in counts]


def test_a_switch_that_drops_unknown_sources_ends_on_vxlan(tmp_path: Path) -> None:
    with a_world(FILTERING, tmp_path) as world:
        node = world.machine("node-1")
        (pod,) = world.machine("node-2").pods.values()

        assert route_devices(node, pod) <= {"limvx4", "limvx6"}
