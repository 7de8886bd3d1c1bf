"""The samples of `corpora`: text files of lines `TARGET b'...'`, with comments after a `#` of their
own line. Each is kept for what it reaches that no seed does (`grown.txt`, which `make fuzz-grow`
writes), or for a fault that it once found (`found.txt`)."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from tests.fuzz.target import Target

_FOLDER = Path(__file__).parent / "corpora"
_FOUND, GROWN = _FOLDER / "found.txt", _FOLDER / "grown.txt"


def samples_of(target: Target) -> list[bytes]:
    """Seeds first, then what is kept in the repository."""
    return [*target.seeds(), *found_of(target), *grown_of(target)]


def found_of(target: Target) -> list[bytes]:
    """Inputs that once were faults."""
    return _kept(_FOUND).get(target.name, [])


def grown_of(target: Target) -> list[bytes]:
    """Inputs that reach what neither seeds nor former faults do."""
    return _kept(GROWN).get(target.name, [])


def kept_names() -> set[str]:
    """Targets that the files name."""
    return {*_kept(_FOUND), *_kept(GROWN)}


@cache
def _kept(path: Path) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    for line in path.read_text(encoding="ascii").splitlines() if path.exists() else ():
        if line and not line.startswith("#"):
            name, _, literal = line.partition(" ")
            found.setdefault(name, []).append(ast.literal_eval(literal))
    return found


def as_line(target: str, data: bytes) -> str:
    """For one of the files."""
    return f"{target} {data!r}"
