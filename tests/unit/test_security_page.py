"""docs/security.md claims nothing that no test shows."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

_REPOSITORY = Path(__file__).parents[2]
_SHOWN_BY = sorted(
    set(re.findall(r"`(tests/[\w/.]+(?:::\w+)?)`", (_REPOSITORY / "docs/security.md").read_text()))
)


def test_the_page_names_its_tests() -> None:
    assert len(_SHOWN_BY) > 20


@pytest.mark.parametrize("test", _SHOWN_BY)
def test_each_test_that_the_page_names_is_there(test: str) -> None:
    path, _, name = test.partition("::")
    if (_REPOSITORY / path).is_dir():
        return
    tree = ast.parse((_REPOSITORY / path).read_text(encoding="utf-8"))
    if name:
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        assert name in {each.name for each in ast.walk(tree) if isinstance(each, functions)}
