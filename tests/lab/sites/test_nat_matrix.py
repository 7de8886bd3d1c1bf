"""Every kind of NAT against every other: each pair ends on the rung that it should."""

from __future__ import annotations

import itertools
from pathlib import Path

from limpet.lab.topology import load_topology
from limpet.lab.world.world import World
from tests.beds.traffic.first_packet import FirstPackets
from tests.lab.bed import a_world
from tests.lab.rungs import WITHIN_S, rung, tell
from tests.waiting import wait_until

KINDS = ("open", "cone", "port", "symm", "cgn")
BY_PORT = ("port", "symm", "cgn")
"""What comes in from a port that nothing was sent to is dropped."""


def expected(one: str, other: str) -> str:
    """A symmetric NAT's next port is known to nobody: who filters by port cannot be punched."""
    if "symm" in (one, other) and one in BY_PORT and other in BY_PORT:
        return "relay"
    return "tunnel"


def settled(world: World) -> dict[tuple[str, str], tuple[str, str]]:
    """Pairs that are not on their rung yet, and where they are."""
    found = {
        (one, other): rung(world, one, other)
        for one, other in itertools.combinations([f"{k}-{n}" for k in KINDS for n in (1, 2)], 2)
    }
    return {
        pair: now
        for pair, now in found.items()
        if set(now) != {expected(*(name.partition("-")[0] for name in pair))}
    }


def test_each_pair_of_nats_ends_on_the_rung_that_it_should(tmp_path: Path) -> None:
    with a_world(load_topology("nat-matrix").text, tmp_path) as world:
        wait_until(lambda: not settled(world))

        for kind in KINDS:
            node = world.machine(f"{kind}-1")
            targets = {other: world.machine(f"{other}-2") for other in KINDS}
            with FirstPackets(node, targets.values(), within_s=WITHIN_S) as first:
                for other, target in targets.items():
                    words = [f"{kind} -> {other}: first packet {first.first_s(target):.2f} s"]
                    if expected(kind, other) == "tunnel":
                        words.append(f"direct {first.direct_s(target):.2f} s")
                    tell(", ".join(words))
        wait_until(lambda: not settled(world))
