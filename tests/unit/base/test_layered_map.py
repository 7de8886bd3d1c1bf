"""Large mappings of which little changes at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from limpet.base.layered_map import alter, differing

BASE = {key: str(key) for key in range(100)}
KEYS = range(121)
mappings = st.dictionaries(st.sampled_from(KEYS), st.text(max_size=2), max_size=100)
changes_in_turn = st.lists(
    st.dictionaries(st.sampled_from(KEYS), st.none() | st.text(max_size=2), max_size=4), max_size=12
)


@given(mappings, changes_in_turn)
def test_an_altered_mapping_is_what_a_changed_copy_would_be(
    mapping: dict[int, str], every: list[dict[int, str | None]]
) -> None:
    altered: Mapping[int, str] = mapping
    copy = mapping
    for changes in every:
        before, before_copy = altered, copy
        altered = alter(altered, changes)
        copy = {key: value for key, value in {**copy, **changes}.items() if value is not None}
        assert altered == copy
        assert before == before_copy
        assert sorted(altered) == sorted(copy)
        assert sorted(altered.values()) == sorted(copy.values())
        assert len(altered) == len(copy)
        assert all(altered.get(key) == copy.get(key) for key in KEYS)
        assert all((key in altered) == (key in copy) for key in KEYS)


@given(changes_in_turn, changes_in_turn)
def test_what_differs_between_two_is_found_however_they_were_made(
    one_way: list[dict[int, str | None]], other_way: list[dict[int, str | None]]
) -> None:
    one: Mapping[int, str] = BASE
    other: Mapping[int, str] = BASE
    for changes in one_way:
        one = alter(one, changes)
    for changes in other_way:
        other = alter(other, changes)
    found = {key for key in KEYS if one.get(key) is not other.get(key)}
    assert differing(one, other) == found
    assert differing(dict(one), other) == found


class Unread(dict[int, str]):
    """Nobody goes through its entries."""

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("all entries were looked at")

    def keys(self) -> Any:
        raise AssertionError("all entries were looked at")

    items = values = keys


def test_few_changes_of_a_large_mapping_look_at_nothing_else() -> None:
    large = Unread(BASE)
    one = alter(large, {1: "another", 200: "new"})
    other = alter(one, {2: None})

    assert differing(large, one) == {1, 200}
    assert differing(one, other) == {2}
    assert len(other) == len(BASE)


class Counted(int):
    """Counts how often its hash was asked for: whoever looks at an entry does."""

    looks = 0

    def __hash__(self) -> int:
        Counted.looks += 1
        return int(self)


def test_few_changes_look_at_nothing_else_also_where_all_was_copied_in_between() -> None:
    keys = [Counted(number) for number in range(1000)]
    mapping: Mapping[int, str] = dict.fromkeys(keys, "old")
    looks = []
    for number, key in enumerate(keys[:300]):
        before, mapping = mapping, alter(mapping, {key: f"new {number}"})
        Counted.looks = 0
        assert differing(before, mapping) == {number}
        looks.append(Counted.looks)

    assert sum(many > len(keys) for many in looks) == 1, "at the first copy, of a plain mapping"
    assert max(sorted(looks)[:-1]) < len(keys)
