"""What is taken of others has a bound also where nobody has thought of one: whatever receives, or
begins work, names a row of the table, or is known to need none; each row and counter is gone by."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

from limpet.base.bounds.table import TABLE
from tests.unit.base.bounds.outside.larger import Larger
from tests.unit.base.bounds.outside.owners import Owners
from tests.unit.base.bounds.outside.taken import UNBOUNDED
from tests.unit.base.bounds.outside.uses import all_uses, modules, uses

_RECEIVES = re.compile(r"recv(from|msg)?(_into)?|receive|readline|readuntil|readexactly")
_BEGINS = re.compile(r"create_task|in_thread|to_thread|run_in_executor|Thread")
_COUNTERS = re.compile(
    r"TokenBuckets?|SourceRates|MemberRate|Places|Room|ClientTurns|Semaphore|OwnedConnections"
    r"|Crowd|Targets|UnprovenBudget|Admission"
)
_TAKEN_BY = {
    "TokenBucket": "take",
    "TokenBuckets": "take",
    "SourceRates": "take",
    "MemberRate": "take",
    "UnprovenBudget": "may_ask",
    "Admission": "arrive",
    "Places": "put",
    "OwnedConnections": "note",
    "Room": "refusal",
    "Targets": "refusal",
    "Crowd": "admits",
    "ClientTurns": "put",
}
"""The method without which each counts nothing; of others it is any."""
_HANDED_ON = {("Guard", "_connections"), ("Guard", "_of_tokens"), ("Rates", "unproven")}
"""To others, who take of them."""
_OTHERS = {("Status", "room")}
"""Which are none: their class has the name of one."""
_OF_COUNTERS = ("base/rate_limit.py", "base/process/log_limits.py")
"""Which are made of others, one of which is chosen each time."""


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
        name for name, tree in modules().items() if takes_of_others(tree) and not names_rows(tree)
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
    rows = {(party, name) for party, rows in TABLE.items() for name in rows}
    assert rows - {use.row for _, use in all_uses()} == set()


def _made(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Class and name of each attribute that is made as a counter."""
    for owner in ast.walk(tree):
        if isinstance(owner, ast.ClassDef):
            for node in ast.walk(owner):
                match node:
                    case ast.Assign(targets=[ast.Attribute(attr=name)], value=value):
                        pass
                    case ast.AnnAssign(target=ast.Attribute(attr=name), value=ast.expr() as value):
                        pass
                    case _:
                        continue
                if any(_COUNTERS.fullmatch(_called(each)) for each in ast.walk(value)):
                    yield owner.name, name


def counters(
    trees: dict[str, ast.Module], kinds: dict[tuple[str, str], str]
) -> set[tuple[str, str]]:
    """Class and name of each attribute that counts; `kinds`: by these, what class it is of."""
    left_out = {
        node.name
        for path in _OF_COUNTERS
        for node in ast.walk(trees.get(path, ast.Module([], [])))
        if isinstance(node, ast.ClassDef)
    }
    found = {each for tree in trees.values() for each in _made(tree)}
    found |= {each for each, kind in kinds.items() if _COUNTERS.fullmatch(kind)}
    return {each for each in found - _OTHERS if each[0] not in left_out}


def unasked(trees: dict[str, ast.Module]) -> set[tuple[str, str]]:
    """Those of which nobody ever takes anything."""
    owners = Owners(trees.values())
    kinds = owners.attributes()
    counted = counters(trees, kinds)
    taken: dict[tuple[str, str], set[str]] = {}
    for owner, name, method in owners.asked({name for _, name in counted}):
        taken.setdefault((owner, name), set()).add(method)
    return {
        each
        for each in counted - _HANDED_ON
        if each not in taken
        or _TAKEN_BY.get(kinds.get(each, ""), min(taken[each])) not in taken[each]
    }


def test_each_counter_is_asked_by_somebody() -> None:
    """A probe goes to the counter itself: that a call of it was lost would not be seen there."""
    assert unasked(modules()) == set()


def test_such_code_is_found() -> None:
    receives = ast.parse("def f(s):\n    return s.recv(4096)")
    begins = ast.parse("from limpet.base.bounds import pods\nasyncio.create_task(f())")
    assert takes_of_others(receives)
    assert takes_of_others(begins)
    assert not takes_of_others(ast.parse("read(1)"))
    assert not names_rows(receives)
    assert names_rows(begins)


_RATED = """
class Room: ...
class TokenBuckets: ...

class Rates:
    def __init__(self) -> None:
        self.paths = TokenBuckets()

class Paths:
    def __init__(self) -> None:
        self.paths: list[str] = []
        self._rates = Rates()
        self._rooms = {"a": Room()}

    @property
    def rates(self) -> Rates:
        return self._rates

    def add(self) -> None:
        self.paths.take()
        room = self._rooms["a"]
        room.change()
"""
_ASKED = """
def ask(each: Paths) -> None:
    each.rates.paths.{method}()
    for room in each._rooms.values():
        room.refusal()
"""


def test_a_counter_that_only_its_namesake_is_asked_instead_of_is_found() -> None:
    rated = {"rated.py": ast.parse(_RATED)}
    assert unasked(rated) == {("Rates", "paths"), ("Paths", "_rooms")}
    assert unasked({**rated, "a.py": ast.parse(_ASKED.format(method="take"))}) == set()
    known = {**rated, "a.py": ast.parse(_ASKED.format(method="know"))}
    assert unasked(known) == {("Rates", "paths")}, "its taking is what counts"


_USES = """
from limpet.base.bounds import strangers, words as bounds
from limpet.base.bounds.members import NUMBER as MOST
from limpet.base.bounds.words import LABEL
from somewhere import NAME, FILE

read(bounds.LINE.most, room=strangers.HEADERS)
check(NAME.most, FILE, MOST.most, row is strangers.JOIN_BODY)
raise ValueError(f"more than {LABEL.most}")
"""


def test_a_row_is_known_by_where_its_name_comes_from() -> None:
    found = [(*use.row, use.is_number) for use in uses(ast.parse(_USES))]
    assert found == [
        ("anybody", "LINE", True),
        ("strangers", "HEADERS", False),
        ("members", "NUMBER", True),
    ]


def test_a_bound_is_made_larger_in_one_place_alone() -> None:
    number, row, _ = uses(ast.parse(_USES))

    larger = ast.unparse(Larger(number, 7).visit(ast.parse(_USES)))
    assert larger.count(" * 7") == 1
    assert "replace(bounds.LINE, most=bounds.LINE.most * 7).most, room=strangers.HEADERS)" in larger
    larger = ast.unparse(Larger(row, 7).visit(ast.parse(_USES)))
    assert larger.count(" * 7") == 1
    assert "replace(strangers.HEADERS, most=strangers.HEADERS.most * 7))" in larger
