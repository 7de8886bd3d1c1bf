"""Where the product goes by a row of the table: by what a name means there, not by how it reads."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from limpet.base.bounds.table import TABLE

_SOURCE = Path(__file__).parents[5] / "src" / "limpet"
_LEFT_OUT = ("base/bounds/", "lab/")
_TABLE = "limpet.base.bounds"

Row = tuple[str, str]
"""Its party and its name."""


@dataclass(frozen=True, slots=True)
class Use:
    row: Row
    node: ast.expr
    """Of the number; of the row where all of it is handed on."""
    is_number: bool


@cache
def modules() -> dict[str, ast.Module]:
    """By the path below `src/limpet`; without the table, and the lab."""
    found = {path.relative_to(_SOURCE).as_posix(): path for path in _SOURCE.rglob("*.py")}
    return {
        name: ast.parse(path.read_text(encoding="utf-8"))
        for name, path in sorted(found.items())
        if not name.startswith(_LEFT_OUT)
    }


def uses(tree: ast.Module, *, texts: bool = False) -> Iterator[Use]:
    """Without what is only told, or compared with another row. `texts`: also what is written into
    a text, which is another program's settings then."""
    parties, rows = _imported(tree)

    def row_of(node: ast.AST) -> Row | None:
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                return rows.get(name)
            case ast.Attribute(value=ast.Name(id=module), attr=name) if module in parties:
                return (parties[module], name) if name in TABLE[parties[module]] else None
        return None

    def below(node: ast.AST) -> Iterator[Use]:
        match node:
            case ast.JoinedStr() if not texts:
                return
            case ast.Call(func=ast.Attribute(value=ast.Name(id="_log"))):
                return
            case ast.Compare(ops=[ast.Is() | ast.IsNot()]):
                return
            case ast.Attribute(value=value, attr=attribute) if (row := row_of(value)) is not None:
                if attribute == "most":
                    yield Use(row, node, is_number=True)
                return
        row = row_of(node)
        if row is not None:
            assert isinstance(node, ast.expr)
            yield Use(row, node, is_number=False)
            return
        for each in ast.iter_child_nodes(node):
            yield from below(each)

    yield from below(tree)


def _imported(tree: ast.Module) -> tuple[dict[str, str], dict[str, Row]]:
    """What a module calls the parties' modules, and what it calls rows."""
    parties: dict[str, str] = {}
    rows: dict[str, Row] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        for each in node.names:
            called = each.asname or each.name
            if node.module == _TABLE and each.name in _BY_MODULE:
                parties[called] = _BY_MODULE[each.name]
            party = _BY_MODULE.get(node.module.removeprefix(f"{_TABLE}."))
            if party is not None and each.name in TABLE[party]:
                rows[called] = (party, each.name)
    return parties, rows


_BY_MODULE = {"words" if party == "anybody" else party: party for party in TABLE}
_TEXTS = {"datapath/tunnel/ipsec/codec.py"}
"""Which write another program's settings."""


def all_uses() -> list[tuple[str, Use]]:
    """With the path below `src/limpet`."""
    return [
        (path, use) for path, tree in modules().items() for use in uses(tree, texts=path in _TEXTS)
    ]
