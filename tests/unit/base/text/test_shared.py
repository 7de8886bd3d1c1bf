"""Texts that come again, as one object."""

from __future__ import annotations

import sys

import pytest

from limpet.base.text.shared import SharedTexts, share, sharing


def twice(text: str) -> tuple[str, str]:
    """Equal, and two objects."""
    return f"{text} {len(text)}", f"{text} {len(text)}"


@pytest.mark.parametrize("python", [(3, 11, 7), (3, 12, 0), (3, 12, 3), (3, 12, 6), (3, 12, 7)])
def test_equal_texts_are_one_object(python: tuple[int, int, int]) -> None:
    shared = sharing(python)
    one, other = twice("node")
    assert one is not other
    assert shared(one) == one
    assert shared(other) is shared(one)
    assert (shared is sys.intern) == (not (3, 12) <= python < (3, 12, 7))


def test_what_this_python_shares_by_is_one_of_them() -> None:
    one, other = twice("zone")
    assert share(other) is share(one)


def test_texts_that_come_and_go_are_not_held_for_ever() -> None:
    texts = SharedTexts()
    for number in range(200_000):
        assert texts.share(f"pod-{number}") == f"pod-{number}"
    assert len(texts) <= 65_536
