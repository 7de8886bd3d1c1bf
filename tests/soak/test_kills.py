"""Agents, relays, the controller and tunnels' programs are killed under load, `KILLS` times."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from limpet.lab.world.tunnels import ipsec_pid
from limpet.lab.world.world import World
from tests.effort import effort
from tests.lab.bed import a_world
from tests.lab.rungs import the_pod
from tests.soak.cloud import Guests, Person
from tests.soak.invariants import Invariants
from tests.soak.kills import Killer
from tests.soak.load import Load
from tests.soak.pods import Pods
from tests.soak.programs import Keeper, keepers, tunnels
from tests.soak.talk import Talk
from tests.waiting import wait_until

KILLS = int(os.environ.get("KILLS") or effort(20, 10_000))
KILLS_OF_A_STORM = 50
LEFTOVERS_EVERY = 5
"""Storms."""
GAP_S = 0.15
SLOTS = 4
"""Pods of a node that come and go."""

NATED = """
controller = { pod_cidrs = ["10.128.0.0/9", "fd00:244::/48"] }
[cloud]
addresses = ["203.0.113.10/24"]
[site.lighthouse]
lan = ["198.51.100.0/24"]
nodes = { hub = 1 }
relays = ["hub"]
[site.pier]
lan = ["198.51.101.0/24"]
nodes = { buoy = 1 }
relays = ["buoy"]
[site.harbour]
lan = ["192.168.1.0/24"]
nat = "cone"
nodes = { crane-1 = 1, crane-2 = 1 }
[site.quarry]
lan = ["192.168.1.0/24"]
nat = "port-restricted"
nodes = { digger-1 = 1 }
[site.mast]
lan = ["192.168.30.0/24"]
nat = "symmetric"
nodes = { radio-1 = 1 }
[site.bunker]
lan = ["192.168.40.0/24"]
nat = "cone"
udp = "blocked"
nodes = { mole-1 = 1 }
"""
BY_IPSEC = """
ipsec = true
controller = { pod_cidrs = ["10.128.0.0/9", "fd00:244::/48"] }
[cloud]
addresses = ["203.0.113.10/24"]
[site.lighthouse]
lan = ["198.51.100.0/24"]
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
"""Thousands of guests come and go, and their segments rest for a week."""
WORLDS = effort(
    [pytest.param(NATED, 1.0, id="wireguard")],
    [pytest.param(NATED, 0.8, id="wireguard"), pytest.param(BY_IPSEC, 0.2, id="ipsec")],
)
"""And which share of the kills happens there."""


def tell(words: str) -> None:
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


@contextmanager
def kept(world: World, chance: random.Random) -> Iterator[list[Keeper]]:
    """Within the block, what ends is started again."""
    found = keepers(world, chance)
    for each in found:
        each.start()
    try:
        yield found
    finally:
        for each in found:
            each.stop()


@contextmanager
def loads(all_of_them: Sequence[Load]) -> Iterator[None]:
    for each in all_of_them:
        each.start()
    try:
        yield
    finally:
        for each in all_of_them:
            each.end()


@pytest.mark.soak
@pytest.mark.timeout(effort(300, 0))
@pytest.mark.parametrize(("topology", "share"), WORLDS)
def test_what_was_acknowledged_is_kept_and_every_pair_is_back_however_often_programs_are_killed(
    topology: str, share: float, tmp_path: Path, chance: random.Random
) -> None:
    kills = round(KILLS * share)
    with a_world(topology, tmp_path) as world, ExitStack() as stack:
        if world.topology.ipsec:
            world.controller.command("network", "set", "--tunnel-backend", "ipsec")
            for machine in world.machines.values():
                wait_until(partial(ipsec_pid, machine.name), "its tunnels are IPsec's")
        running = stack.enter_context(kept(world, chance))
        talk = stack.enter_context(Talk([the_pod(each) for each in world.machines.values()]))
        pods = [Pods(each, SLOTS, another(chance)) for each in world.machines.values()]
        person, guests = Person(world, another(chance)), Guests(world, another(chance))
        work = [*pods, person, guests]
        stack.enter_context(loads(work))
        killer = Killer(
            another(chance), [*(each.program for each in running), *tunnels(world)], GAP_S
        )
        invariants = Invariants(world, (pods, person, guests, talk), another(chance))
        invariants.check()
        began_s, storms = time.monotonic(), 0
        while (left := kills - killer.count.total()) > 0:
            storm(killer, min(left, KILLS_OF_A_STORM), work, running)
            invariants.check()
            storms += 1
            if storms % LEFTOVERS_EVERY == 0 or left <= KILLS_OF_A_STORM:
                invariants.check_leftovers()
            tell(f"{killer.count.total()} kills in {time.monotonic() - began_s:.0f} s")
        summarize(killer, work, invariants, talk)


def another(chance: random.Random) -> random.Random:
    """For a thread of its own."""
    return random.Random(chance.getrandbits(32))


def storm(killer: Killer, kills: int, work: Sequence[Load], running: Sequence[Keeper]) -> None:
    """Kills under load; returns when everything runs again and nothing is under way."""
    for each in work:
        each.begin()
    killer.storm(kills)
    for each in work:
        each.rest()
    for keeper in running:
        wait_until(lambda: keeper.is_settled, f"{keeper.program.name} runs")  # noqa: B023
        assert keeper.faults == []


def summarize(killer: Killer, work: Sequence[Load], invariants: Invariants, talk: Talk) -> None:
    for (kind, manner), count in sorted(killer.count.items()):
        tell(f"{kind}: {count} by {manner}")
    for each in work:
        tell(f"{each.name}: {each.acknowledged} requests acknowledged")
    for what, count in invariants.compared.items():
        tell(f"{what}: {count}")
    tell(f"words heard: {talk.heard}")
    tell(f"longest silence of a pair: {max(talk.longest_s.values()):.1f} s")
    tell(f"longest until every pair was back after a storm: {invariants.longest_back_s:.1f} s")
