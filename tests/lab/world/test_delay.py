"""Links that take their time: plain packets, no agent runs here."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from limpet.lab.command import run_command
from limpet.lab.topology import parse_topology
from limpet.lab.world.wires import existing_namespaces
from limpet.lab.world.world import World
from limpet.lab.world.worlds import new_world
from tests.lab.bed import echo, echoing

TOPOLOGY = """
[cloud]
addresses = ["203.0.113.10/24", "2001:db8:c::a/64"]
nodes = { hub = 0 }
[site.late]
lan = ["192.168.1.0/24", "2001:db8:b::/64"]
nat = "port-restricted"
delay_ms = 15
rate_mbit = 1000
nodes = { late-1 = 0 }
"""
HUB = ("203.0.113.11", "2001:db8:c::b")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = new_world(parse_topology(TOPOLOGY, "late", "a test"), f"late{os.getpid()}", tmp_path)
    try:
        made.build()
        yield made
    finally:
        made.down()


def round_trip_ms(world: World, address: str) -> float:
    """The shortest of three."""
    words = ("ping", "-n", "-q", "-c", "3", "-i", "0.1", address)
    found = re.search(r"= ([0-9.]+)/", run_command(*words, netns=world.machine("late-1").name))
    assert found is not None
    return float(found[1])


def test_a_late_link_takes_its_time_each_way_spoils_nothing_and_goes_with_its_world(
    world: World,
) -> None:
    netns = world.machine("late-1").name
    with echoing(world.machine("hub").name):
        for address in HUB:
            assert round_trip_ms(world, address) >= 30
            assert echo(netns, "tcp", address, 4 << 20) == "same"
            assert echo(netns, "udp", address, 8000) == "same"

    world.gateway("late").reboot()
    assert round_trip_ms(world, HUB[0]) >= 30
    world.gateway("late").change_public_address()
    assert round_trip_ms(world, HUB[0]) >= 30

    world.down()
    assert existing_namespaces(world.name) == []
    assert world.gateway("late").uplink.process.pid is None
