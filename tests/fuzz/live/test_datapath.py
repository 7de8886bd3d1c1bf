"""A whole node under datagrams that nobody means: to the kernel's devices, to the programs of its
tunnels, and to its agent, from a member on its LAN and from a stranger there."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from limpet.lab.world.machine import Machine
from limpet.lab.world.tunnels import ipsec_pid, tunnel_pid
from limpet.lab.world.world import World
from tests.beds.namespaces import Netns
from tests.datapath.overlay.test_overlay_filter import forge
from tests.fuzz.live.bed import Thrower, lives_on
from tests.fuzz.mutation import mutate
from tests.fuzz.target import Shape
from tests.lab.bed import a_world, echo, echoing, everybody_reaches_everybody
from tests.lab.rungs import peer, the_pod
from tests.lab.sites.test_ipsec import sas
from tests.waiting import wait_until

TOPOLOGY = """
ipsec = true
[cloud]
addresses = ["203.0.113.10/24"]
nodes = { hub = 1 }
relays = ["hub"]
[site.harbour]
lan = ["192.168.1.0/24"]
nat = "cone"
nodes = { crane-1 = 1, crane-2 = 1 }
[site.quarry]
lan = ["192.168.2.0/24"]
nat = "cone"
nodes = { digger-1 = 1 }
"""
_VXLAN_PORT, _EXCHANGE_PORT = 8472, 7471
_LARGEST = 1_400
_LARGE_ONES = 0.02
"""Share of datagrams that come in fragments."""
_MOST_THROWS = 10


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """crane-1 sends to crane-2 by VXLAN, to the hub by WireGuard and to digger-1 by IPsec."""
    with a_world(TOPOLOGY, tmp_path) as world:
        world.controller.command(
            *("community", "create", "works", "crane-1", "crane-2", "digger-1"),
            *("--tunnel-backend", "ipsec"),
        )
        for here, there in (("crane-1", "digger-1"), ("digger-1", "crane-1")):
            machine = world.machine(here)
            wait_until(lambda: peer(machine, there).get("devices") == ["ipsec0"])  # noqa: B023
        everybody_reaches_everybody(world)
        yield world


def udp_ports(machine: Machine) -> set[int]:
    """Those that are open, of the kernel's VXLAN, of programs and of the agent."""
    words = machine.run("ss", "-Hlun").split()
    return {int(each.rpartition(":")[2]) for each in words if re.search(r":\d+$", each)}


def datagrams_of_tunnels(there: Machine, here: Machine) -> list[bytes]:
    """What a peer, or who looks like one, would send: in VXLAN, WireGuard, IKE and ESP in UDP."""
    found = []
    for device, link in there.links().items():
        if device.startswith("limvx"):
            for source, target in zip(
                the_pod(here).addresses, the_pod(there).addresses, strict=True
            ):
                for tagged in (False, True):
                    mac = link["address"]
                    found.append(forge(str(source.ip), str(target.ip), mac=mac, tagged=tagged))
    for kind, size in ((1, 148), (2, 92), (3, 64), (4, 32), (4, 96)):
        found.append(struct.pack("<II", kind, 1).ljust(size, b"w"))
    known = sas(there)
    inbound = [int(each, 16) for each in re.findall(r"'spi-in', b'([0-9a-f]{8})'", known)]
    ends = re.findall(r"'(?:initiator|responder)-spi', b'([0-9a-f]{16})'", known)
    assert inbound
    assert len(ends) >= 2
    for spis, exchange in ((os.urandom(8) + bytes(8), 34), (bytes.fromhex("".join(ends[:2])), 37)):
        # IKE_SA_INIT with a proposal, or INFORMATIONAL of an SA that there is, in clear.
        security = struct.pack(">BBHBBHBBBBI", 34, 0, 16, 0, 0, 12, 1, 1, 0, 0, 0)
        ike = spis + struct.pack(">BBBBII", 33, 0x20, exchange, 0x08, 0, 44) + security
        found += [ike, bytes(4) + ike]  # the latter where ESP comes too
    found += [struct.pack(">II", each, 9).ljust(100, b"e") for each in (1, 256, *inbound)]
    return [*found, b"\xff", b""]


def tables(machine: Machine) -> dict[str, int]:
    """How many entries the kernel has of what packets could have it learn."""
    return {
        what: len(machine.run(*words).splitlines())
        for what, words in (
            ("forwarding", ("bridge", "fdb", "show")),
            ("routes", ("ip", "route", "show", "table", "all")),
            ("states of IPsec", ("ip", "xfrm", "state")),
        )
    }


def received(machine: Machine) -> dict[str, int]:
    """Packets that VXLAN devices have handed up."""
    links = json.loads(machine.run("ip", "-j", "-s", "link", "show", "type", "vxlan"))
    return {each["ifname"]: each["stats64"]["rx"]["packets"] for each in links}


def throw(world: World, thrower: Thrower, chance: random.Random) -> None:
    crane, member = world.machine("crane-1"), world.machine("crane-2")
    stranger = world.wires.router(world.gateway("harbour").site)
    seeds = datagrams_of_tunnels(crane, member)
    ports, (address, *_) = sorted(udp_ports(crane)), crane.addresses
    with contextlib.ExitStack() as undo:
        senders = [
            undo.enter_context(Netns(name).open_socket(4, socket.SOCK_DGRAM))
            for name in (member.name, stranger)
        ]
        for data in thrower.inputs("peer-datagram", "exchange-message", "probe-body"):
            port = chance.choice(ports)
            if port == _VXLAN_PORT or chance.random() < 0.7:
                largest = 9_000 if chance.random() < _LARGE_ONES else _LARGEST
                data = mutate(chance.choice(seeds), Shape.BYTES, chance, largest)
            with contextlib.suppress(OSError):  # it is too large, or nobody is there
                chance.choice(senders).sendto(data, (str(address.ip), port))


def pid_of(found: int | None) -> int:
    assert found is not None
    return found


def test_datagrams_of_all_kinds_hurt_neither_the_agent_nor_tunnels_nor_the_kernel(
    world: World, chance: random.Random
) -> None:
    crane, thrower = world.machine("crane-1"), Thrower(chance)
    other, far = the_pod(world.machine("crane-2")), the_pod(world.machine("digger-1"))
    ports = udp_ports(crane)
    assert {_VXLAN_PORT, _EXCHANGE_PORT} <= ports
    assert len(ports) >= 4, "and those of WireGuard and IKE"
    before, arrived = tables(crane), received(crane)

    with (
        lives_on(lambda: crane.agent_pid),
        lives_on(lambda: pid_of(tunnel_pid(crane.name))),
        lives_on(lambda: pid_of(ipsec_pid(crane.name))),
    ):
        # A busy machine throws fewer of them in the time of one throw.
        for _ in range(_MOST_THROWS):
            throw(world, thrower, chance)
            if sum(received(crane).values()) > sum(arrived.values()) + 100:
                break

        for pod in (other, far):
            with echoing(pod.netns):
                for address in pod.addresses:
                    assert echo(the_pod(crane).netns, "tcp", address.ip, 1 << 18) == "same"
        everybody_reaches_everybody(world)

    assert thrower.count > 500
    assert sum(received(crane).values()) > sum(arrived.values()) + 100, "none was VXLAN's"
    # It asks its gateway for a port now and then, by a socket that is there for a moment.
    wait_until(lambda: udp_ports(crane) <= ports, "no socket is left over")
    gone = ports - udp_ports(crane)
    assert len(gone) <= 1, gone
    assert not {_VXLAN_PORT, _EXCHANGE_PORT} & gone
    grown = {what: number - before[what] for what, number in tables(crane).items()}
    assert max(grown.values()) < 20, grown
    for machine in world.machines.values():
        assert "Traceback" not in machine.log()
        assert "unexpected error" not in machine.log()
