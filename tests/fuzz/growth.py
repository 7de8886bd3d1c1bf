"""What a search has found, made small enough for the repository: `corpora/grown.txt`.

Of all inputs that searches left in `build/fuzz/corpus`, and of those that are kept already, the few
are chosen that go where no seed goes: the next is always the one with most new steps for its size.
Then each is cut down for as long as it goes there. Steps are counted in Python itself, so the
choice needs no atheris and is the same wherever it is made.
"""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import h11
import structlog

import limpet
from tests.fuzz.engine import HOME
from tests.fuzz.proportion import check_cost
from tests.fuzz.samples import GROWN, as_line, found_of, grown_of
from tests.fuzz.target import Target

MOST_BYTES, MOST_BYTES_OF_ALL = 3_500, 300_000
"""Of a target's lines, and of the file."""
_FIXED_COST = 60
"""An input costs something however short it is, so that one long one may be better than many."""
_MOST_CUTS = 300
"""Attempts to make one input smaller."""
_COUNTED = (
    str(Path(limpet.__file__).parent),
    str(Path(h11.__file__).parent),
    ipaddress.__file__,
)
_HEADER = """\
# Inputs that reach what no seed does, chosen by `make fuzz-grow` of what searches had found.

"""

Step = tuple[str, int, int]
"""A file, and two of its lines of which the second came after the first in one function."""


@dataclass(frozen=True)
class Grown:
    """What is kept of a target's inputs."""

    target: Target
    inputs: tuple[bytes, ...]
    steps_before: int
    """Steps that the seeds make, and the samples that once were faults."""
    steps: int
    faults: tuple[bytes, ...] = ()
    """Inputs that the parser met with what is none of its errors, or with too much work."""


def grow(targets: Iterable[Target]) -> Iterator[Grown]:
    """Each target's, in order; `write` puts them in place."""
    with structlog.testing.capture_logs() as logged:
        for target in targets:
            yield _grow(target)
            logged.clear()


def write(grown: Iterable[Grown]) -> int:
    """Writes the file; returns its size."""
    lines = [as_line(each.target.name, data) for each in grown for data in sorted(each.inputs)]
    text = _HEADER + "".join(f"{line}\n" for line in lines)
    GROWN.write_text(text, encoding="ascii")
    return len(text)


def _grow(target: Target) -> Grown:
    known: set[Step] = set()
    for _ in range(2):  # what is done only once, and kept, is no step of an input
        for seed in (*target.seeds(), *found_of(target)):
            known |= _steps(target, seed) or set()
    before = len(known)
    steps: dict[bytes, set[Step]] = {}
    faults: list[bytes] = []
    for data in _candidates(target):
        reached = _steps(target, data)
        if reached is None or not _is_cheap(target, data):
            faults.append(data)
        else:
            steps[data] = reached - known
    chosen: list[bytes] = []
    left_bytes = MOST_BYTES
    while True:
        for data in list(steps):
            steps[data] -= known
            if not steps[data] or _size(target, data) > left_bytes:
                del steps[data]
        if not steps:
            break
        best = max(steps, key=lambda each: (len(steps[each]) / _cost(target, each), each))
        small = _cut(target, best, steps.pop(best))
        known |= _steps(target, small) or set()
        left_bytes -= _size(target, small)
        chosen.append(small)
    return Grown(target, tuple(chosen), before, len(known), tuple(faults))


def _candidates(target: Target) -> Sequence[bytes]:
    """Sorted, so that the choice is the same each time."""
    folder = HOME / "corpus" / target.name
    found = {each.read_bytes() for each in folder.iterdir()} if folder.exists() else set()
    return sorted(found.union(grown_of(target)), key=lambda each: (len(each), each))


def _size(target: Target, data: bytes) -> int:
    """Of the file's line."""
    return len(as_line(target.name, data)) + 1


def _cost(target: Target, data: bytes) -> int:
    return _FIXED_COST + _size(target, data)


def _is_cheap(target: Target, data: bytes) -> bool:
    try:
        check_cost(target, data)
    except Exception:  # noqa: BLE001 - whatever it is, it is no sample
        return False
    return True


def _cut(target: Target, data: bytes, wanted: set[Step]) -> bytes:
    """The input without as many of its parts as can be, still with these steps."""
    left = _MOST_CUTS
    part = max(1, len(data) // 2)
    while part and left:
        at = 0
        while at < len(data) and left:
            left -= 1
            shorter = data[:at] + data[at + part :]
            reached = _steps(target, shorter)
            if reached is not None and wanted <= reached and _is_cheap(target, shorter):
                data = shorter
            else:
                at += part
        part //= 2
    return data


def _steps(target: Target, data: bytes) -> set[Step] | None:
    """Steps that an input makes; None: it is a fault."""
    steps: set[Step] = set()

    def trace(frame: FrameType, _event: str, _argument: Any) -> Any:
        path = frame.f_code.co_filename
        if not path.startswith(_COUNTED):
            return None
        last = 0

        def line(frame: FrameType, event: str, _argument: Any) -> Any:
            nonlocal last
            if event == "line":
                steps.add((path, last, frame.f_lineno))
                last = frame.f_lineno
            return line

        return line

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        target.attempt(data)
    except Exception:  # noqa: BLE001 - whatever it is, it is no sample
        return None
    finally:
        sys.settrace(before)
    return steps
