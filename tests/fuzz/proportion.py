"""What an input costs its parser: lines of Python, CPU time, memory; and what it may cost.

Lines are counted, so they are the same on every machine; CPU time is for what runs in C, and its
bound leaves room for a slow machine and for tracing. Bounds are by the input's size: what is
allowed is linear, so that anything quadratic is over it at the sizes that targets have.
"""

from __future__ import annotations

import gc
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

from tests.fuzz.target import Target

_LINES, _LINES_PER_BYTE = 20_000, 200
_CPU_S, _CPU_S_PER_BYTE = 0.2, 20e-6
_MEMORY_BYTES, _MEMORY_PER_BYTE = 2 << 20, 400
"""A JSON list of empty lists takes 30 times its text; a set of values of ours ten times that."""
_TRIES = 3


class OutOfProportionError(AssertionError):
    """An input that costs more than its size explains."""


@dataclass(frozen=True)
class Cost:
    """Of one input."""

    lines: int
    memory_bytes: int


def most_cpu_s(size: int) -> float:
    return _CPU_S + _CPU_S_PER_BYTE * size


def check_cpu(target: Target, data: bytes) -> bool:
    """Whether it is taken; for the innermost loop, so only CPU time is looked at.

    Raises: OutOfProportionError; whatever else is a fault.
    """
    for tries_left in reversed(range(_TRIES)):
        began_s = time.thread_time()
        taken = target.attempt(data)
        spent_s = time.thread_time() - began_s
        if spent_s <= most_cpu_s(len(data)):
            break
        if not tries_left:
            raise OutOfProportionError(f"{target.name}: {spent_s:.2f} s for {len(data)} bytes")
    return taken


def check_cost(target: Target, data: bytes) -> Cost:
    """The cost, counted. Raises: OutOfProportionError; whatever else is a fault."""
    found = Cost(lines_of(lambda: target.attempt(data)), _memory_bytes(target, data))
    if found.lines > _LINES + _LINES_PER_BYTE * len(data):
        raise OutOfProportionError(f"{target.name}: {found.lines} lines for {len(data)} bytes")
    if found.memory_bytes > _MEMORY_BYTES + _MEMORY_PER_BYTE * len(data):
        raise OutOfProportionError(
            f"{target.name}: {found.memory_bytes} bytes of memory for {len(data)} bytes"
        )
    return found


def lines_of(call: Callable[[], object]) -> int:
    """Lines of Python that the call runs."""
    lines = 0

    def trace(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before, collects = sys.gettrace(), gc.isenabled()
    gc.disable()  # others' functions may be called when it collects
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
        if collects:
            gc.enable()
    return lines


def _memory_bytes(target: Target, data: bytes) -> int:
    """The most that it held at once."""
    tracemalloc.start()
    try:
        target.attempt(data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
