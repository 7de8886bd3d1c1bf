"""Tests stand where what they test stands: folders of unit tests are those of the source."""

from __future__ import annotations

from pathlib import Path

from tests.unit.test_house import SOURCE, TESTS

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
