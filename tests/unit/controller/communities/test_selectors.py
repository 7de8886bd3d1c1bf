"""Label selectors, written, read, and matched."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.controller.communities.selectors import (
    NodeSelector,
    Requirement,
    SelectorError,
    parse_selector,
)

KEYS = st.sampled_from(["site", "tier", "a.b-c_d"])
VALUES = st.sampled_from(["harbour", "edge", "1", "x=y", "a!=b", "müde"])
REQUIREMENTS = st.builds(Requirement, KEYS, VALUES, st.booleans())
SELECTORS = st.lists(REQUIREMENTS, min_size=1, max_size=4, unique=True).map(
    lambda found: NodeSelector(tuple(found))
)
LABELS = st.dictionaries(KEYS, VALUES)


def meets(labels: dict[str, str], each: Requirement) -> bool:
    if each.is_equal:
        return each.key in labels and labels[each.key] == each.value
    return each.key not in labels or labels[each.key] != each.value


@given(selector=SELECTORS, labels=LABELS)
def test_what_is_written_is_read_again_or_could_choose_nobody(
    selector: NodeSelector, labels: dict[str, str]
) -> None:
    try:
        assert parse_selector(str(selector)) == selector
    except SelectorError:
        assert not selector.matches(labels)


@given(selector=SELECTORS, labels=LABELS)
def test_a_selector_chooses_who_meets_every_requirement(
    selector: NodeSelector, labels: dict[str, str]
) -> None:
    assert selector.matches(labels) == all(meets(labels, each) for each in selector.requirements)


@given(selector=SELECTORS)
def test_a_selector_that_is_taken_chooses_somebody(selector: NodeSelector) -> None:
    try:
        taken = parse_selector(str(selector))
    except SelectorError:
        return
    assert taken.matches({each.key: each.value for each in taken.requirements if each.is_equal})


@given(text=st.text(alphabet="ab=!, ,\n\x00é", max_size=12) | st.text(max_size=40))
def test_any_text_is_a_selector_or_an_error(text: str) -> None:
    with contextlib.suppress(SelectorError):
        taken = parse_selector(text)
        assert parse_selector(str(taken)) == taken


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("site=harbour", "site=harbour"),
        (" site = harbour , tier != edge ", "site=harbour,tier!=edge"),
        ("site==harbour", "site=harbour"),
        ("site=harbour,site=harbour", "site=harbour"),
        ("a=b=c", "a=b=c"),
    ],
)
def test_what_people_write_is_read(text: str, same: str) -> None:
    assert str(parse_selector(text)) == same


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "neither KEY=VALUE nor KEY!=VALUE"),
        ("site", "neither KEY=VALUE nor KEY!=VALUE"),
        ("site=harbour,", "neither KEY=VALUE nor KEY!=VALUE"),
        ("site=", "'site=' has no value"),
        ("=harbour", "it is empty"),
        ("si te=harbour", "key 'si te'"),
        ("site===harbour", "is no value"),
        ("site=a\x1b[31m", "is no value"),
        ("site=a,site=b", "no node has both site=b and site=a"),
        ("site=a,site!=a", "no node has both"),
        ("a=b," * 300 + "a=b", "more than 1024"),
    ],
)
def test_what_is_none_is_refused_in_words(text: str, words: str) -> None:
    with pytest.raises(SelectorError, match="read selector") as caught:
        parse_selector(text)
    assert words in str(caught.value)
