"""Waiting for what tells nobody that it has happened: another process, the kernel, the disk.

There is one patience for all. It bounds nothing that the product promises; it only ends a test that
would never end. No test is slower for it, and none fails because the machine is busy.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 50.0
"""Shorter than the minute after which an agent looks at everything (`resync_s`), so that what a
notification should have brought is not put down to the timer."""
_RESTS = 10
"""So many times as long as an answer took: who waits leaves the processor to those who are waited
for."""


def wait_until(
    holds: Callable[[], T],
    what: str = "it never came to be so",
    *,
    patience_s: float = PATIENCE_S,
) -> T:
    """The first true value of `holds`. Raises: AssertionError with `what` and the last value."""
    end_s = time.monotonic() + patience_s
    while True:
        asked_s = time.monotonic()
        if value := holds():
            return value
        now_s = time.monotonic()
        assert now_s < end_s, f"{what} (last: {value!r})"
        time.sleep(min(max(_RESTS * (now_s - asked_s), 0.01), 0.2))


def pause(pid: int) -> None:
    """Stops a process by a signal; returns when none of its threads runs any more."""
    os.kill(pid, signal.SIGSTOP)
    tasks = Path(f"/proc/{pid}/task")
    # Source: proc_pid_stat(5): the state follows the program's name, which ends with the last ")".
    wait_until(
        lambda: all(
            (each / "stat").read_text().rpartition(")")[2].split()[0] == "T"
            for each in tasks.iterdir()
        )
    )


async def until_answered(ask: Callable[[], Awaitable[T]]) -> T:
    """The first true answer of `ask`. Raises: TimeoutError."""
    async with asyncio.timeout(PATIENCE_S):
        while not (answer := await ask()):
            await asyncio.sleep(0.02)
        return answer


async def until(holds: Callable[[], object]) -> None:
    """Lets the loop work until `holds`. Raises: TimeoutError."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.005)
