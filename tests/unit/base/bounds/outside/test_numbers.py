"""A new number that bounds something is a row of the table, or is known to be none."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.unit.base.bounds.outside.numbers import OUTSIDE

_SOURCE = Path(__file__).parents[5] / "src" / "limpet"
_LEFT_OUT = ("base/bounds/", "lab/")
_BOUNDS = re.compile(
    r"(^|_)(MOST|MAX|LIMIT|LARGEST|LONGEST|QUEUE|BACKLOG|BURST|CAPACITY|AT_ONCE|KEPT"
    r"|PER_S|PER_MINUTE|PER_HOUR|PARTS|RATE|AMPLIFICATION|PATIENCE|GIVE_UP|TRIES|ATTEMPTS)(_|$)"
)
_WAITS = re.compile(r"(^|_)(PATIENCE|GIVE_UP|TIMEOUT)_S$")
"""Times that somebody is waited for."""
_LARGE_BYTES = 1000
"""What is smaller is a header, a key, a number that is used once."""


def looks_like_a_bound(name: str, value: float) -> bool:
    if _WAITS.search(name):
        return True
    if "MTU" in name or (name.endswith("_S") and not name.endswith("PER_S")):
        return False
    is_size = re.search(r"(^|_)(BYTES|CHARACTERS|CHARS)$", name) and value >= _LARGE_BYTES
    return bool(is_size or _BOUNDS.search(name))


def numbers(tree: ast.Module) -> Iterator[tuple[str, float]]:
    """Those that a module gives a name, also several in a line."""
    for node in tree.body:
        if isinstance(node, ast.Assign):
            target, given = node.targets[0], node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            target, given = node.target, node.value
        else:
            continue
        pairs = [(target, given)]
        if isinstance(target, ast.Tuple) and isinstance(given, ast.Tuple):
            # Of one with a star, what stands before it.
            pairs = list(zip(target.elts, given.elts, strict=False))
        for name, value in pairs:
            if isinstance(name, ast.Name) and (number := _number(value)) is not None:
                yield name.id, number


def _number(value: ast.expr) -> float | None:
    """None: it is none, or is made of something that has a name, as a row is."""
    parts = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)
    if not all(isinstance(each, parts) for each in ast.walk(value)):
        return None
    constants = [each.value for each in ast.walk(value) if isinstance(each, ast.Constant)]
    if not all(type(each) in (int, float) for each in constants):
        return None
    return float(eval(compile(ast.Expression(value), "a number", "eval")))


def found() -> set[tuple[str, str]]:
    return {
        (path, name)
        for each in _SOURCE.rglob("*.py")
        if not (path := each.relative_to(_SOURCE).as_posix()).startswith(_LEFT_OUT)
        for name, value in numbers(ast.parse(each.read_text(encoding="utf-8")))
        if looks_like_a_bound(name, value)
    }


def test_what_bounds_something_is_a_row_or_is_known_to_be_none() -> None:
    known = Counter(
        (path, name)
        for files in OUTSIDE.values()
        for path, names in files.items()
        for name in names.split()
    )

    new = sorted(found() - known.keys())
    assert not new, (
        "a bound on what another party sends is a row in src/limpet/base/bounds, with a probe; of "
        f"all else tests/unit/base/bounds/outside says why: {new}"
    )
    gone = sorted(known.keys() - found())
    assert not gone, f"they are no numbers any more: {gone}"
    assert max(known.values()) == 1, "each has one reason"


def test_such_numbers_are_found_however_they_are_written() -> None:
    tree = ast.parse(
        "_MOST_PEERS = 1 << 10\n"
        "FIRST_S, QUEUE_BYTES = 1.0, 64 << 10\n"
        "ANSWERS_PER_S: float = 2.5\n"
        "_ROOM_BYTES = 4096\n"
        "TRIES = 3\nGIVE_UP_S = 2.0\nNONCE_BYTES = 8\nLONGEST_S = 5.0\n_MTU_BYTES = 1500\n"
        "_MOST = ROW.most\nMOST_OF = len(ROWS)\n"
    )

    names = [name for name, value in numbers(tree) if looks_like_a_bound(name, value)]

    assert names == [
        "_MOST_PEERS",
        "QUEUE_BYTES",
        "ANSWERS_PER_S",
        "_ROOM_BYTES",
        "TRIES",
        "GIVE_UP_S",
    ]
