"""Who is taken for silent, how soon, and how far away those are that answer."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from limpet.paths.ladder.reach import PeerReach
from limpet.paths.ladder.silence import ROUND_TRIPS_S, SILENT_MISSES, round_trip_class
from limpet.paths.probe.messages import Candidate
from tests.effort import examples
from tests.unit.paths.ladder.test_ladder import (
    A6,
    ALL,
    ETH0,
    RTT_S,
    A,
    World,
    only,
    overlay,
    without,
)


def active() -> World:
    """With a route, and traffic."""
    world = World().run(20)
    world.ladder.set_active(world.now_s, active=True)
    return world.run(5)


def until_silent(world: World, *, silent: bool, within_s: float) -> float:
    """Seconds until it is so."""
    began_s = world.now_s
    while world.ladder.is_silent is not silent:
        assert world.now_s < began_s + within_s
        world.run(0.05)
    return world.now_s - began_s


def test_a_peer_with_traffic_that_answers_no_more_is_silent_in_less_than_three_seconds() -> None:
    world = active()
    assert not world.ladder.is_silent
    world.answers = only()
    assert until_silent(world, silent=True, within_s=3) < 2.5
    world.run(600)
    assert world.ladder.is_silent


@given(st.integers(0, 19))
def test_a_peer_that_is_watched_is_silent_in_less_than_two_seconds(twentieths: int) -> None:
    """A connection that is tried just then asks again after two seconds: elsewhere."""
    world = active()
    world.ladder.watched = True
    world.run(twentieths / 20)
    world.answers = only()
    assert until_silent(world, silent=True, within_s=3) < 1.96


def test_who_answers_again_is_not_silent() -> None:
    world = active()
    world.answers = only()
    world.run(60)
    world.answers = ALL.__contains__
    until_silent(world, silent=False, within_s=12)
    world.run(600)
    assert not world.ladder.is_silent


def test_a_peer_that_is_left_with_another_way_is_not_silent() -> None:
    world = active()
    world.answers = without(overlay(A), overlay(A6))
    for _ in range(100):
        world.run(0.1)
        assert not world.ladder.is_silent


def test_a_peer_that_was_never_tried_is_not_silent_and_one_that_was_in_vain_is() -> None:
    world = World(answers=only())
    assert not world.ladder.is_silent
    world.run(10)
    assert world.ladder.is_silent


def test_without_a_link_of_its_own_a_node_hears_nobody() -> None:
    world = active()
    world.links = ()
    world.settle()
    assert world.ladder.is_silent
    world.links = (ETH0,)
    world.settle()
    world.run(5)
    assert not world.ladder.is_silent


@settings(max_examples=examples(60))
@given(st.randoms(use_true_random=False))
def test_who_answers_often_enough_is_never_silent(chance: object) -> None:
    """Whatever is lost, but never so many in a row that they count."""
    world = active()
    lost: Counter[Candidate] = Counter()

    def answers(candidate: Candidate) -> bool:
        if candidate not in ALL:
            return False
        lost[candidate] += 1
        if lost[candidate] < SILENT_MISSES and chance.random() < 0.6:  # type: ignore[attr-defined]
            return False
        lost[candidate] = 0
        return True

    world.answers = answers
    for _ in range(200):
        world.run(0.1)
        assert not world.ladder.is_silent


@given(
    st.floats(0.0001, 1.0),
    st.lists(st.floats(0.85, 1.18), max_size=40),
)
def test_a_round_trip_that_varies_a_little_is_of_one_class(
    rtt_s: float, parts: list[float]
) -> None:
    first = now = round_trip_class(rtt_s, None)
    for part in parts:
        now = round_trip_class(rtt_s * part, now)
        assert now == first


@given(st.floats(0.0001, 1.0), st.integers(0, len(ROUND_TRIPS_S)))
def test_a_round_trip_that_is_quite_another_changes_its_class(rtt_s: float, before: int) -> None:
    plain = round_trip_class(rtt_s, None)
    assert abs(round_trip_class(rtt_s, before) - plain) <= 1
    for _ in range(2):
        before = round_trip_class(rtt_s, before)
    assert before == round_trip_class(rtt_s, before)


def test_what_is_new_of_many_is_told_once() -> None:
    world, reach = active(), PeerReach()
    assert reach.note("one", world.ladder, 0.0)
    assert reach.round_trips["one"] == round_trip_class(RTT_S, None)
    assert not reach.note("two", world.ladder, 0.0)
    reach.take()
    assert not reach.note("one", world.ladder, 100.0)
    world.answers = only()
    world.run(30)
    assert reach.note("one", world.ladder, 101.0)
    assert not reach.note("two", world.ladder, 101.0)
    assert reach.silent == {"one", "two"}
    reach.drop("one")
    assert reach.silent == {"two"}
