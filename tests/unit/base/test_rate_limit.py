"""Rate limits of sources, and restarts: a program that ended is started ever less often."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from limpet.base.rate_limit import AGAIN_S, LIVED_S, Restarts, SourceRates

_STEPS_S = st.lists(st.floats(0.0, 2 * LIVED_S), min_size=1, max_size=50)


@given(_STEPS_S)
def test_who_waits_as_told_may_start_and_who_does_not_may_not(steps_s: list[float]) -> None:
    restarts, now_s, free_s = Restarts(), 0.0, 0.0
    for step_s in steps_s:
        now_s += step_s
        waits_s = restarts.take(now_s)
        assert (waits_s == 0.0) is (now_s >= free_s)
        if waits_s:
            free_s = now_s + waits_s
            assert restarts.take(free_s + 1e-6) == 0.0
            now_s = free_s + 1e-6
        free_s = now_s + AGAIN_S[min(restarts.count, len(AGAIN_S) - 1)]


@given(st.integers(1, 200))
def test_a_program_that_always_ends_is_started_a_few_times_a_minute(minutes: int) -> None:
    restarts, now_s, starts = Restarts(), 0.0, 0
    while now_s < minutes * 60:
        waits_s = restarts.take(now_s)
        starts += not waits_s
        now_s += waits_s or 0.01
    assert starts <= len(AGAIN_S) + 2 * minutes


def test_one_that_was_killed_is_started_at_once_also_after_earlier_trouble() -> None:
    restarts, now_s = Restarts(), 0.0
    while not restarts.take(now_s):
        pass
    now_s += 2 * LIVED_S
    assert restarts.take(now_s) == 0.0
    assert restarts.take(now_s + 0.1) == 0.0


def test_strangers_use_up_what_they_share_and_nothing_of_a_known_source() -> None:
    rates = SourceRates(each=(0.0, 3.0), strangers=(0.0, 2.0), members=None, most=2)
    rates.know("member")

    assert [rates.take(stranger, 0.0) for stranger in "abc"] == [True, True, False]
    assert [rates.take("member", 0.0) for _ in range(4)] == [True, True, True, False]


def test_a_part_that_a_member_comes_from_stands_for_itself_and_the_others_together() -> None:
    rates = SourceRates(each=(0.0, 2.0), strangers=(0.0, 3.0), members=(0.0, 9.0), most=9)
    rates.know("nat", part=1)

    assert [rates.take("nat", 0.0, part=port) for port in (2, 3, 4)] == [True, True, False]
    assert [rates.take("nat", 0.0, part=1) for _ in range(3)] == [True, True, False]
    # Strangers elsewhere, and those beside members, use up nothing of each other's.
    assert [rates.take(each, 0.0, part=1) for each in "abcd"] == [True, True, True, False]
    rates.know("other", part=1)
    assert [rates.take("other", 0.0, part=port) for port in (2, 3)] == [True, False]
    assert rates.take("other", 0.0, part=1)


def test_old_members_are_forgotten() -> None:
    rates = SourceRates(each=(0.0, 1.0), strangers=(0.0, 0.0), members=(0.0, 9.0), most=2)
    for member in ("first", "second", "third"):
        rates.know(member)

    assert [rates.take(each, 0.0) for each in ("first", "second", "third")] == [False, True, True]
