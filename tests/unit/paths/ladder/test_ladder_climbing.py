"""How soon a pair is on the best rung again, whatever has happened to it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
from hypothesis import Phase as Stage
from hypothesis import given, settings
from hypothesis import strategies as st

from limpet.cluster.topology import transports
from tests.unit.paths.ladder.ladder_world import PUNCHABLE, RELAYS, Nat, World, rungs

SILENCE_S = 3.0
CLIMBS_S = {True: 35.0, False: 60.0}
"""After whatever faults, with traffic and without."""
PAIRS = list(itertools.product(Nat, Nat))
CONES = Nat.CONE, Nat.RESTRICTED


@dataclass(frozen=True)
class Phase:
    relays: frozenset[str]
    direct: bool
    clear: bool
    reboots: frozenset[int]
    """Ends whose gateway comes back with other ports."""
    lasts_s: float


relays = st.frozensets(st.sampled_from(RELAYS), min_size=1)
faults = st.builds(
    Phase,
    st.frozensets(st.sampled_from(RELAYS)),
    st.booleans(),
    st.booleans(),
    st.frozensets(st.sampled_from([0, 1]), max_size=2),
    st.sampled_from([1.0, 5.0, 25.0, 100.0]),
)
phases = st.builds(
    Phase,
    relays,
    st.booleans(),
    st.booleans(),
    st.frozensets(st.sampled_from([0, 1]), max_size=1),
    st.sampled_from([4.0, 8.0, 35.0]),
)


def begin(world: World, phase: Phase, *, relays: frozenset[str]) -> None:
    world.relays = set(relays)
    world.direct, world.clear = phase.direct, phase.clear
    for number in phase.reboots:
        world.reboot_gateway(world.ends[number])


def is_on_the_best_rung(world: World) -> bool:
    kinds = {end.gateway.kind for end in world.ends}
    punched = world.direct and frozenset(kinds) in PUNCHABLE
    udp = world.relays - {"relay-tls"}
    below = transports.TUNNEL if punched else transports.RELAY if udp else transports.RELAY_TLS
    clear = world.clear and Nat.NONE not in kinds  # never between public addresses
    best = transports.VXLAN if clear else below
    return all(
        end.path is not None
        and end.path.rung is best
        and (best is transports.VXLAN or end.path.mtu_bytes == 1500)
        for end in world.ends
    )


@settings(max_examples=8, phases=(Stage.explicit, Stage.reuse, Stage.generate))
@given(st.sampled_from(PAIRS), st.lists(phases, min_size=1, max_size=5))
def test_while_any_rung_works_no_silence_is_long_and_the_best_one_is_kept(
    kinds: tuple[Nat, Nat], found: list[Phase]
) -> None:
    world = World(*kinds).run(5)
    for phase, following in itertools.pairwise([*found, found[0]]):
        # A relay that works now goes on working until another has shown that it does.
        begin(world, phase, relays=phase.relays | following.relays)
        world.longest_dark_s = [0, 0]
        world.run(phase.lasts_s)
        assert max(world.longest_dark_s) <= SILENCE_S
    world.run(CLIMBS_S[True])
    changes = [len(end.changes) for end in world.ends]
    world.run(60)
    assert is_on_the_best_rung(world)
    assert changes == [len(end.changes) for end in world.ends]


@settings(max_examples=10, phases=(Stage.explicit, Stage.reuse, Stage.generate))
@given(st.sampled_from(PAIRS), st.booleans(), st.lists(faults, min_size=1, max_size=8))
def test_after_the_last_fault_a_pair_is_on_the_best_rung_within_the_bound(
    kinds: tuple[Nat, Nat], active: bool, found: list[Phase]
) -> None:
    world = World(*kinds).run(5)
    for end in world.ends:
        end.ladder.set_active(world.now_s, active=active)
    for phase in found:
        begin(world, phase, relays=phase.relays)
        world.run(phase.lasts_s)
    begin(world, Phase(frozenset(RELAYS), True, False, frozenset(), 0), relays=frozenset(RELAYS))
    world.run(CLIMBS_S[active])
    assert is_on_the_best_rung(world)


@pytest.mark.parametrize(("active", "within_s"), [(True, 15), (False, 40)])
@pytest.mark.parametrize("outages", [1, 2])
def test_after_a_fault_or_two_a_pair_is_soon_direct_again_however_long_they_took(
    active: bool, within_s: float, outages: int
) -> None:
    for lasts_s in (10, 100):
        world = World(Nat.RESTRICTED, Nat.RESTRICTED).run(60)
        for end in world.ends:
            end.ladder.set_active(world.now_s, active=active)
        for _ in range(outages):
            world.direct = False
            world.run(lasts_s)
            world.direct = True
            world.run(within_s)
            assert rungs(world) == [transports.TUNNEL, transports.TUNNEL]


def test_a_way_that_fails_again_and_again_is_climbed_to_ever_later() -> None:
    world = World(Nat.RESTRICTED, Nat.RESTRICTED).run(60)
    took_s = []
    for _ in range(5):
        world.direct = False
        world.run(6)
        assert rungs(world) == [transports.RELAY, transports.RELAY]
        world.direct = True
        since_s = world.now_s
        while world.ends[0].rung is not transports.TUNNEL:
            world.run(0.1)
        took_s.append(world.now_s - since_s)
        world.run(5)
    assert took_s[0] < 5
    assert took_s[-1] > 16
    assert took_s[-1] > took_s[0] + 10


def test_a_way_that_has_held_for_long_is_trusted_again() -> None:
    world = World(Nat.RESTRICTED, Nat.RESTRICTED).run(60)
    for held_s in (40, 40, 40, 500, 0):
        world.direct = False
        world.run(6)
        world.direct = True
        since_s = world.now_s
        while world.ends[0].rung is not transports.TUNNEL:
            world.run(0.1)
        took_s = world.now_s - since_s
        world.run(held_s)
    assert took_s < 5


def test_a_pair_without_traffic_that_proves_a_direct_way_tells_the_peer_at_once() -> None:
    world = World(*CONES)
    world.direct = False
    world.run(10)
    for end in world.ends:
        end.ladder.set_active(world.now_s, active=False)
    world.run(60)
    world.direct = True
    while not any(end.rung is transports.TUNNEL for end in world.ends):
        world.run(0.1)
    world.run(0.5)
    assert rungs(world) == [transports.TUNNEL, transports.TUNNEL]


def test_a_way_that_the_peer_is_heard_by_is_asked_again_though_it_was_just_asked_in_vain() -> None:
    world = World(Nat.RESTRICTED, Nat.RESTRICTED)
    world.direct = False
    world.run(100)
    end = world.ends[0]
    end.sent.clear()
    while not (found := [each.candidate for _at_s, each in end.sent if not each.candidate.relay]):
        world.run(0.1)
    heard = (found[-1].address, found[-1].port)
    end.sent.clear()
    end.ladder.heard(heard, world.now_s, relayed=False, in_use=False, punch=False)
    world.run(0.5)
    assert found[-1] in [question.candidate for _at_s, question in end.sent]
