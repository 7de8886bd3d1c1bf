"""What is taken of others has a bound also where nobody has thought of one: whatever receives, or
begins work, names a row of the table, or is known to need none; each row and counter is gone by."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from limpet.base.bounds.table import TABLE
from tests.unit.base.bounds.outside.taken import UNBOUNDED

_SOURCE = Path(__file__).parents[5] / "src" / "limpet"
_LEFT_OUT = ("base/bounds/", "lab/")
_RECEIVES = re.compile(r"recv(from|msg)?(_into)?|receive|readline|readuntil|readexactly")
_BEGINS = re.compile(r"create_task|in_thread|to_thread|run_in_executor|Thread")
_COUNTERS = re.compile(
    r"TokenBuckets?|SourceRates|MemberRate|Places|Room|ClientTurns|Semaphore|OwnedConnections"
    r"|Crowd|Targets|UnprovenBudget|Admission"
)
_OF_COUNTERS = ("base/rate_limit.py", "base/process/log_limits.py")
"""Which are made of others, one of which is chosen each time."""


@cache
def _modules() -> dict[str, ast.Module]:
    found = {path.relative_to(_SOURCE).as_posix(): path for path in _SOURCE.rglob("*.py")}
    return {
        name: ast.parse(path.read_text(encoding="utf-8"))
        for name, path in sorted(found.items())
        if not name.startswith(_LEFT_OUT)
    }


def _called(node: ast.AST) -> str:
    """Last name of what is called; empty: nothing is."""
    if not isinstance(node, ast.Call):
        return ""
    function = node.func
    if isinstance(function, ast.Subscript):
        function = function.value
    return (
        function.attr
        if isinstance(function, ast.Attribute)
        else function.id
        if isinstance(function, ast.Name)
        else ""
    )


def takes_of_others(tree: ast.Module) -> bool:
    called = map(_called, ast.walk(tree))
    return any(_RECEIVES.fullmatch(each) or _BEGINS.fullmatch(each) for each in called)


def names_rows(tree: ast.Module) -> bool:
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    return any((each.module or "").startswith("limpet.base.bounds") for each in imports)


def test_what_receives_or_begins_work_names_a_row_or_is_known_to_need_none() -> None:
    without = {
        name for name, tree in _modules().items() if takes_of_others(tree) and not names_rows(tree)
    }
    listed = [
        f"{folder}/{name}"
        for folders in UNBOUNDED.values()
        for folder, names in folders.items()
        for name in names.split()
    ]
    assert max(Counter(listed).values()) == 1, "each has one reason"
    assert without - set(listed) == set(), "name a row of limpet.base.bounds, or say why none is"
    assert set(listed) - without == set(), "they are listed for nothing"


def test_each_row_is_a_number_that_the_product_goes_by() -> None:
    used = set()
    for tree in _modules().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                used.add(node.id)
            elif isinstance(node, ast.Attribute):
                used.add(node.attr)
    rows = {name for rows in TABLE.values() for name in rows}
    assert rows - used == set()


def _counters(tree: ast.Module) -> Iterator[str]:
    """Names of attributes and of fields that count."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Attribute(attr=name)], value=value):
                pass
            case ast.AnnAssign(target=ast.Attribute(attr=name), value=ast.expr() as value):
                pass
            case _:
                continue
        if any(_COUNTERS.fullmatch(_called(each)) for each in ast.walk(value)):
            yield name


def _asked() -> set[str]:
    """Names of attributes of which a method is called, that are gone through, or waited for."""
    found = set()
    for tree in _modules().values():
        for node in ast.walk(tree):
            match node:
                case ast.Call(func=ast.Attribute(value=within)):
                    pass
                case ast.comprehension(iter=within) | ast.For(iter=within):
                    pass
                case ast.withitem(context_expr=within):
                    pass
                case _:
                    continue
            found |= {each.attr for each in ast.walk(within) if isinstance(each, ast.Attribute)}
    return found


def test_each_counter_is_asked_by_somebody() -> None:
    """A probe goes to the counter itself: that a call of it was lost would not be seen there."""
    made = {
        name
        for path, tree in _modules().items()
        for name in _counters(tree)
        if path not in _OF_COUNTERS
    }
    assert len(made) > 30
    assert made - _asked() == set()


def test_such_code_is_found() -> None:
    receives = ast.parse("def f(s):\n    return s.recv(4096)")
    begins = ast.parse("from limpet.base.bounds import pods\nasyncio.create_task(f())")
    assert takes_of_others(receives)
    assert takes_of_others(begins)
    assert not takes_of_others(ast.parse("read(1)"))
    assert not names_rows(receives)
    assert names_rows(begins)
    made = "self._rate = TokenBuckets(1, 2, most=3)\nself._n: Places[int] = Places[int](1, 1)"
    assert list(_counters(ast.parse(made))) == ["_rate", "_n"]
