"""Whose question is answered next."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from limpet.dns.clients.turns import ClientTurns


def test_each_client_has_its_turn_and_its_oldest_question_comes_first() -> None:
    turns: ClientTurns[str] = ClientTurns(100, 3)
    assert [turns.put("flood", f"f{number}") for number in range(5)] == [True] * 3 + [False] * 2
    turns.put("pod", "p0")
    turns.put("pod", "p1")
    taken = [turns.take() for _ in range(6)]
    assert taken == ["f0", "p0", "f1", "p1", "f2", None]
    assert not turns


def test_who_has_too_many_waiting_is_full_until_half_have_had_their_turn() -> None:
    turns: ClientTurns[int] = ClientTurns(100, 4)
    assert [turns.put("flood", number) for number in range(4)] == [True] * 4
    assert not turns.full
    assert not turns.put("flood", 4)
    assert turns.full == {"flood"}
    turns.put("pod", 0)
    assert [turns.take(), turns.take()] == [0, 0]
    assert turns.full == {"flood"}
    assert turns.take() == 1
    assert not turns.full


def test_nobody_is_full_where_all_together_are_too_many() -> None:
    turns: ClientTurns[int] = ClientTurns(2, 2)
    assert [turns.put(who, 0) for who in "abc"] == [True, True, False]
    assert not turns.full


@given(st.lists(st.one_of(st.sampled_from("abc"), st.none())))
def test_nothing_is_lost_that_was_taken_in_and_each_client_s_order_is_kept(
    steps: list[str | None],
) -> None:
    turns: ClientTurns[tuple[str, int]] = ClientTurns(6, 3)
    waiting: list[tuple[str, int]] = []
    for number, who in enumerate(steps):
        if who is None:
            one = turns.take()
            assert (one is None) is (not waiting)
            if one is not None:
                assert one == next(each for each in waiting if each[0] == one[0])
                waiting.remove(one)
        elif turns.put(who, (who, number)):
            waiting.append((who, number))
        else:
            assert len(waiting) == 6 or Counter(each for each, _ in waiting)[who] == 3
        assert len(turns) == len(waiting)
