"""What all tests have in common: where they stand, and how they make namespaces."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.unit.test_house import CHECKOUT, SOURCE, TESTS

WITHOUT_TWIN = {
    "base/bounds": "a probe for each row of the table, by who sends and who asks",
    "datapath/node/golden": "rulesets as text, which tests compare with",
    "release": "what makes the artefacts stands beside `src`, in a folder of this name",
}
"""Folders below which tests/unit is none of `src/limpet`, each with its reason."""


def folders_of(root: Path) -> set[Path]:
    """Those with a file in them, as seen from there."""
    found = {path.parent.relative_to(root) for path in root.rglob("*") if path.is_file()}
    return {each for each in found if "__pycache__" not in each.parts}


def test_each_folder_of_unit_tests_has_its_twin_in_the_source() -> None:
    alone = folders_of(TESTS / "unit") - folders_of(SOURCE)
    excepted = {
        name: {each for each in alone if each.is_relative_to(name)} for name in WITHOUT_TWIN
    }

    assert alone == set().union(*excepted.values())
    assert all(excepted.values()), f"nothing needs them any more: {excepted}"


def test_namespaces_of_this_machine_are_made_in_one_place() -> None:
    """By `lab/netns.py`. A machine that a test makes (`machine.run`) has `ip netns` to itself."""
    makers = {
        path.relative_to(CHECKOUT)
        for root in ("src", "tests", "bench", "release")
        for path in (CHECKOUT / root).rglob("*.py")
        if "netns" in (text := path.read_text(encoding="utf-8"))
        and any(map(makes_a_namespace_here, ast.walk(ast.parse(text))))
    }

    assert makers == {Path("src/limpet/lab/netns.py")}


def makes_a_namespace_here(node: ast.AST) -> bool:
    """Whether it calls `ip netns add` with no machine named: by `run_command` or `subprocess`."""
    if not isinstance(node, ast.Call) or not node.args:
        return False
    words = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]
    function = ast.unparse(node.func)
    return words[:3] == ["ip", "netns", "add"] and (
        function == "run_command" or function.startswith("subprocess.")
    )


def test_a_call_that_makes_a_namespace_is_found() -> None:
    found = [
        any(map(makes_a_namespace_here, ast.walk(ast.parse(source))))
        for source in (
            'run_command("ip", "netns", "add", name)',
            'subprocess.run(["ip", "netns", "add", name], check=True)',
            'machine.run("ip", "netns", "add", name)',
            'run_command("ip", "netns", "del", name)',
        )
    ]
    assert found == [True, True, False, False]
