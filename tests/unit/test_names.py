"""Names are those that a network engineer would search for."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import limpet

SOURCE = Path(limpet.__file__).parent
BENCH = Path(__file__).parents[2] / "bench"
RIDDLES = {
    *("agenda", "anew", "appetite", "asking", "books", "pace", "sighting", "standing", "standings"),
    *("telling", "tellings", "trials"),
}
"""Words that say what something felt like to who wrote it. `site`, `round`, `behind` and `stranger`
are words of the product: of the lab and the cluster, of the loop, of NATs, of docs/security.md."""


def words_of(name: str) -> set[str]:
    return set(re.findall("[a-z]+", re.sub("([A-Z]+)", r"_\1", name).lower()))


def names_of(code: ast.AST) -> Iterator[str]:
    for node in ast.walk(code):
        match node:
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
                yield name
            case ast.Name(name) | ast.Attribute(_, name) | ast.arg(name) | ast.keyword(str(name)):
                yield name


def riddles(code: str) -> set[str]:
    return {name for name in names_of(ast.parse(code)) if words_of(name) & RIDDLES}


def test_no_name_is_a_riddle() -> None:
    found = {
        f"{root.name}/{path.relative_to(root)}": bad
        for root in (SOURCE, BENCH)
        for path in sorted(root.rglob("*.py"))
        if (
            bad := riddles(path.read_text())
            | ({path.stem} if words_of(path.stem) & RIDDLES else set())
        )
    }
    assert found == {}


def test_a_riddle_is_found_wherever_it_is() -> None:
    assert riddles("def is_put_anew(): ...") == {"is_put_anew"}
    assert riddles("class Pace: ...") == {"Pace"}
    assert riddles("put(device, anew=True)") == {"anew"}
    assert riddles("def f(asking): return asking.standing") == {"asking", "standing"}
    assert riddles("space = understanding(paced)") == set()
