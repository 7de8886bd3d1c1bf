"""The choice of relays in a world of relays that come and go."""

from __future__ import annotations

import bisect
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from limpet.base.addresses import Endpoint
from limpet.base.settings import NAT_TIMEOUT_S
from limpet.cluster.topology import transports
from limpet.relay.client.contact import BURST, NEAR_S, RATE_PER_S, URGENT_S
from limpet.relay.client.end import RECHECK_S
from limpet.relay.client.peer import (
    SLOWEST_FAILED_S,
    STREAM_KEPT_S,
    CloseStreams,
    StreamFailed,
)
from limpet.relay.messages import Check, Hello, Pair, Seen
from tests.effort import examples
from tests.unit.relay.client.relay_world import RelayWorld, SimNode, SimRelay

SOON_S = 5.0


def relays(*rtts_s: float) -> list[SimRelay]:
    return [SimRelay(f"r{n}", n, rtt_s) for n, rtt_s in enumerate(rtts_s, start=1)]


def used(node: SimNode, peer: str) -> list[str]:
    return [end.relay for end in node.ends.get(peer, ())]


def meet(world: RelayWorld) -> tuple[SimNode, SimNode]:
    """Two nodes that need each other, with ends."""
    a, b = world.node("a"), world.node("b")
    world.run(1)
    a.need("b")
    b.need("a")
    world.run(1)
    return a, b


def test_a_peer_gets_ends_at_the_two_nearest_relays() -> None:
    a, b = meet(RelayWorld(*relays(0.08, 0.02, 0.05)))

    assert used(a, "b") == ["r2", "r3"]
    assert used(b, "a") == ["r2", "r3"]


def test_the_other_end_binds_although_only_one_has_asked() -> None:
    world = RelayWorld(*relays(0.02))
    a, b = world.node("a"), world.node("b")
    world.run(1)

    a.need("b")
    world.run(1)

    assert [end.relay for end in b.working("a")] == ["r1"]


def test_an_end_is_there_within_a_few_round_trips() -> None:
    world = RelayWorld(*relays(0.1))
    a = world.node("a")
    a.need("b")
    world.run(1)

    # Hello, the question, and a check with its token.
    assert a.changes[0][0] <= 4 * 0.1 + 1e-6


def test_a_relay_that_is_heard_of_later_gives_every_peer_its_second_end_at_once() -> None:
    world = RelayWorld(*relays(0.02))
    a, b = meet(world)
    assert used(a, "b") == ["r1"]

    world.relays["r2"] = SimRelay("r2", 2, 0.05)
    world.tell_sites()
    world.run(1)

    assert [end.relay for end in a.working("b")] == ["r1", "r2"]
    assert [end.relay for end in b.working("a")] == ["r1", "r2"]


def test_a_relay_that_dies_is_left_and_another_takes_its_place() -> None:
    world = RelayWorld(*relays(0.02, 0.03, 0.2))
    a, b = meet(world)
    assert used(a, "b") == ["r1", "r2"]

    world.relays["r1"].up = False
    world.run(NEAR_S + SOON_S)

    assert used(a, "b") == ["r2", "r3"]
    assert [end.relay for end in b.working("a")] == ["r2", "r3"]


def test_a_dead_relay_is_left_within_seconds_once_the_peer_is_asked_for_again() -> None:
    world = RelayWorld(*relays(0.02, 0.03))
    a, _b = meet(world)
    world.run(5)

    world.relays["r1"].up = False
    a.need("b")
    world.run(1.5)

    assert used(a, "b") == ["r2"]


def test_a_relay_that_comes_back_serves_again() -> None:
    world = RelayWorld(*relays(0.02))
    a, _b = meet(world)
    world.relays["r1"].up = False
    world.run(60)
    assert not a.working("b")

    world.relays["r1"].up = True
    world.run(65)

    assert used(a, "b") == ["r1", "r1"] or used(a, "b") == ["r1"]
    assert any(end.rung is not transports.RELAY_TLS for end in a.working("b"))


def test_a_dead_relay_that_answers_as_a_peer_serves_again_at_once() -> None:
    relay = SimRelay("only", 1)
    world = RelayWorld(relay)
    one, two = world.node("one"), world.node("two")
    one.need("two")
    two.need("one")
    world.run(10)
    relay.up = False
    world.run(300)
    relay.up = True
    for node in (one, two):
        node.do(node.choice.met("only", world.now_s))
        node.do(node.choice.met("one", world.now_s))
    world.run(0.5)
    assert one.working("two")
    assert two.working("one")


def test_an_end_follows_its_relay_to_another_address() -> None:
    world = RelayWorld(*relays(0.02))
    a, b = meet(world)
    relay = world.relays["r1"]

    relay.number = 9
    world.tell_sites()
    world.run(SOON_S)

    for node, peer in ((a, "b"), (b, "a")):
        assert [end.endpoint[0] for end in node.working(peer)] == [relay.endpoint[0]]


def test_an_end_that_only_the_peer_wants_follows_its_relay_too() -> None:
    world = RelayWorld(*relays(0.02))
    a, b = world.node("a"), world.node("b")
    world.run(1)
    a.need("b")
    world.run(1)

    world.relays["r1"].number = 9
    world.tell_sites()
    world.run(SOON_S)

    assert b.working("a")
    assert world.relays["r1"].count("b") == 0, "who was only invited has not asked"


def test_a_node_that_leaves_the_site_of_its_relay_has_its_end_by_the_public_endpoint() -> None:
    relay = SimRelay("r1", 1, private=True)
    world = RelayWorld(relay)
    a = world.node("a")
    a.at_home = True
    a.need("b")
    world.run(10)
    assert [end.endpoint[0] for end in a.working("b")] == [relay.fallback[0]]

    a.at_home = False
    a.do(a.choice.network_changed(world.now_s))
    world.run(SOON_S)

    assert [end.endpoint[0] for end in a.working("b")] == [relay.endpoint[0]]


def test_a_node_that_comes_into_the_site_of_its_relay_has_its_end_by_the_private_endpoint() -> None:
    relay = SimRelay("r1", 1, private=True)
    world = RelayWorld(relay)
    a, _b = meet(world)

    a.at_home = True
    a.do(a.choice.network_changed(world.now_s))
    world.run(SOON_S)

    assert [end.endpoint[0] for end in a.working("b")] == [relay.fallback[0]]


def test_an_end_that_works_stays_where_it_is_although_its_relay_answers_elsewhere_too() -> None:
    world = RelayWorld(SimRelay("r1", 1))
    a, _b = meet(world)
    before = a.working("b")
    end = a.choice.peers["b"].ends["r1"]

    for _ in range(100):
        world.run(0.25)
        end.follow(world.relays["r1"].fallback, world.now_s)

    assert before
    assert a.working("b") == before


def test_a_relay_that_forgot_its_pairs_is_asked_anew() -> None:
    world = RelayWorld(*relays(0.02))
    a, b = meet(world)

    world.relays["r1"].pairs.clear()
    world.relays["r1"].bound.clear()
    world.run(25)

    assert a.working("b")
    assert b.working("a")


def test_a_mapping_that_moved_is_bound_anew_within_round_trips() -> None:
    world = RelayWorld(*relays(0.05, 0.06))
    a, _b = meet(world)

    a.mapping = 50000
    assert not a.working("b")
    a.do(a.choice.mapping_moved(world.now_s))
    world.run(0.5)

    assert [end.relay for end in a.working("b")] == ["r1", "r2"]


def test_without_any_hint_a_mapping_that_moved_is_bound_anew_in_time() -> None:
    world = RelayWorld(*relays(0.05, 0.06))
    a, _b = meet(world)

    a.mapping = 50000
    world.run(16)

    assert [end.relay for end in a.working("b")] == ["r1", "r2"]


def test_what_is_not_needed_is_freed() -> None:
    world = RelayWorld(*relays(0.02, 0.03))
    a, b = meet(world)

    a.need("b", wanted=False)
    b.need("a", wanted=False)
    world.run(200)

    assert used(a, "b") == []
    assert not world.relays["r1"].pairs
    assert not world.relays["r2"].pairs


def test_who_was_only_invited_and_needs_the_pair_keeps_it_when_the_other_gives_it_back() -> None:
    world = RelayWorld(*relays(0.02))
    a, b = world.node("a"), world.node("b")
    world.run(1)
    a.need("b")
    world.run(1)
    b.need("a")
    world.run(0.1)

    a.need("b", wanted=False)
    for _ in range(100):
        world.run(2)
        assert b.working("a")


def test_a_pair_that_was_given_back_and_is_needed_again_is_asked_for_again() -> None:
    world = RelayWorld(*relays(0.02))
    a, b = meet(world)
    a.need("b", wanted=False)
    world.run(1)
    a.need("b")
    world.run(1)

    b.need("a", wanted=False)
    for _ in range(100):
        world.run(2)
        assert a.working("b")


def test_a_node_without_room_for_a_pair_of_its_own_goes_on_with_that_of_its_peer() -> None:
    relay = SimRelay("r1", 1, quota=1)
    world = RelayWorld(relay)
    a, b, c = (world.node(uid) for uid in "abc")
    world.run(1)
    b.need("c")
    c.need("b")
    world.run(1)
    a.need("b")
    world.run(1)
    assert relay.count("b") == 1

    b.need("a")
    for _ in range(100):
        world.run(1)
        assert b.working("a")
        assert a.working("b")


def test_two_that_choose_different_relays_end_with_the_same_two() -> None:
    world = RelayWorld(*relays(0.02, 0.02, 0.02, 0.02))
    a, b = world.node("a"), world.node("b")
    near = {"a": {"r1", "r2"}, "b": {"r3", "r4"}}
    for node in (a, b):
        for line in node.choice.contacts.lines.values():
            line.rtt_s = 0.01 if line.relay in near[node.uid] else 0.1
            line.alive, line.at, line.next_s = True, line.endpoints[0], world.now_s + 1000
        node.choice._put_lines()
    for relay in world.relays.values():
        relay.places = {"a": a.source, "b": b.source}

    a.need("b")
    b.need("a")
    world.run(200)

    assert set(used(a, "b")) == set(used(b, "a"))
    assert len(used(a, "b")) == 2


def test_streams_are_opened_at_once_where_udp_is_blocked() -> None:
    world = RelayWorld(*relays(0.02, 0.02, 0.02))
    a, b = world.node("a"), world.node("b")
    a.udp = b.udp = False

    a.need("b")
    b.need("a")
    world.run(1)

    assert a.working("b")
    # Neither knows how far a relay is, and yet they meet.
    assert {end.relay for end in a.working("b")} == {end.relay for end in b.working("a")}
    assert a.opened[0][0] <= 0.5


@pytest.mark.parametrize(("mine", "its"), ["ab", "ba"])
def test_two_of_whom_one_has_only_streams_share_a_relay_for_good(mine: str, its: str) -> None:
    """The streams are at the relays that are farthest from the other end."""
    world = RelayWorld(*relays(0.02, 0.02, 0.02, 0.02, 0.02))
    blocked = world.node(mine)
    blocked.udp = False
    blocked.need(its)
    world.run(SOON_S)
    for relay in used(blocked, its):
        world.relays[relay].rtt_s = 0.2
    other = world.node(its)
    other.need(mine)

    def meets() -> bool:
        streams = {end.relay for end in blocked.working(its)}
        return len(streams) == 2 and streams <= {end.relay for end in other.working(mine)}

    world.run(SOON_S)
    for _ in range(400):
        world.run(2)
        assert meets()

    other.mapping += 1  # nothing tells of it
    world.run(2 * RECHECK_S)
    assert meets()


def test_a_peer_keeps_its_streams_for_a_while_after_udp_works_again() -> None:
    world = RelayWorld(*relays(0.02))
    a = world.node("a")
    a.udp = False
    a.need("b")
    world.run(10)
    assert [end.rung is transports.RELAY_TLS for end in a.ends["b"]] == [True]

    a.udp = True
    world.run(20)
    assert [end.rung is transports.RELAY_TLS for end in a.ends["b"]] == [False, True]
    world.run(STREAM_KEPT_S + SOON_S)

    assert [end.rung is transports.RELAY_TLS for end in a.ends["b"]] == [False]


def test_streams_are_opened_where_only_the_ports_of_pairs_are_blocked() -> None:
    world = RelayWorld(*relays(0.02))
    world.relays["r1"].ports_open = False
    a = world.node("a")

    a.need("b")
    world.run(6)

    assert [end.rung is transports.RELAY_TLS for end in a.working("b")] == [True]


@pytest.mark.parametrize("both", [True, False])
def test_a_closed_port_of_a_pair_is_tried_seldom_while_the_relay_says_that_the_peer_waits(
    both: bool,
) -> None:
    relay = SimRelay("r1", 1, ports_open=False)
    world = RelayWorld(relay)
    a, b = world.node("a"), world.node("b")
    world.run(1)
    b.need("a")
    if both:
        a.need("b")
    world.run(120)
    assert ("b", "a") in relay.streams
    a.sent.clear()

    world.run(600)

    # A few checks with each hello, of which there are three in a minute.
    sent = Counter(type(send.message) for _, send in a.sent)
    assert sent[Hello] < 60
    assert sent[Check] < 300


@pytest.mark.parametrize("needed", [False, True])
def test_what_a_failed_stream_leaves_is_released_once_its_peer_is_not_needed(needed: bool) -> None:
    """The relay may still open it: the answer was late, not none."""
    world = RelayWorld(*relays(0.02))
    world.relays["r1"].up = False
    a = world.node("a")
    a.need("b")
    while not a.opened:
        world.run(0.1)

    a.need("b", wanted=needed)
    failed = StreamFailed("b", "r1", "no answer within 3 s")
    effects = a.choice.stream_changed(failed, world.now_s)

    assert (CloseStreams("b") in effects) is not needed


def test_a_relay_is_no_way_to_itself() -> None:
    world = RelayWorld(*relays(0.02, 0.2))
    a = world.node("a")

    a.need("r1")
    world.run(2)

    assert used(a, "r1") == ["r2"]


def test_where_udp_is_blocked_a_stream_to_a_relay_leads_to_the_relay_itself_first() -> None:
    world = RelayWorld(*relays(0.02, 0.02, 0.02))
    a = world.node("a")
    a.udp = False

    a.need("r2")
    world.run(20)

    assert a.opened[0][1].relay == "r2"


def test_a_relay_that_is_no_relay_any_more_is_left_at_once() -> None:
    world = RelayWorld(*relays(0.02, 0.03))
    a, _b = meet(world)

    sites = {"r2": world.relays["r2"].site}
    a.do(a.choice.set_sites(sites, world.now_s))

    assert used(a, "b") == ["r2"]


@given(st.lists(st.floats(0.7, 1.3), min_size=40, max_size=80))
@settings(max_examples=20)
def test_relays_of_similar_round_trip_never_take_each_others_place(noise: list[float]) -> None:
    world = RelayWorld(*relays(0.03, 0.032, 0.034))
    a, _b = meet(world)
    before = set(used(a, "b"))
    count = len(a.changes)

    for n, factor in enumerate(noise):
        relay = world.relays[f"r{n % 3 + 1}"]
        relay.rtt_s = 0.03 * factor
        world.run(NEAR_S)

    assert set(used(a, "b")) == before
    assert {frozenset(end.relay for end in ends) for _, _, ends in a.changes[count:]} <= {
        frozenset(before)
    }


def test_a_relay_that_is_much_nearer_takes_over_without_a_gap() -> None:
    world = RelayWorld(*relays(0.2, 0.3, 0.02))
    world.relays["r3"].up = False
    a, b = meet(world)
    assert used(a, "b") == ["r1", "r2"]
    count = len(a.changes)

    world.relays["r3"].up = True
    world.run(200)

    assert used(a, "b") == ["r3", "r1"]
    assert all(ends for _, _, ends in a.changes[count:])
    assert [end.relay for end in b.working("a")] == ["r3", "r1"]


EVENTS = st.tuples(
    st.sampled_from(["relay", "udp", "move", "need", "links", "forget", "renumber", "roam"]),
    st.integers(0, 3),
    st.sampled_from([0.05, 0.4, 2.0, 20.0, 61.0]),
)


@given(st.lists(EVENTS, max_size=12), st.lists(st.sampled_from([0.01, 0.05, 0.25]), min_size=3))
@settings(max_examples=examples(100))
@example(  # TLS to all relays has failed for a minute, then one is back
    [
        *([("relay", 0, 0.05)] * 3),
        ("relay", 1, 0.05),
        ("relay", 2, 0.05),
        ("udp", 0, 61.0),
        ("relay", 0, 0.05),
    ],
    [0.01] * 3,
)
@example(  # both give up a third relay just now
    [("relay", 0, 2.0), ("need", 0, 20.0), ("move", 0, 0.05), ("relay", 0, 0.05)],
    [0.01, 0.01, 0.25],
)
def test_never_without_an_end_for_long_while_any_relay_answers(
    events: list[tuple[str, int, float]], rtts_s: list[float]
) -> None:
    world = RelayWorld(*relays(*rtts_s[:3]))
    for relay in world.relays.values():
        relay.private = True
    a, b = meet(world)
    for what, number, wait_s in events:
        match what:
            case "relay":
                world.toggle(world.relays[f"r{number % 3 + 1}"])
            case "udp":
                a.udp = not a.udp
            case "move":
                a.mapping += 1
            case "need":
                a.need("b", wanted=bool(number % 2))
            case "renumber":
                world.relays[f"r{number % 3 + 1}"].number += 10
                world.tell_sites()
            case "roam":
                a.at_home = not a.at_home
            case "links":
                a.do(a.choice.network_changed(world.now_s))
            case "forget":
                relay = world.relays[f"r{number % 3 + 1}"]
                relay.pairs.clear()
                relay.bound.clear()
        world.run(wait_s)
    a.need("b")
    b.need("a")

    # The ladder says so again and again while the peer is silent. What has failed for long is tried
    # again after this at the latest, and a handshake more.
    end_s = world.now_s + max(URGENT_S, SLOWEST_FAILED_S) + 1
    while world.now_s < end_s:
        world.run(1.1)
        a.need("b")
    answering = [relay for relay in world.relays.values() if relay.up]
    working = a.working("b")

    if answering:
        assert working
        if a.udp:
            assert any(end.rung is not transports.RELAY_TLS for end in working)
    # And what is offered leads somewhere, or is not offered any more once checks have missed.
    for _ in range(6):
        if set(a.ends.get("b", ())) <= set(a.working("b")):
            break
        world.run(1.1)
        a.need("b")
    assert set(a.ends.get("b", ())) <= set(a.working("b"))


def test_with_a_thousand_peers_messages_stay_within_the_rate() -> None:
    world = RelayWorld(*relays(0.01, 0.02, 0.03, 0.04, 0.05))
    a = world.node("a")
    for n in range(1000):
        a.need(f"p{n:04d}")
    world.run(70)

    times = [
        at_s
        for at_s, send in a.sent
        if not (isinstance(send.message, Check) and send.message.token)
    ]
    for n, at_s in enumerate(times):
        within = bisect.bisect_right(times, at_s + 1.0) - n
        assert within <= BURST + RATE_PER_S
    last = [send for at_s, send in a.sent if at_s > 40]
    assert len(last) / 30 <= RATE_PER_S
    # Nearly all that the relays give to one node.
    assert sum(1 for ends in a.ends.values() if ends) > 0.9 * 5 * 64


def test_only_the_nearest_relays_are_greeted_often() -> None:
    world = RelayWorld(*relays(*(0.01 * n for n in range(1, 11))))
    a = world.node("a")
    world.run(30)
    a.sent.clear()
    world.run(360)

    hellos = [send.relay for _, send in a.sent if isinstance(send.message, Hello)]
    assert {relay for relay in hellos if hellos.count(relay) > 5} == {"r1", "r2", "r3"}
    assert all(hellos.count(relay) <= 19 for relay in hellos)
    assert set(hellos) == set(world.relays)


@pytest.mark.parametrize("timeout_s", [4, 13, NAT_TIMEOUT_S])
def test_no_nat_has_time_to_forget_the_nearest_relays_and_their_ends(timeout_s: int) -> None:
    world = RelayWorld(*relays(0.01, 0.02))
    a, b = world.node("a", timeout_s), world.node("b", timeout_s)
    world.run(1)
    a.need("b")
    b.need("a")
    world.run(10)
    a.sent.clear()
    world.run(300)

    times: dict[Endpoint, list[float]] = {}
    for at_s, send in a.sent:
        times.setdefault(send.endpoint, []).append(at_s)
    assert len(times) == 4
    for found in times.values():
        gaps_s = [after - before for before, after in pairwise([world.now_s - 300, *found])]
        assert max(gaps_s) <= timeout_s * 0.7


def test_an_answer_that_was_not_asked_for_counts_for_nothing() -> None:
    world = RelayWorld(*relays(0.02))
    world.relays["r1"].up = False
    a = world.node("a")
    world.run(1)
    relay = world.relays["r1"]

    seen = Seen(b"\xff" * 8, a.source, 9)
    effects = a.choice.heard("r1", seen, relay.endpoint, world.now_s)

    assert not effects
    assert a.choice.contacts.alive == []


def test_a_relay_that_tells_ever_other_ports_for_a_pair_is_known_by_the_last_alone() -> None:
    """How often ends are checked goes by how many ports are known, also those at other relays."""
    world = RelayWorld(*relays(0.02))
    a, _ = meet(world)
    relay = world.relays["r1"]
    known = dict(a.choice._by_port)

    for port in range(20_000, 20_100):
        a.choice.heard("r1", Pair(bytes(8), "b", port), relay.endpoint, world.now_s)

    assert len(known) == 1
    assert list(a.choice._by_port) == [("r1", 20_099)]
