"""Ladders of two nodes against each other, through NATs and relays."""

from __future__ import annotations

import itertools
from dataclasses import replace
from ipaddress import ip_address

import pytest

from limpet.cluster.topology import transports
from limpet.cluster.topology.paths import PeerPath
from limpet.cluster.topology.transports import ProbeKind
from limpet.paths.ladder.ladder import Ladder
from limpet.paths.ladder.path_mtu import LEAST_BYTES
from limpet.paths.ladder.probe_state import BESIDE_S, STANDBY_S, Question
from limpet.paths.probe.messages import AnsweredBy
from tests.unit.paths.ladder.ladder_world import (
    PUNCHABLE,
    RELAYS,
    TUNNEL_PORT,
    End,
    Nat,
    World,
    rungs,
)

SILENCE_S = 3.0
PAIRS = list(itertools.product(Nat, Nat))
CONES = Nat.CONE, Nat.RESTRICTED


def endpoints(end: End) -> list[str]:
    return [f"{path.rung.name} {path.endpoint}" for _at_s, path in end.changes if path]


def asked(world: World, seconds: float) -> list[Question]:
    """By the first end."""
    end = world.ends[0]
    end.sent.clear()
    world.run(seconds)
    return [question for _at_s, question in end.sent]


# Where a pair ends


@pytest.mark.parametrize(("one", "two"), PAIRS)
def test_each_pair_of_nats_ends_direct_where_it_can_be_punched_and_else_on_a_relay(
    one: Nat, two: Nat
) -> None:
    world = World(one, two).run(1)
    assert all(end.path is not None for end in world.ends)
    world.longest_dark_s = [0, 0]
    world.run(20)
    best = transports.TUNNEL if frozenset({one, two}) in PUNCHABLE else transports.RELAY
    assert rungs(world) == [best, best]
    assert world.longest_dark_s == [0, 0]
    relays = {end.path.relay for end in world.ends if end.path}
    assert len(relays) == 1


def test_where_no_direct_way_works_a_relay_serves_and_others_are_tried_rarely() -> None:
    world = World(Nat.RESTRICTED, Nat.RESTRICTED)
    world.direct = False
    world.run(100)
    assert rungs(world) == [transports.RELAY, transports.RELAY]
    seconds = 300
    direct = [each for each in asked(world, seconds) if not each.candidate.relay]
    candidates = {each.candidate for each in direct if each.candidate.kind is ProbeKind.TUNNEL}
    assert 1 <= len(candidates) <= 3
    # Once a minute by itself, and once for each time that the peer does.
    assert len(direct) <= 3 * len(world.ends[0].ladder.candidates) * seconds / 60


def test_where_udp_is_blocked_the_tls_relay_serves() -> None:
    world = World(Nat.SYMMETRIC, Nat.SYMMETRIC)
    world.relays = {"relay-tls"}
    assert rungs(world.run(3)) == [transports.RELAY_TLS, transports.RELAY_TLS]
    world.relays = set(RELAYS)
    assert rungs(world.run(70)) == [transports.RELAY, transports.RELAY]


def test_an_unencrypted_rung_is_preferred_where_it_is_proven_and_no_tunnel_is_asked_then() -> None:
    world = World(*CONES).run(60)
    assert rungs(world) == [transports.TUNNEL, transports.TUNNEL]
    world.clear = True
    assert rungs(world.run(70)) == [transports.VXLAN, transports.VXLAN]
    assert {each.candidate.kind for each in asked(world, 100)} == {ProbeKind.SITE}


# Climbing and falling


def test_a_pair_that_climbs_keeps_its_relay_until_it_is_known_what_the_direct_way_carries() -> None:
    world = World(*CONES)
    world.direct, world.mtu_bytes = False, 1420
    world.run(10)
    world.direct = True
    world.run(70)
    assert rungs(world) == [transports.TUNNEL, transports.TUNNEL]
    for end in world.ends:
        direct = [path for _at_s, path in end.changes if path and path.rung is transports.TUNNEL]
        assert direct[0].mtu_bytes == 1420
        assert {path.mtu_bytes for path in direct} == {1420}


def test_a_way_that_died_before_its_size_was_known_is_climbed_to_as_soon_as_it_works_again() -> (
    None
):
    world = World(Nat.RESTRICTED, Nat.RESTRICTED)
    world.mtu_bytes = 600
    world.run(0.5)
    assert rungs(world) == [transports.TUNNEL, transports.TUNNEL]
    world.direct, world.mtu_bytes = False, 1500
    world.run(5)
    assert rungs(world) == [transports.RELAY, transports.RELAY]
    world.direct = True
    world.run(12)
    assert rungs(world) == [transports.TUNNEL, transports.TUNNEL]


def test_a_gateway_that_comes_back_with_other_ports_is_punched_anew_within_the_bound() -> None:
    world = World(Nat.RESTRICTED, Nat.RESTRICTED).run(60)
    assert rungs(world) == [transports.TUNNEL, transports.TUNNEL]
    world.longest_dark_s = [0, 0]
    world.ends[1].gateway.reboot()
    world.later(5, world.ends[0].settle)  # the presence with the new endpoint
    world.run(70)
    assert max(world.longest_dark_s) <= SILENCE_S
    assert rungs(world) == [transports.TUNNEL, transports.TUNNEL]


@pytest.mark.parametrize("delay_s", [0.01, 0.15, 0.24])
def test_a_path_that_dies_is_left_within_the_bound_however_long_the_way_is(delay_s: float) -> None:
    world = World(Nat.RESTRICTED, Nat.RESTRICTED)
    world.direct_s = world.relay_s = delay_s
    for _ in range(3):
        world.direct = True
        world.run(100)
        assert rungs(world) == [transports.TUNNEL, transports.TUNNEL]
        world.longest_dark_s = [0, 0]
        world.direct = False
        world.run(5.3)
        assert rungs(world) == [transports.RELAY, transports.RELAY]
        assert max(world.longest_dark_s) <= SILENCE_S


def test_when_the_links_of_a_node_change_a_way_that_went_with_them_is_left_within_a_second() -> (
    None
):
    world = World(Nat.RESTRICTED, Nat.RESTRICTED).run(100)
    end = world.ends[0]
    assert (rungs(world)[0], end.ends) == (transports.TUNNEL, ())
    world.direct = False
    end.link = replace(end.link, ifname="wwan0", ifindex=3)
    end.settle(reprobe=True)
    world.run(1)
    assert end.rung is transports.RELAY


def test_a_way_with_traffic_is_left_soon_also_where_other_peers_are_asked_before_it() -> None:
    world = World(Nat.RESTRICTED, Nat.RESTRICTED).run(100)
    end = world.ends[0]
    world.direct = False
    end.link = replace(end.link, ifname="wwan0", ifindex=3)
    end.settle(reprobe=True, in_s=20)
    world.run(2)
    assert end.rung is transports.RELAY


def test_a_relay_that_is_withdrawn_is_left_at_once() -> None:
    world = World(Nat.SYMMETRIC, Nat.SYMMETRIC).run(20)
    end = world.ends[0]
    assert end.path is not None
    used = end.path.relay
    end.ends = tuple(each for each in end.ends if each.relay != used)
    end.settle()
    assert end.path.relay not in ("", used)


@pytest.mark.parametrize("active", [True, False])
def test_a_much_nearer_relay_is_gone_over_to_soon_after_its_first_answer(active: bool) -> None:
    world = World(Nat.SYMMETRIC, Nat.SYMMETRIC)
    world.relays, world.farther_s = {"relay-one"}, {"relay-one": 0.04}
    world.run(20)
    for end in world.ends:
        end.ladder.set_active(world.now_s, active=active)
    world.relays.add("relay-two")
    while not any(each.candidate.relay == "relay-two" for each in asked(world, 1)):
        pass
    world.run(5)
    assert [end.path.relay for end in world.ends if end.path] == ["relay-two"] * 2
    assert world.longest_dark_s == [pytest.approx(0, abs=1)] * 2

    world.farther_s = {"relay-two": 0.01}
    world.run(400)
    assert [end.path.relay for end in world.ends if end.path] == ["relay-two"] * 2


def test_both_ends_choose_the_same_of_several_ways() -> None:
    world = World(Nat.SYMMETRIC, Nat.SYMMETRIC, loss=0.1, seed=7)
    for _ in range(10):
        world.run(30)
        one, two = world.ends
        assert one.path is not None
        assert two.path is not None
        assert one.path.relay == two.path.relay


def test_a_pair_with_traffic_is_asked_every_second_and_one_without_rarely() -> None:
    world = World(Nat.NONE, Nat.NONE).run(60)
    assert len(asked(world, 20)) == pytest.approx(20, abs=2)
    for end in world.ends:
        end.ladder.set_active(world.now_s, active=False)
    world.run(STANDBY_S)
    assert len(asked(world, 10 * STANDBY_S)) == pytest.approx(10, abs=2)


@pytest.mark.parametrize("since_s", [0.0, 0.1, 5.0])
def test_a_pair_that_gets_traffic_just_after_it_was_asked_is_watched_closely_too(
    since_s: float,
) -> None:
    world = World(Nat.NONE, Nat.NONE).run(5)
    end = world.ends[0]
    end.ladder.set_active(world.now_s, active=False)
    end.settle(reprobe=True)
    world.run(since_s)
    end.ladder.set_active(world.now_s, active=True)
    assert len(asked(world, 10)) >= 9


def test_an_idle_pair_that_gets_traffic_is_asked_at_once_and_falls_within_the_bound() -> None:
    world = World(Nat.RESTRICTED, Nat.RESTRICTED).run(60)
    for end in world.ends:
        end.ladder.set_active(world.now_s, active=False)
    world.run(25)
    world.direct = False
    world.ends[0].ladder.set_active(world.now_s, active=True)
    world.run(2)
    assert world.ends[0].rung is transports.RELAY


# Loss


@pytest.mark.parametrize(("loss", "seed", "most"), [(0.05, 1, 0), (0.2, 1, 4), (0.2, 2, 4)])
def test_a_path_that_loses_packets_by_chance_is_hardly_ever_left(
    loss: float, seed: int, most: int
) -> None:
    world = World(Nat.RESTRICTED, Nat.RESTRICTED, loss=loss, seed=seed).run(60)
    before = [len(end.changes) for end in world.ends]
    world.run(200)
    assert all(len(end.changes) - was <= most for end, was in zip(world.ends, before, strict=True))


# What a way carries


@pytest.mark.parametrize(("carried", "known"), [(1500, 1500), (1450, 1420), (1280, 1280)])
def test_what_a_way_carries_is_found_out(carried: int, known: int) -> None:
    world = World(Nat.NONE, Nat.NONE)
    world.mtu_bytes = carried
    world.run(5)
    assert [end.path.mtu_bytes for end in world.ends if end.path] == [known, known]


def test_a_way_that_carries_less_or_more_by_and_by_is_noticed() -> None:
    world = World(Nat.NONE, Nat.NONE).run(5)
    for end in world.ends:
        end.ladder.set_active(world.now_s, active=False)
    for carried, known in ((1400, 1400), (1492, 1492)):
        world.mtu_bytes = carried
        world.run(650)
        assert [end.path.mtu_bytes for end in world.ends if end.path] == [known, known]


def test_a_way_that_does_not_carry_full_packets_serves_only_where_there_is_no_other() -> None:
    world = World(*CONES)
    world.direct = False
    world.run(10)
    assert rungs(world) == [transports.RELAY, transports.RELAY]
    world.direct, world.mtu_bytes = True, 600
    assert rungs(world.run(130)) == [transports.RELAY, transports.RELAY]
    alone = World(Nat.NONE, Nat.NONE)
    alone.mtu_bytes = 600
    alone.run(5)
    assert [end.path.mtu_bytes for end in alone.ends if end.path] == [LEAST_BYTES] * 2


def test_a_relay_that_was_gone_for_a_while_carries_what_it_did_as_soon_as_it_is_back() -> None:
    world = World(Nat.SYMMETRIC, Nat.SYMMETRIC).run(20)
    ends = [end.ends for end in world.ends]
    for end in world.ends:
        end.ends = ()
        end.settle()
    world.run(1)
    for end, before in zip(world.ends, ends, strict=True):
        end.ends = before
        end.settle()

    world.run(3)

    assert [end.path.mtu_bytes for end in world.ends if end.path] == [1500, 1500]


def test_a_kept_path_of_which_it_was_not_known_what_it_carries_is_asked_at_once() -> None:
    kept = World(Nat.NONE, Nat.NONE).run(5).ends[0].path
    assert kept is not None
    world = World(Nat.NONE, Nat.NONE)
    for end in world.ends:
        path = replace(kept, endpoint=end.other.gateway.private, mtu_bytes=LEAST_BYTES)
        end.ladder = Ladder(path)
        end.settle()

    world.run(3)

    assert [end.path.mtu_bytes for end in world.ends if end.path] == [1500, 1500]


def test_a_node_that_starts_elsewhere_learns_what_its_kept_path_carries_there() -> None:
    kept = World(Nat.NONE, Nat.NONE).run(5).ends[0].path
    assert kept is not None
    world = World(Nat.NONE, Nat.NONE)
    world.mtu_bytes = 1400
    for end in world.ends:
        end.ladder = Ladder(replace(kept, endpoint=end.other.gateway.private))
        end.settle()
        end.ladder.set_active(0.0, active=False)
    world.run(30)  # nobody would notice, and a thousand peers may start at a time
    assert [end.path.mtu_bytes for end in world.ends if end.path] == [1500, 1500]

    for end in world.ends:
        end.ladder.set_active(world.now_s, active=True)
    world.run(5)

    assert [end.path.mtu_bytes for end in world.ends if end.path] == [1400, 1400]


def test_who_is_relayed_to_a_peer_that_moved_learns_what_the_same_way_carries_now() -> None:
    world = World(Nat.SYMMETRIC, Nat.SYMMETRIC).run(20)
    moved, other = world.ends
    moved.gateway.private = ip_address("10.9.0.2"), TUNNEL_PORT
    other.mtu_bytes = 1400
    other.settle_again()

    world.run(5)

    assert [end.path.mtu_bytes for end in world.ends if end.path] == [1500, 1400]


def test_a_way_that_was_lost_and_answers_again_is_asked_what_it_carries() -> None:
    world = World(Nat.SYMMETRIC, Nat.SYMMETRIC)
    world.relays = {RELAYS[0]}
    world.run(20)
    world.relays = set()
    world.run(5)
    world.relays, world.mtu_bytes = {RELAYS[0]}, 1400

    world.run(20)

    assert [end.path.mtu_bytes for end in world.ends if end.path] == [1400, 1400]


# When a relay is needed


def test_a_relay_is_asked_for_when_nothing_direct_answers_and_given_up_when_it_holds() -> None:
    world = World(Nat.RESTRICTED, Nat.RESTRICTED)
    assert [end.needs_relay for end in world.ends] == [False, False]
    world.direct = False
    world.run(1)
    assert [end.needs_relay for end in world.ends] == [True, True]
    world.direct = True
    world.run(60)
    assert rungs(world) == [transports.TUNNEL, transports.TUNNEL]
    world.run(60)
    assert [end.needs_relay for end in world.ends] == [False, False]
    assert all(end.ends == () for end in world.ends)


def test_a_pair_that_is_proven_at_once_asks_for_no_relay() -> None:
    world = World(Nat.RESTRICTED, Nat.RESTRICTED)
    world.clear = True
    world.run(100)
    assert rungs(world) == [transports.VXLAN, transports.VXLAN]
    assert all(not end.needs_relay and not end.ends for end in world.ends)


# What others can make us do


def test_a_peer_that_says_punch_all_the_time_makes_us_ask_no_more_than_once_a_second() -> None:
    world = World(Nat.SYMMETRIC, Nat.SYMMETRIC).run(300)
    end = world.ends[0]
    end.sent.clear()
    here = end.relay_end("relay-one")
    for _ in range(1000):
        end.ladder.heard(here, world.now_s, relayed=True, in_use=False, punch=True)
        world.run(0.01)
    direct = [each for _at_s, each in end.sent if not each.candidate.relay]
    candidates = {each.candidate for each in direct}
    assert 0 < len(direct) <= 11 * len(candidates)


def test_a_punch_is_not_answered_with_a_punch() -> None:
    world = World(Nat.SYMMETRIC, Nat.RESTRICTED).run(300)
    questions = [each for end in world.ends for each in end.sent]
    late = [question for at_s, question in questions if question.punch and at_s > 100]
    # Each of the two once a minute and for each candidate that has its own minute.
    assert 0 < len(late) <= 2 * 200 / 60 * 4


# Cost


def test_a_thousand_idle_peers_are_asked_a_few_times_a_second() -> None:
    """Each question with its answer takes some 0.5 ms here and 0.5 ms at the peer, which asks as
    often: 20 a second, asked by either side, are 2 % of a core."""
    world = World(Nat.RESTRICTED, Nat.RESTRICTED).run(100)
    ladder = world.ends[0].ladder
    ladder.set_active(world.now_s, active=False)
    stretch, seconds, count = 10.0, 4000.0, 0
    now_s, end_s = world.now_s, world.now_s + seconds
    while True:
        now_s = max(now_s, min(ladder.due_s(vital=vital) for vital in (True, False)))
        if now_s > end_s:
            break
        for vital in (True, False):
            for question in ladder.take_due(now_s, vital=vital, stretch=stretch):
                count += 1
                if ladder.stands_on(question.candidate) or question.packet_bytes:
                    ladder.answered(
                        question.candidate,
                        now_s,
                        rtt_s=0.02,
                        via=AnsweredBy("eth0"),
                        stretch=stretch,
                        packet_bytes=question.packet_bytes,
                    )
    assert 1000 * count / seconds < 12


def test_ways_beside_the_path_are_asked_once_a_minute_at_most() -> None:
    world = World(Nat.SYMMETRIC, Nat.SYMMETRIC).run(300)
    beside = [each for each in asked(world, 300) if not each.in_use and not each.packet_bytes]
    per_candidate = [
        sum(each.candidate == candidate for each in beside)
        for candidate in {e.candidate for e in beside}
    ]
    assert per_candidate
    assert max(per_candidate) <= 300 / BESIDE_S * 2 + 1


def test_what_was_proven_by_a_relay_holds_from_the_start() -> None:
    world = World(Nat.SYMMETRIC, Nat.SYMMETRIC).run(10)
    kept = world.ends[0].path
    assert kept is not None
    again = World(Nat.SYMMETRIC, Nat.SYMMETRIC)
    end = again.ends[0]
    end.ladder.path = PeerPath(kept.rung, 1420, endpoint=kept.endpoint, relay=kept.relay)
    assert end.ladder.relay_need(0.0)


def test_who_chooses_asks_its_own_way_at_once_when_the_peer_uses_another() -> None:
    world = World(*CONES).run(10)
    end = next(each for each in world.ends if each.ladder.leads)
    end.ladder.set_active(world.now_s, active=False)
    world.run(3)
    now_s = world.now_s + 2
    assert end.ladder.due_s(vital=True) > now_s
    relayed = next(candidate for candidate in end.ladder.candidates if candidate.relay)
    end.ladder.heard((relayed.address, relayed.port), now_s, relayed=True, in_use=True, punch=False)
    used = [question.candidate for question in end.ladder.take_due(now_s, vital=True)]
    assert [candidate for candidate in used if end.ladder.stands_on(candidate)]
