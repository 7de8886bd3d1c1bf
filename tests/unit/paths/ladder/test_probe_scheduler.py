"""The budget for probes of all peers: kept, fair, and spent on what matters first."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limpet.paths.ladder.probe_scheduler import (
    BURST,
    OTHER_BESIDE_PER_S,
    OTHER_BURST,
    OTHER_PER_S,
    RATE_PER_S,
    ProbeScheduler,
    stretch_for,
)

NEVER = math.inf


def run(
    agenda: ProbeScheduler, until_s: float, period_s: dict[str, tuple[float, float]]
) -> list[tuple[float, str, bool]]:
    """Who was taken, when; each peer is due again a period later, by its class."""
    now_s, taken = 0.0, []
    due = dict.fromkeys(period_s, (0.0, 0.0))
    while (next_s := agenda.next_s(now_s)) <= until_s:
        now_s = max(now_s, next_s)
        while (found := agenda.take(now_s)) is not None:
            uid, vital = found
            taken.append((now_s, uid, vital))
            agenda.spend(1, now_s, vital=vital)
            vital_s, other_s = due[uid]
            if vital:
                vital_s = now_s + period_s[uid][0]
            else:
                other_s = now_s + period_s[uid][1]
            due[uid] = (vital_s, other_s)
            agenda.put(uid, vital_s=vital_s, other_s=other_s)
    return taken


def started(period_s: dict[str, tuple[float, float]]) -> ProbeScheduler:
    agenda = ProbeScheduler()
    for uid in period_s:
        agenda.put(uid, vital_s=0, other_s=0)
    return agenda


periods = st.sampled_from([0.3, 1.0, 5.0, 60.0, NEVER])


@settings(deadline=None, max_examples=30)
@given(
    st.dictionaries(
        st.integers(0, 200).map(str), st.tuples(periods, periods), min_size=1, max_size=200
    )
)
def test_no_second_has_more_probes_than_the_budget(
    period_s: dict[str, tuple[float, float]],
) -> None:
    taken = run(started(period_s), 20, period_s)
    for second in range(20):
        for which, most in ((True, RATE_PER_S + BURST), (False, OTHER_PER_S + OTHER_BURST)):
            count = sum(
                1 for at_s, _uid, vital in taken if vital is which and second <= at_s < second + 1
            )
            assert count <= most + 1
    assert len(taken) <= 20 * (RATE_PER_S + OTHER_PER_S) + BURST + OTHER_BURST + 2


@settings(deadline=None, max_examples=30)
@given(
    st.dictionaries(
        st.integers(0, 200).map(str), st.tuples(periods, periods), min_size=1, max_size=200
    )
)
def test_everybody_has_a_turn_in_both_classes(
    period_s: dict[str, tuple[float, float]],
) -> None:
    taken = run(started(period_s), 60, period_s)
    for vital in (True, False):
        assert {uid for _at_s, uid, which in taken if which is vital} == set(period_s)


def test_what_is_vital_comes_first_and_the_rest_keeps_its_share() -> None:
    period_s = {str(number): (0.5, 1.0) for number in range(200)}
    taken = run(started(period_s), 60, period_s)
    vital = sum(1 for _at_s, _uid, which in taken if which)
    assert taken[0][2]
    assert len(taken) - vital == pytest.approx(60 * OTHER_BESIDE_PER_S, rel=0.1)
    assert vital == pytest.approx(60 * RATE_PER_S, rel=0.05)


def test_while_nothing_vital_waits_the_rest_gets_more() -> None:
    period_s = {str(number): (NEVER, 1.0) for number in range(200)}
    taken = run(started(period_s), 60, period_s)
    assert len(taken) == pytest.approx(60 * OTHER_PER_S + OTHER_BURST, rel=0.05)


def test_peers_with_traffic_come_before_all_others() -> None:
    agenda = ProbeScheduler()
    for number in range(1000):
        agenda.put(str(number), vital_s=number / 1e6, other_s=0)
    agenda.put("active", vital_s=1, other_s=0, active=True)
    assert agenda.take(1) == ("active", True)
    assert agenda.take(1) == ("0", True)


def test_a_peer_that_was_dropped_is_not_taken() -> None:
    agenda = ProbeScheduler()
    agenda.put("one", vital_s=0, other_s=0)
    agenda.drop("one")
    assert agenda.take(100) is None
    assert agenda.next_s(100) == NEVER


def test_the_last_word_on_when_a_peer_is_due_counts() -> None:
    agenda = ProbeScheduler()
    agenda.put("one", vital_s=5, other_s=NEVER)
    agenda.put("one", vital_s=9, other_s=NEVER)
    assert agenda.take(8) is None
    assert agenda.next_s(8) == 9
    agenda.put("one", vital_s=3, other_s=NEVER)
    assert agenda.take(4) == ("one", True)
    assert agenda.take(100) is None


def test_pauses_are_as_planned_up_to_a_hundred_peers_and_grow_with_more() -> None:
    assert stretch_for(0, 0.5) == stretch_for(100, 0.5) == 1
    assert stretch_for(1000, 0.5) == 10
    assert stretch_for(1, 0) < 1 < stretch_for(1, 1)
