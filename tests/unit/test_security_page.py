"""docs/security.md claims nothing that no test shows."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from pathlib import Path

import pytest

from limpet.cluster.kinds.presence import Presence

_REPOSITORY = Path(__file__).parents[2]
_TEXT = (_REPOSITORY / "docs/security.md").read_text(encoding="utf-8")
_TEST = re.compile(r"`(tests/[\w/.]+(?:::\w+)?)`")
_SHOWN_BY = sorted(set(_TEST.findall(_TEXT)))
_LINK = re.compile(r"\(#([\w-]+)\)")
_ITS_BOUNDS = "bounds"
"""The section that is written of the code's table, whose rows tests/unit/base/bounds asks one by
one."""


def sections() -> dict[str, str]:
    """Texts by the anchor of their heading."""
    parts = re.split(r"^#{2,3} (.+)$", _TEXT, flags=re.MULTILINE)
    names = [re.sub(r"[^\w]+", "-", name.lower()) for name in parts[1::2]]
    return dict(zip(names, parts[2::2], strict=True))


def shows(text: str) -> bool:
    """A test stands in it, or in the section that it leads to."""
    led_to = (sections().get(each, "") for each in _LINK.findall(text))
    return any(_TEST.search(each) for each in (text, *led_to)) or f"(#{_ITS_BOUNDS})" in text


def rows() -> list[list[str]]:
    """Cells of the rows of tables whose last column is `Test`."""
    found = []
    for table in re.findall(r"(?:^\|.*\n)+", _TEXT, re.MULTILINE):
        head, _, *rest = [
            [cell.strip() for cell in line.strip("|\n").split(" | ")] for line in table.splitlines()
        ]
        if head[-1].strip() == "Test":
            assert {len(each) for each in rest} == {len(head)}, head
            found += rest
    return found


def paragraphs() -> list[str]:
    """Of the page but its tables, what it begins with and its last section; items of lists by
    themselves."""
    found = []
    whole = _TEXT[_TEXT.index("\n## ") :].partition(f"## {_ITS_BOUNDS.capitalize()}\n")[0]
    for block in re.split(r"\n\n+", whole):
        if not block.startswith("|"):
            found += re.split(r"\n(?=- |\d+\. )", block)
    return found


def test_the_page_names_its_tests() -> None:
    assert len(_SHOWN_BY) > 20


def test_each_row_of_what_somebody_may_try_has_a_test_beside_it_or_above_it() -> None:
    tried = rows()
    assert len(tried) > 40
    above = ""
    for what, *_, test in tried:
        assert _TEST.search(test) or (test.startswith("the same") and above), what
        above = test


def test_each_field_that_a_node_says_of_itself_stands_in_a_row_of_claims() -> None:
    claims = sections()["what-a-node-claims"]
    named = {
        name
        for line in claims.splitlines()
        if line.startswith("| ")
        for name in re.findall(r"`(\w+)`", line.split(" | ")[0])
    }
    assert {each.name for each in fields(Presence)} - named == set()


def test_each_sentence_of_what_a_party_cannot_has_a_test_or_leads_to_one() -> None:
    told = paragraphs()
    cannot = [each for each in told if re.search(r"\bcannot\b", each)]
    heads = [each for each in cannot if re.search(r"\bcannot$", each)]
    items = [item for head in heads for item in _items_behind(told, told.index(head))]

    assert len(heads) >= 4
    assert len(items) >= 15
    left = [each for each in (*items, *cannot) if each not in heads and not shows(each)]
    assert left == []


def _items_behind(told: list[str], at: int) -> list[str]:
    found = []
    for each in told[at + 1 :]:
        if not each.startswith("- "):
            break
        found.append(each)
    return found


@pytest.mark.parametrize("test", _SHOWN_BY)
def test_each_test_that_the_page_names_is_there(test: str) -> None:
    path, _, name = test.partition("::")
    if (_REPOSITORY / path).is_dir():
        return
    tree = ast.parse((_REPOSITORY / path).read_text(encoding="utf-8"))
    if name:
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        assert name in {each.name for each in ast.walk(tree) if isinstance(each, functions)}
