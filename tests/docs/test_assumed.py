"""Each page of the site says what it assumes, and how to undo what it has a reader do."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.docs.pages import pages, prose

_SITE = tuple(page for page in pages() if page.startswith("docs/"))
_ASSUMES = re.compile(r"\*\*Assumes\*\*:? (.+?)(?=\s\*\*Undo\*\*|\n\n|\Z)", re.DOTALL)
_UNDO = re.compile(r"\*\*Undo\*\*:? (.+?)(?=\n\n|\Z)", re.DOTALL)
_SECTION = re.compile(r"^## Undo\b.*\n+(.+)", re.MULTILINE)


def _lead(page: str) -> str:
    """What a reader meets before the first section."""
    return re.split(r"^## ", prose(page), maxsplit=1, flags=re.MULTILINE)[0]


def _assumed(page: str) -> str:
    found = _ASSUMES.search(_lead(page))
    return " ".join(found[1].split()) if found else ""


def _undone(page: str) -> str:
    found = _UNDO.search(_lead(page)) or _SECTION.search(prose(page))
    return " ".join(found[1].split()) if found else ""


@pytest.mark.parametrize("page", _SITE)
def test_a_page_says_before_its_first_section_what_it_assumes(page: str) -> None:
    assert len(_assumed(page).split()) >= 3, f"{page}: no **Assumes** in {_lead(page)!r}"


@pytest.mark.parametrize("page", _SITE)
def test_a_page_says_how_to_undo_it_at_its_beginning_or_in_a_section(page: str) -> None:
    assert _undone(page), f"{page}: neither **Undo** in its beginning nor a section `## Undo`"


def test_what_is_undone_is_said_in_each_pages_own_words() -> None:
    said = Counter(f"{_assumed(page)} {_undone(page)}" for page in _SITE)

    assert [words for words, times in said.items() if times > 1] == []
