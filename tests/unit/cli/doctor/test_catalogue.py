"""Ids of findings: the code, the catalogue and the documentation say the same."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from limpet.cli.doctor.catalogue import KINDS, Harm
from limpet.cli.doctor.findings import Finding, by_harm, error, grouped, ok, warn
from limpet.cli.doctor.machine.settings import NETWORK_DAEMONS
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


def test_every_complaint_and_trap_names_a_finding_and_a_test_that_are_there() -> None:
    text = (find_docs() / "doctor.md").read_text()
    table = text.partition("## Complaints")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    assert len(rows) > 40
    for what, finding, test in rows[1:]:
        if finding == "-":
            continue
        assert finding.strip("`") in KINDS, what
        path, _, name = test.strip("`").partition("::")
        assert f"def {name}(" in (TESTS / path).read_text(encoding="utf-8"), test


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
