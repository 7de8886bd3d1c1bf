"""The walks of ARCHITECTURE.md are short enough to be read.

Agents go them in tests/lab/cluster/test_walks.py.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WALKS = {
    "A changed grant, from the feed to the netlink message.": 12,
    "A silent path, to its new rung.": 12,
    "A CNI ADD.": 15,
}


def steps(walk: str) -> list[tuple[str, str]]:
    """File and function of each."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    part = text.partition(f"**{walk}**")[2].partition("**")[0].partition("##")[0]
    return re.findall(r"^\d+\. `([^`]+)` `([^`]+)`", part, re.MULTILINE)


@pytest.mark.parametrize(("walk", "most"), WALKS.items())
def test_a_walk_passes_few_files_and_each_has_what_it_names(walk: str, most: int) -> None:
    found = steps(walk)

    assert 5 < len(found) <= most
    for file, function in found:
        tree = ast.parse((ROOT / "src" / "limpet" / file).read_text(encoding="utf-8"))
        defined = {
            node.name
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        assert function in defined, f"{file} has no {function}"
