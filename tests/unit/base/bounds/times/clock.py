"""An event loop on which no time passes but what a probe lets pass."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from tests.waiting import PATIENCE_S

_TURNS = 50
"""More than a task, its timeout and its end take one after the other."""


class StoppedClock(asyncio.SelectorEventLoop):
    """Timers are due when `pass_by` says so. Sockets are the kernel's: waiting for them is real."""

    now_s = 1000.0

    def time(self) -> float:
        return self.now_s

    async def pass_by(self, seconds: float) -> None:
        """So much later; what was due until then has been done."""
        self.now_s += seconds
        for _ in range(_TURNS):
            await asyncio.sleep(0)

    async def until(self, holds: Callable[[], object]) -> None:
        """Work goes on until it holds. Raises: AssertionError after the patience of all tests."""
        end_s = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < end_s
            await asyncio.sleep(0)


def on_stopped_clock(body: Callable[[StoppedClock], Coroutine[Any, Any, bool]]) -> bool:
    loop = StoppedClock()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(body(loop))
