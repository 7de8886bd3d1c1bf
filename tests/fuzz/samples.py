"""The samples of `corpora`: text files of lines `TARGET b'...'`, with comments after a `#` of their
own line. Each is kept for what it reaches that no seed does, or for a fault that it once found."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from tests.fuzz.target import Target

_FOLDER = Path(__file__).parent / "corpora"


def samples_of(target: Target) -> list[bytes]:
    """Seeds first, then what is kept in the repository."""
    return [*target.seeds(), *_kept().get(target.name, ())]


def kept_names() -> set[str]:
    """Targets that the files name."""
    return set(_kept())


@cache
def _kept() -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    for path in sorted(_FOLDER.glob("*.txt")):
        for line in path.read_text(encoding="ascii").splitlines():
            if line and not line.startswith("#"):
                name, _, literal = line.partition(" ")
                found.setdefault(name, []).append(ast.literal_eval(literal))
    return found


def as_line(target: str, data: bytes) -> str:
    """For one of the files."""
    return f"{target} {data!r}"
