"""Calls that may hang, on threads that nobody waits for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


async def in_thread(call: Callable[[], T], name: str) -> T:
    """What `call` returns or raises, from a daemon thread of that name.

    The end of the process waits for a loop's own pool (`asyncio.to_thread`), not for this.
    """
    outcome: Future[T] = Future()

    def work() -> None:
        if not outcome.set_running_or_notify_cancel():
            return
        try:
            outcome.set_result(call())
        except Exception as error:  # noqa: BLE001 - raised where it is awaited
            outcome.set_exception(error)

    threading.Thread(target=work, name=name, daemon=True).start()
    return await asyncio.wrap_future(outcome)
