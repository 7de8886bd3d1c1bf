"""Worlds of sites behind NATs: what tests ask of them, and what they wait for."""

from __future__ import annotations

import sys
import time
from typing import Any

from limpet.cluster.topology.transports import TRANSPORTS
from limpet.lab.measure.matrix import measure_until
from limpet.lab.measure.paths import seen_paths
from limpet.lab.needs.plan import first_rung
from limpet.lab.world.machine import Machine
from limpet.lab.world.pod import LabPod
from limpet.lab.world.world import World

WITHIN_S = 60.0
"""Nothing takes so long, and a loaded machine makes no failure."""

CLIMBS_WITHIN_S = 100.0
"""What tests/unit/paths/ladder/test_ladder_climbing.py holds (60 s), and what relays take to be
back."""

NATED = """
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
[site.mast]
lan = ["192.168.30.0/24"]
nat = "symmetric"
nodes = { radio-1 = 1 }
[site.elsewhere]
lan = ["198.51.100.0/24"]
delay_ms = 40
nodes = { buoy = 0 }
relays = ["buoy"]
"""
NEAR, FAR = "hub", "buoy"
"""Relays."""
RUNGS = {
    ("crane-1", "digger-1"): "tunnel",
    ("crane-1", "radio-1"): "tunnel",
    ("digger-1", "radio-1"): "relay",
    ("hub", "crane-1"): "tunnel",
    ("hub", "digger-1"): "tunnel",
    ("hub", "radio-1"): "tunnel",
}
"""Of each pair, when nothing is wrong: what a symmetric NAT maps nobody that filters by port
finds."""


def is_as_planned(world: World) -> bool:
    """Whether every pair is on a rung that needs what `lab.needs` says of it."""
    at = {node.name: (site, node) for site, node in world.topology.nodes}
    return all(
        (TRANSPORTS[seen.rung].encrypted if seen.rung else None)
        == first_rung(at[seen.source], at[seen.target]).encrypted
        for seen in seen_paths(world)
    )


def tell(words: str) -> None:
    """A figure, for who runs the test with `-s`."""
    sys.stdout.write(f"{words}\n")


def the_pod(machine: Machine) -> LabPod:
    return next(iter(machine.pods.values()))


def peer(machine: Machine, other: str) -> dict[str, Any]:
    """The other as the node's agent sees it."""
    found: dict[str, Any] = next(
        (each for each in machine.ask("peers")["peers"] if each["name"] == other), {}
    )
    return found


def rung(world: World, one: str, other: str) -> tuple[str, str]:
    """Of both directions."""
    here, there = world.machine(one), world.machine(other)
    return peer(here, other).get("rung", ""), peer(there, one).get("rung", "")


def until_on(world: World, one: str, other: str, *rungs: str) -> float:
    """Seconds until both ends are on one of the rungs. Raises: AssertionError."""
    started_s = time.monotonic()
    while not set(now := rung(world, one, other)) <= set(rungs):
        assert time.monotonic() < started_s + CLIMBS_WITHIN_S, f"{one} - {other}: {now}"
        time.sleep(0.1)
    return time.monotonic() - started_s


def until_as_before(world: World) -> None:
    for (one, other), wanted in RUNGS.items():
        until_on(world, one, other, wanted)
    all_reach(world)


def all_reach(world: World, *, but: tuple[str, ...] = (), within_s: float = WITHIN_S) -> float:
    """Seconds until every place reached every other, but for those of the nodes `but`.

    Raises: AssertionError.
    """
    left_out = {pod.name for label in but for pod in world.machine(label).pods.values()} | {*but}
    places = [place for place in world.places() if place.name not in left_out]
    started_s = time.monotonic()
    matrix = measure_until(places, within_s=within_s)
    assert not matrix.failures, matrix.failures
    return time.monotonic() - started_s
