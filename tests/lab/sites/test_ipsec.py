"""Sites whose tunnels are made by IPsec, all of them or one community's, and the way there."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import vici

from limpet.base.ownership import IPSEC_FOLDER
from limpet.lab.world.machine import Machine
from limpet.lab.world.tunnels import ipsec_pid, tunnel_pid
from limpet.lab.world.world import World
from tests.lab.bed import a_world, echo, echoing, is_refused, limpet
from tests.lab.policies import policies_hold
from tests.lab.rungs import all_reach, peer, the_pod, until_on
from tests.waiting import wait_until

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
        wait_until(lambda: gone(machine.name) is None)  # noqa: B023
    all_reach(world)


def until_by(world: World, one: str, other: str, device: str) -> None:
    """Both ends send by it; empty: by WireGuard's, of which each node's has a name of its own."""
    for here, there in ((one, other), (other, one)):
        machine = world.machine(here)
        name = device or machine.settings["tunnel_ifname"]
        wait_until(lambda: peer(machine, there).get("devices") == [name])  # noqa: B023


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
    policies_hold(crane, digger)
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


@contextmanager
def both_backends(world: World) -> Iterator[None]:
    """The community of the two sites has IPsec, beside the network's WireGuard."""
    command = world.controller.command
    command("community", "create", "works", "crane-1", "digger-1", "--tunnel-backend", "ipsec")
    try:
        command("network", "set", "--tunnel-backend", "wireguard")
        until_by(world, "crane-1", "digger-1", "ipsec0")
        until_by(world, "hub", "crane-1", "")
        until_by(world, "hub", "digger-1", "")
        all_reach(world)
        yield
    finally:
        command("network", "set", "--tunnel-backend", "ipsec")
        command("community", "remove", "works", "--all")


@contextmanager
def without_strongswan(machine: Machine) -> Iterator[None]:
    """As if its package had been removed."""
    machine.stop_agent()
    right = machine.settings["ipsec_program"]
    machine.settings["ipsec_program"] = "/nowhere/charon-systemd"
    machine.run("kill", str(ipsec_pid(machine.name)))
    wait_until(lambda: ipsec_pid(machine.name) is None)
    machine.start_agent()
    try:
        yield
    finally:
        machine.stop_agent()
        machine.settings["ipsec_program"] = right
        machine.start_agent()


def test_a_community_has_ipsec_beside_wireguard_and_who_lacks_it_is_told_of_at_both_ends(
    world: World,
) -> None:
    crane, digger, hub = (world.machine(name) for name in ("crane-1", "digger-1", "hub"))
    address = str(the_pod(digger).addresses[0].ip)
    with both_backends(world):
        exchange(crane, digger)
        pid = ipsec_pid(digger.name)
        digger.run("kill", "-9", str(pid))
        wait_until(lambda: ipsec_pid(digger.name) not in (None, pid))
        all_reach(world)

        with without_strongswan(digger):
            wait_until(lambda: peer(crane, "digger-1")["state"] == "unreached")
            wait_until(lambda: peer(digger, "crane-1")["state"] == "unreached")
            assert "strongSwan does not run" in peer(crane, "digger-1")["why"]
            assert crane.ask("status")["cluster"]["peers"]["unreached"] == 1
            (path,) = crane.ask("path", origin=the_pod(crane).name, target=address)["paths"]
            assert path["reachable"] is False
            assert "strongSwan does not run" in path["there"]["reason"]
            problem = digger.ask("status")["cluster"]["ipsec"]["problem"]
            assert problem.startswith("/nowhere/charon-systemd is not there")
            doctor = is_refused(lambda: limpet(digger, "doctor"))
            assert "there is no tunnel by IPsec" in doctor
            assert "install strongSwan 5.9 or newer" in doctor
            for other in (crane, digger):
                exchange(hub, other)

        until_by(world, "crane-1", "digger-1", "ipsec0")
        all_reach(world)


def sas(machine: Machine) -> str:
    """All that its IKE daemon says of them."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(machine.run_dir / IPSEC_FOLDER / "vici.sock"))
        return str(list(vici.Session(connection).list_sas()))


def test_a_node_that_was_removed_loses_its_sas_on_who_heard_of_it_from_others(built: World) -> None:
    use(built, "ipsec")
    crane, digger = built.machine("crane-1"), built.machine("digger-1")
    uid = peer(digger, "crane-1")["uid"]
    assert uid in sas(digger)
    # The quarry hears of nothing but its neighbours: the controller's port is closed to it.
    digger.run("ip", "route", "add", "blackhole", "203.0.113.10/32")
    try:
        built.controller.command("node", "remove", "crane-1")

        wait_until(lambda: uid not in sas(digger))

        assert peer(digger, "crane-1").get("state") != "reached"
        for address in the_pod(crane).addresses:
            assert not the_pod(digger).reaches(address.ip, within_s=1)
        assert uid not in sas(digger)
    finally:
        digger.run("ip", "route", "del", "blackhole", "203.0.113.10/32")
