"""The search for what a way carries, against ways that carry some sizes and lose some packets."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from limpet.paths.ladder.path_mtu import AGAIN_S, SIZES_BYTES, SizeSearch

WAIT_S = 0.3


def run(
    search: SizeSearch,
    carried: int,
    *,
    since_s: float,
    until_s: float,
    chance: random.Random | None = None,
) -> int:
    """How many were asked; a tenth gets lost where there is chance."""
    now_s, count = since_s, 0
    while (now_s := max(now_s, search.next_s)) <= until_s:
        for size in search.take_due(now_s, wait_s=WAIT_S, stretch=1.0):
            count += 1
            if size <= carried and (chance is None or chance.random() < 0.9):
                search.answered(size, now_s)
    return count


def largest(carried: int) -> int:
    return max((size for size in SIZES_BYTES if size <= carried), default=0)


@given(st.integers(1200, 1500))
def test_the_largest_size_that_is_carried_is_known_after_one_round_trip(carried: int) -> None:
    search = SizeSearch(0.0)
    for size in search.take_due(0.0, wait_s=WAIT_S, stretch=1.0):
        if size <= carried:
            search.answered(size, 0.0)
    assert search.known_bytes == largest(carried)


@given(st.lists(st.integers(1280, 1500), min_size=1, max_size=4))
def test_what_changes_is_known_within_two_searches(carried: list[int]) -> None:
    search, now_s = SizeSearch(0.0), 0.0
    for size in carried:
        run(search, size, since_s=now_s, until_s=now_s + 2 * AGAIN_S)
        now_s += 2 * AGAIN_S
        assert search.known_bytes == largest(size)


@given(st.integers(1280, 1500), st.integers(0, 2**32))
def test_packets_that_are_lost_by_chance_hardly_make_it_smaller(carried: int, seed: int) -> None:
    search = SizeSearch(0.0)
    run(search, carried, since_s=0.0, until_s=5.0, chance=random.Random(seed))
    known = SIZES_BYTES.index(search.known_bytes)
    # One in a thousand is not answered in three rounds.
    assert known - SIZES_BYTES.index(largest(carried)) in (0, 1)


def test_a_way_that_stays_as_it_is_costs_two_questions_a_search() -> None:
    search = SizeSearch(0.0)
    first = run(search, 1420, since_s=0.0, until_s=10.0)
    later = run(search, 1420, since_s=10.0, until_s=10.0 + 10 * (AGAIN_S + 1))
    assert len(SIZES_BYTES) <= first <= len(SIZES_BYTES) + 6
    assert later <= 10 * 4
    assert search.known_bytes == 1420


def test_of_a_way_that_carries_none_nothing_is_claimed() -> None:
    search = SizeSearch(0.0)
    run(search, 600, since_s=0.0, until_s=2 * AGAIN_S)
    assert search.known_bytes == 0


def test_a_way_that_was_silent_while_it_was_searched_is_searched_again_soon_and_then_rarely() -> (
    None
):
    search = SizeSearch(0.0)
    run(search, 0, since_s=0.0, until_s=1.0)
    run(search, 1500, since_s=1.0, until_s=3.0)
    assert search.known_bytes == 1500

    search = SizeSearch(0.0)
    assert run(search, 0, since_s=0.0, until_s=3600.0) < 70 * 3 * len(SIZES_BYTES)
