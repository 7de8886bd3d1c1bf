"""Lists that are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.base.text.few import few


@given(st.integers(0, 40), st.integers(1, 12))
def test_what_is_named_and_what_is_counted_is_all_there_is(number: int, most: int) -> None:
    said: list[int] = []

    def say(item: int) -> str:
        said.append(item)
        return str(item)

    told = few(range(number), most, say=say)

    named, _, more = told.partition(" and ")
    named_number = len(named.split(", ")) if named else 0
    assert named_number == len(said) == min(number, most), "others need no words"
    assert named_number + int(more.removesuffix(" more") or 0) == number


@pytest.mark.parametrize(
    ("words", "expected"),
    [([], ""), (["a"], "a"), (["a", "b"], "a; b"), (["a", "b", "c", "d"], "a; b; and 2 more")],
)
def test_joints_are_the_callers(words: list[str], expected: str) -> None:
    assert few(words, 2, "; ", "; and ") == expected
