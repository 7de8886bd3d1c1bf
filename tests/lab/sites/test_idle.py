"""NATs that forget soon: idle pairs are reached by their first packet all the same.

Agents' news of each other would now and then be traffic of a pair; here there are none.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Iterator

import pytest

from limpet.lab.command import side_by_side
from limpet.lab.topology import parse_topology
from limpet.lab.world.machine import Machine
from limpet.lab.world.world import World
from limpet.lab.world.worlds import new_world
from limpet.linux.namespaces import Namespace
from tests.lab.rungs import tell, the_pod, until_on
from tests.lab.strangers import keepalives, tunnel_key
from tests.waiting import PATIENCE_S

FORGETS_S = 8
"""Keepalives come every three seconds, and a busy machine may miss one."""
TOPOLOGY = f"""
[cloud]
addresses = ["203.0.113.10/24"]
nodes = {{ hub = 0 }}
relays = ["hub"]
[site.harbour]
lan = ["192.168.1.0/24"]
nat = "port-restricted"
udp_timeout_s = {FORGETS_S}
nodes = {{ crane-1 = 1 }}
[site.quarry]
lan = ["192.168.1.0/24"]
nat = "port-restricted"
udp_timeout_s = {FORGETS_S}
nodes = {{ digger-1 = 1 }}
[site.mast]
lan = ["192.168.30.0/24"]
nat = "symmetric"
udp_timeout_s = {FORGETS_S}
nodes = {{ radio-1 = 1 }}
[agent]
nat_timeout_s = 4
"""
NO_NEWS = """
table inet quiet {
    chain output { type filter hook output priority 0; oifname TUNNEL udp dport 7471 drop; }
}
"""


@pytest.fixture
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("idle")
    made = new_world(parse_topology(TOPOLOGY, "idle", "a test"), f"idle{os.getpid()}", folder)
    try:
        made.build()
        made.controller.start()
        side_by_side(lambda machine: begin(made, machine), made.machines.values())
        yield made
    finally:
        made.down()


def begin(world: World, machine: Machine) -> None:
    machine.run("nft", NO_NEWS.replace("TUNNEL", machine.settings["tunnel_ifname"]))
    world.enroll(machine)
    if machine.node.pods:
        machine.start_pod(f"{machine.label}-pod")


def datagrams(machine: Machine) -> socket.socket:
    with Namespace(machine.netns_path) as namespace, namespace.entered():
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.settimeout(PATIENCE_S)
    return made


def test_an_idle_pair_is_reached_by_its_first_packet_although_nats_have_forgotten_others(
    world: World,
) -> None:
    crane, digger, radio = (world.machine(name) for name in ("crane-1", "digger-1", "radio-1"))
    with datagrams(crane) as inner, datagrams(world.machine("hub")) as outer:
        outer.bind(("203.0.113.11", 5001))
        inner.sendto(b"hello", ("203.0.113.11", 5001))
        _, mapped = outer.recvfrom(100)
        until_on(world, "crane-1", "digger-1", "tunnel")
        until_on(world, "digger-1", "radio-1", "relay")
        select.select([], [], [], FORGETS_S + 1)  # time is what it is about

        outer.sendto(b"do you remember", mapped)
        inner.sendto(b"hello", ("203.0.113.11", 5001))
        _, mapped = outer.recvfrom(100)
        outer.sendto(b"hello again", mapped)
        assert inner.recv(100) == b"hello again"

    for one, other in ((crane, digger), (digger, radio)):
        began_s = time.monotonic()
        (address,) = (each.ip for each in the_pod(other).addresses if each.version == 4)
        assert the_pod(one).reaches(address)
        tell(f"{one.label} - {other.label}: {1e3 * (time.monotonic() - began_s):.0f} ms")

    # A relay is held by checks, not by the tunnel.
    assert keepalives(digger)[tunnel_key(crane)] == 3
    assert keepalives(digger)[tunnel_key(radio)] == 0
