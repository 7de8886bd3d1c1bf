"""What is taken from another party has a bound, and each bound holds."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

from limpet.base.bounds.bound import Bound
from limpet.base.bounds.table import TABLE, in_markdown
from tests.unit.base.bounds.elsewhere import ELSEWHERE
from tests.unit.base.bounds.probes import PROBES

_HERE = Path(__file__).parent
_REPOSITORY = _HERE.parents[3]

for _path in _HERE.rglob("*.py"):
    if _path.stem != "__init__" and not _path.stem.startswith("test_"):
        _parts = _path.relative_to(_HERE).with_suffix("").parts
        importlib.import_module(".".join((str(__package__), *_parts)))

ROWS = [(f"{party}.{name}", row) for party, rows in TABLE.items() for name, row in rows.items()]
_PROBED_HERE = [
    pytest.param(row, id=name)
    for name, row in ROWS
    if id(row) in PROBES or not any(row is other for other, _ in ELSEWHERE)
]


@pytest.mark.parametrize("bound", _PROBED_HERE)
def test_as_much_is_taken_and_no_more(bound: Bound) -> None:
    assert id(bound) in PROBES, "a row without a probe: see tests/unit/base/bounds"
    for probe in PROBES[id(bound)]:
        assert probe.takes(bound.most), f"{bound.most} {bound.unit} are not taken"
        assert not probe.takes(probe.above), f"{probe.above} {bound.unit} are taken"


def test_no_stranger_is_waited_for_longer_than_a_minute() -> None:
    times = {name: row.most for name, row in TABLE["strangers"].items() if row.unit == "seconds"}
    assert len(times) > 6
    assert max(times.values()) <= 60, times


@pytest.mark.parametrize(("bound", "test"), ELSEWHERE)
def test_what_is_probed_elsewhere_is(bound: Bound, test: str) -> None:
    assert any(bound is row for _, row in ROWS)
    path, name = test.split("::")
    tree = ast.parse((_REPOSITORY / path).read_text(encoding="utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    assert name in {each.name for each in ast.walk(tree) if isinstance(each, functions)}


def test_the_documentation_shows_the_table_as_it_is() -> None:
    shown = (_REPOSITORY / "docs" / "security.md").read_text(encoding="utf-8").splitlines()
    start = shown.index("| From | What | At most | Above it |") + 2
    rows = in_markdown()
    assert shown[start : start + len(rows)] == rows, "run scripts/write-bounds"
    assert not shown[start + len(rows) :][:1] or not shown[start + len(rows)].startswith("|")
