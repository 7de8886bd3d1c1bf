"""The order in which files of tests begin."""

from __future__ import annotations

from pathlib import Path

from tests.order import LONGEST_FIRST, rank

_TESTS = Path(__file__).parents[1]


def test_what_is_named_is_there() -> None:
    assert [name for name in LONGEST_FIRST if not (_TESTS / name).exists()] == []


def test_a_file_goes_before_its_folder_and_what_is_not_named_comes_last() -> None:
    files = ["unit/test_house.py", "lab/storms/test_day.py", "lab/sites/test_sites.py"]
    assert sorted((f"tests/{each}" for each in files), key=rank)[0] == f"tests/{files[2]}"
    assert rank("tests/unit/test_house.py") == len(LONGEST_FIRST)
    assert rank("tests/laboratory/test_x.py") == len(LONGEST_FIRST), "of a folder, not its letters"
