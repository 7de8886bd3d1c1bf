"""Ids of findings: the code, the catalogue and the documentation say the same."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from limpet.cli.doctor.catalogue import KINDS, Harm
from limpet.cli.doctor.findings import Finding, by_harm, error, grouped, ok, warn
from limpet.cli.doctor.machine.network_daemons import NETWORK_DAEMONS
from limpet.cli.doctor.mends import MENDED
from limpet.cli.topics.pages import find_docs, look_up, read_pages

TESTS = Path(__file__).parents[3]
CLI = Path(__file__).parents[4] / "src" / "limpet" / "cli"


_MAKERS = {"error", "warn", "said", "level"}


def _names_of(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def ids_of_the_code() -> Iterator[str]:
    """First arguments of calls that make findings."""
    for folder in ("doctor", "install"):
        for path in (CLI / folder).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            if "doctor.findings" not in text:
                continue
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Call) and _names_of(node.func) & _MAKERS:
                    first = node.args[0]
                    if ast.unparse(first) == "each.id":  # of NETWORK_DAEMONS
                        continue
                    assert isinstance(first, ast.Constant), f"{path}:{node.lineno}: no constant id"
                    assert isinstance(first.value, str)
                    yield first.value


def test_every_finding_of_the_code_is_in_the_catalogue_and_no_other() -> None:
    daemons = {each.id for each in NETWORK_DAEMONS}
    assert set(ids_of_the_code()) | daemons | {"not-looked-at"} == set(KINDS)
    assert set(KINDS) >= MENDED


def test_every_topic_that_a_finding_names_is_there_and_its_page_lists_it() -> None:
    pages = read_pages(find_docs())
    for id, kind in KINDS.items():
        assert look_up(pages, kind.topic)
        assert f"| `{id}` | " in pages["doctor"].text, id
        (row,) = (r for r in pages["doctor"].text.splitlines() if r.startswith(f"| `{id}` |"))
        assert ("`--fix`" in row) == (id in MENDED), (
            f"{id}: docs/doctor.md says whether it is mended"
        )
        assert f"`limpet help {kind.topic}`" in look_up(pages, id)


def test_the_page_lists_no_finding_that_is_not_there() -> None:
    text = (find_docs() / "doctor.md").read_text()
    listed = text.partition("## Findings")[2]
    found = {line.split("`")[1] for line in listed.splitlines() if line.startswith("| `")}
    assert found == set(KINDS)


def test_every_mend_is_tried_by_making_the_fault_and_giving_the_command() -> None:
    tried = {
        key.value
        for name in ("doctor/test_pods.py", "install/test_doctor_fix.py")
        for node in ast.walk(ast.parse((TESTS / "cli" / name).read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and _names_of(node.func) == {"mended"}
        for faults in node.args
        if isinstance(faults, ast.Dict)
        for key in faults.keys
        if isinstance(key, ast.Constant)
    }
    assert tried == MENDED


def rows_of_traps() -> list[list[str]]:
    """What, its finding, and the test or the reason."""
    text = (find_docs() / "doctor.md").read_text()
    table = text.partition("## Complaints")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    return rows[1:]


def claimed(tree: ast.Module, name: str) -> set[str]:
    """Words that a function of the module, and what it uses of the module, claims to be so.

    That is those of its `assert`s and of what it gives to others, but for those that it only claims
    not to be there, and docstrings.
    """
    there: dict[str, ast.AST] = {}
    for each in tree.body:
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            there[each.name] = each
        elif isinstance(each, ast.Assign):
            there |= {name: each for target in each.targets for name in _names_of(target)}
    todo, seen, found = [name], set[str](), set[str]()
    while todo:
        if (one := todo.pop()) in seen or one not in there:
            continue
        seen.add(one)
        todo += _names_of(there[one])
        denied = {
            id(part)
            for node in ast.walk(there[one])
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.NotIn)
            for part in ast.walk(node.left)
        }
        said = {id(node.value) for node in ast.walk(there[one]) if isinstance(node, ast.Expr)}
        found |= {
            node.value
            for node in ast.walk(there[one])
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in denied | said
        }
    return found


def test_every_complaint_and_trap_names_a_finding_and_a_test_that_claims_it() -> None:
    rows = rows_of_traps()
    assert len({what for what, _, _ in rows}) == len(rows) > 50
    for what, finding, test in rows:
        if finding == "-":
            assert len(test) > 20, f"{what}: no reason"
            assert "::" not in test, what
            continue
        id = finding.strip("`")
        assert id in KINDS, what
        path, _, name = test.strip("`").partition("::")
        tree = ast.parse((TESTS / path).read_text(encoding="utf-8"))
        assert any(isinstance(each, ast.FunctionDef) and each.name == name for each in tree.body), (
            f"{what}: {test} is not there"
        )
        assert id in claimed(tree, name), f"{what}: {name} does not claim {id}"


def test_a_finding_that_a_test_only_denies_or_talks_of_is_not_claimed() -> None:
    tree = ast.parse(
        '''
def helper(found):
    assert "far" in found

def test_it(found):
    """no-relay"""
    assert "disk-full" not in found
    helper(found)
    until_found(found, "networkd")
'''
    )
    assert claimed(tree, "test_it") == {"far", "networkd"}


def test_what_harms_most_comes_first_and_what_only_warns_after_all_that_is_broken() -> None:
    stopped = error("agent-silent", "a", "", "")
    slow = warn("wireguard-slow", "b", "", "")
    cut_off = error("forward-drops", "c", "", "")
    perhaps = warn("peers-unreached", "d", "", "")
    full = warn("disk-full", "e", "", "")
    fine = ok("f")

    found: list[Finding] = by_harm([fine, slow, perhaps, cut_off, full, stopped, stopped])

    assert found == [stopped, full, cut_off, perhaps, slow, fine]
    lines = list(grouped(found))
    assert [line for line in lines if line.endswith(":") and not line.startswith(" ")] == [
        f"{harm.value}:" for harm in (Harm.PODS, Harm.REACH, Harm.SPEED, Harm.NONE)
    ]
