"""Periodic work goes on after an error that nobody has foreseen; the error is told once."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from limpet.base import faults
from limpet.base import timer as alarm
from limpet.base.timer import Timer
from tests.unit.cluster.test_membership import on_a_loop
from tests.waiting import PATIENCE_S


def failing() -> None:
    raise RuntimeError("nobody has foreseen this")


def note(part: str, work: Callable[[], None] = failing) -> None:
    with faults.noted(part):
        work()


@on_a_loop
async def test_work_that_fails_before_it_has_set_the_next_time_is_done_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(alarm, "AGAIN_S", 0.01)
    done = asyncio.Event()
    rings = 0

    def work() -> None:
        nonlocal rings
        rings += 1
        if rings < 4:
            failing()
        done.set()

    before = faults.counts["a part"]
    ringing = Timer("a part", work)
    ringing.set(time.monotonic())
    async with asyncio.timeout(PATIENCE_S):
        await done.wait()
    assert not ringing.is_set  # it has set nothing, and did not fail this time
    assert faults.counts["a part"] == before + 3


@on_a_loop
async def test_work_that_fails_each_time_and_wants_to_be_done_at_once_waits_first() -> None:
    rang = asyncio.Event()
    began_s: list[float] = []

    def work() -> None:
        began_s.append(time.monotonic())
        ringing.set(began_s[-1])
        rang.set()
        failing()

    ringing = Timer("a hasty part", work)
    ringing.set(time.monotonic())
    async with asyncio.timeout(PATIENCE_S):
        await rang.wait()
    assert len(began_s) == 1
    assert ringing._at_s is not None
    assert ringing._at_s >= began_s[0] + alarm.AGAIN_S
    ringing.stop()
    assert not ringing.is_set


@on_a_loop
async def test_work_that_stops_its_alarm_and_fails_then_is_done_no_more() -> None:
    rang = asyncio.Event()

    def work() -> None:
        ringing.stop()
        rang.set()
        failing()

    ringing = Timer("a part that ends", work)
    ringing.set(time.monotonic())
    async with asyncio.timeout(PATIENCE_S):
        await rang.wait()
    assert not ringing.is_set


@on_a_loop
async def test_the_last_time_that_was_set_counts_alone() -> None:
    order: list[str] = []
    done = asyncio.Event()
    first, second = Timer("one", lambda: order.append("one")), Timer("two", done.set)
    first.set(time.monotonic())
    first.set(math.inf)
    second.set(time.monotonic() + 1000)
    second.set_in(0.01)
    async with asyncio.timeout(PATIENCE_S):
        await done.wait()
    assert order == []


@given(st.integers(1, 300))
def test_an_error_is_told_with_its_traceback_once_and_then_ever_more_rarely(times: int) -> None:
    faults._kinds.clear()
    with capture_logs() as lines:
        for _ in range(times):
            note("a part")
    assert [bool(line.get("exc_info")) for line in lines[:1]] == [True]
    assert [line["times"] for line in lines[1:]] == [n for n in (10, 100) if n <= times]


def test_errors_of_other_parts_types_and_lines_are_told_each() -> None:
    def another_type() -> None:
        raise KeyError("a")

    def another_line() -> None:
        raise RuntimeError("nobody has foreseen this")

    faults._kinds.clear()
    with capture_logs() as lines:
        for _ in range(3):
            note("a part")
            note("another part")
            note("a part", another_type)
            note("a part", another_line)
    assert len(lines) == 4


def test_no_flood_of_kinds_takes_memory_or_fills_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "_MOST_KINDS", 10)
    faults._kinds.clear()
    before = faults.counts.total()
    with capture_logs() as lines:
        for number in range(50):
            note(f"part {number}")
    assert (len(lines), len(faults._kinds)) == (10, 10)
    assert faults.counts.total() == before + 50


@on_a_loop
async def test_what_fails_in_a_callback_or_a_task_that_nobody_awaits_is_noted() -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(faults.note_of_loop)
    before = faults.counts["event loop"]
    done = asyncio.Event()
    loop.call_soon(failing)
    loop.call_soon(done.set)
    await done.wait()
    assert faults.counts["event loop"] == before + 1
