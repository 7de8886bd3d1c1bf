"""What others wrote moves nothing where it is shown."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.base.text.escaping import escaped, shortened, shortened_within

_PLAIN = {"Zs": " "}


@given(st.text())
def test_nothing_that_cannot_be_seen_comes_through(text: str) -> None:
    for character in escaped(text):
        category = unicodedata.category(character)
        assert category[0] in "LMNPS" or character == _PLAIN.get(category), repr(character)


@given(st.text())
def test_what_was_escaped_stays_as_it_is(text: str) -> None:
    assert escaped(escaped(text)) == escaped(text)


@given(st.text(alphabet=st.characters(min_codepoint=0x20, max_codepoint=0x7E)))
def test_plain_text_stays_to_the_letter(text: str) -> None:
    assert escaped(text) == text


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("web\nkube-system/dns", "web\\nkube-system/dns"),
        ("\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"),
        ("a\rb\x00c\x7fd\x9be", "a\\rb\\x00c\\x7fd\\x9be"),
        ("pod-\u202egpj.exe", "pod-\\u202egpj.exe"),
        ("zero\u200bwidth \u2066isolate\u2069", "zero\\u200bwidth \\u2066isolate\\u2069"),
        ("a\u2028b\u2029c", "a\\u2028b\\u2029c"),
        ("lone \ud800 surrogate", "lone \\ud800 surrogate"),
        ("tag\U000e0041", "tag\\U000e0041"),
        ("filler\u3164", "filler\\u3164"),
        ("中文 Ünïcödé नमस्ते", "中文 Ünïcödé नमस्ते"),
        ("[red]bold[/red]", "[red]bold[/red]"),
    ],
)
def test_examples(written: str, shown: str) -> None:
    assert escaped(written) == shown


def test_a_letter_under_a_tower_of_marks_does_not_reach_the_line_above() -> None:
    assert escaped("a" + "\u0301" * 500).count("\u0301") == 3


@given(st.text(), st.integers(0, 30))
def test_what_is_cut_says_how_much_is_missing(text: str, most: int) -> None:
    cut = shortened(text, most)
    assert cut == text or cut == f"{text[:most]}… ({len(text) - most} more characters)"
    within = shortened_within(text, most)
    assert within == text or f"({len(text) - 2 * (most // 2)} characters left out)" in within
