"""Sites whose tunnels are made by IPsec, all of them or one community's, and the way there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from limpet.lab.machine import Machine
from limpet.lab.tunnels import ipsec_pid, tunnel_pid
from limpet.lab.world import World
from tests.lab.across import WITHIN_S, all_reach, peer, the_pod, until_on
from tests.lab.bed import a_world, echo, echoing, until

TWO_NATS = """
ipsec = true
[cloud]
addresses = ["203.0.113.10/24"]
nodes = { hub = 1 }
relays = ["hub"]
[site.harbour]
lan = ["192.168.1.0/24"]
nat = "cone"
nodes = { crane-1 = 1 }
[site.quarry]
lan = ["192.168.1.0/24"]
nat = "port-restricted"
nodes = { digger-1 = 1 }
"""
PAIRS = (("crane-1", "digger-1"), ("hub", "crane-1"), ("hub", "digger-1"))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with a_world(TWO_NATS, tmp_path_factory.mktemp("ipsec")) as world:
        for one, other in PAIRS:
            until_on(world, one, other, "tunnel")
        yield world


@pytest.fixture
def world(built: World) -> Iterator[World]:
    """Every tunnel is IPsec's, before and after."""
    use(built, "ipsec")
    yield built
    use(built, "ipsec")


def use(world: World, backend: str) -> None:
    """All tunnels are that backend's, and nothing is left of the other."""
    world.controller.command("network", "set", "--tunnel-backend", backend)
    device = "ipsec0" if backend == "ipsec" else ""
    for one, other in PAIRS:
        until_by(world, one, other, device)
    for machine in world.machines.values():
        gone = tunnel_pid if backend == "ipsec" else ipsec_pid
        until(lambda: gone(machine.name) is None, within_s=WITHIN_S)  # noqa: B023
    all_reach(world)


def until_by(world: World, one: str, other: str, device: str) -> None:
    """Both ends send by it; empty: by WireGuard's, of which each node's has a name of its own."""
    for here, there in ((one, other), (other, one)):
        machine = world.machine(here)
        name = device or machine.settings["tunnel_ifname"]
        until(lambda: peer(machine, there).get("devices") == [name], within_s=WITHIN_S)  # noqa: B023


def exchange(one: Machine, other: Machine) -> None:
    """Packets of every size, both families."""
    pod, its = the_pod(one), the_pod(other)
    with echoing(its.netns):
        for address in its.addresses:
            assert echo(pod.netns, "tcp", address.ip, 1 << 20) == "same"
            assert echo(pod.netns, "udp", address.ip, 8000) == "same"


def test_pods_of_two_sites_reach_each_other_by_ipsec_and_back_by_wireguard(built: World) -> None:
    crane, digger = built.machine("crane-1"), built.machine("digger-1")
    assert ipsec_pid(crane.name) is None

    use(built, "ipsec")

    exchange(crane, digger)
    assert crane.ask("status")["cluster"]["ipsec"]["backend"] == "strongswan"

    use(built, "wireguard")

    exchange(crane, digger)
    rules = crane.run("sh", "-c", "ip rule show; ip -6 rule show; nft list tables")
    assert "40000:" not in rules
    assert "limpet_ipsec" not in rules
    assert crane.ask("status")["cluster"]["ipsec"] is None


def test_where_only_a_relay_is_reached_ipsec_goes_by_it(world: World) -> None:
    crane, digger = world.machine("crane-1"), world.machine("digger-1")
    address = str(world.gateway("harbour").public)
    digger.run("ip", "route", "add", "blackhole", address)
    try:
        until_on(world, "crane-1", "digger-1", "relay")
        exchange(crane, digger)
    finally:
        digger.run("ip", "route", "del", "blackhole", address)
    until_on(world, "crane-1", "digger-1", "tunnel")


def test_a_node_that_reboots_in_1970_without_the_cloud_has_its_tunnels_again(world: World) -> None:
    digger = world.machine("digger-1")
    world.cut("cloud")
    try:
        digger.set_clock("1970-01-01 00:00:00")
        world.reboot([digger])
        all_reach(world, but=("hub",))
        exchange(world.machine("crane-1"), digger)
    finally:
        world.restore("cloud")
        digger.set_clock(None)


def test_a_community_has_ipsec_beside_the_networks_wireguard(world: World) -> None:
    crane, digger = world.machine("crane-1"), world.machine("digger-1")
    command = world.controller.command
    command("community", "create", "works", "crane-1", "digger-1", "--tunnel-backend", "ipsec")
    try:
        command("network", "set", "--tunnel-backend", "wireguard")
        until_by(world, "crane-1", "digger-1", "ipsec0")
        until_by(world, "hub", "crane-1", "")
        until_by(world, "hub", "digger-1", "")
        all_reach(world)
        exchange(crane, digger)
        exchange(world.machine("hub"), digger)
    finally:
        command("network", "set", "--tunnel-backend", "ipsec")
        command("community", "remove", "works", "--all")


def test_a_strongswan_that_is_killed_comes_back_with_everything(world: World) -> None:
    digger = world.machine("digger-1")
    pid = ipsec_pid(digger.name)
    assert pid is not None

    digger.run("kill", "-9", str(pid))

    until(lambda: ipsec_pid(digger.name) not in (None, pid), within_s=WITHIN_S)
    all_reach(world)
