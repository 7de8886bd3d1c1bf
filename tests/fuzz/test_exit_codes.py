"""What the end of a search says to `.ci/run`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.__main__ import FAILED, FOUND, exit_code
from tests.fuzz.engine import Ran
from tests.fuzz.targets import TARGETS

_CHECKOUT = Path(__file__).parents[2]
_TARGET = next(iter(TARGETS.values()))
_AS_ALWAYS = Path(f"{_TARGET.name}-first-crash-1234")
_BY_THIS_SEED = Path(f"{_TARGET.name}-crash-1234")


_SEARCH = """
import sys
from pathlib import Path
from tests.fuzz import engine
from tests.fuzz.target import Shape, Target

def parse(data):
    if len(data) > int(sys.argv[2]) or parse.count > int(sys.argv[3]):
        raise KeyError("planted")
    parse.count += 1

parse.count = 0
atheris, _ = engine.load(("limpet",))
engine.HOME = Path(sys.argv[1])
target = Target("planted", parse, lambda: [b"a seed"], (), Shape.BYTES, 64)
for ran in engine.run(atheris, [target], 4, 5, 1):
    print(len(ran.first_faults), len(ran.faults), ran.broke)
"""


def ran(*faults: Path, inputs: int = 9, broke: bool = False) -> Ran:
    return Ran(_TARGET, inputs, faults=list(faults), broke=broke)


@pytest.mark.parametrize(
    ("runs", "code"),
    [
        ([ran(), ran()], 0),
        ([ran(), ran(_BY_THIS_SEED)], FOUND),
        ([ran(_BY_THIS_SEED), ran(_AS_ALWAYS)], FAILED),
        ([ran(_BY_THIS_SEED, _AS_ALWAYS)], FAILED),
        ([ran(_BY_THIS_SEED), ran(inputs=0)], FAILED),
        ([ran(), ran(broke=True)], FAILED),
        ([], FAILED),
    ],
)
def test_what_this_seed_alone_has_found_is_told_from_what_every_run_finds(
    runs: list[Ran], code: int
) -> None:
    assert exit_code(runs) == code
    assert FOUND not in (0, FAILED, 2)  # 2: the command line was wrong


def test_a_search_that_cannot_start_has_failed(tmp_path: Path) -> None:
    (tmp_path / "atheris.py").write_text("raise ImportError('libc++ is not there')")
    paths = f"{tmp_path}:{_CHECKOUT}"

    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "run", "--seconds", "1"],
        env={**os.environ, "PYTHONPATH": paths},
        cwd=_CHECKOUT,
        capture_output=True,
        text=True,
    )

    assert done.returncode == FAILED
    assert "no atheris here (libc++ is not there)" in done.stderr


@pytest.mark.parametrize(
    ("longest", "most", "found"),
    [("64", "1000000", "0 0 False"), ("20", "1000000", "1 2 False"), ("64", "4000", "0 1 False")],
)
def test_a_fault_is_written_down_whenever_it_is_found(
    longest: str, most: str, found: str, tmp_path: Path
) -> None:
    pytest.importorskip("atheris", reason="`make fuzz` gets it, and runs this")

    done = subprocess.run(
        [sys.executable, "-c", _SEARCH, tmp_path, longest, most],
        cwd=_CHECKOUT,
        capture_output=True,
        text=True,
    )

    assert done.stdout == found + "\n", done.stderr
