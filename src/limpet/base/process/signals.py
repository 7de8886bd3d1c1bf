"""SIGTERM and SIGINT while there is no event loop that hears them."""

from __future__ import annotations

import os
import signal

STOPS = (signal.SIGTERM, signal.SIGINT)


def end_at_once() -> None:
    """From here on they end the process with code 0, also one that was held back."""
    for number in STOPS:
        signal.signal(number, _end)
    let_in()


def let_in() -> None:
    """What was held back comes now."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)


def hold_back() -> None:
    """They wait until they are let in, also by the program that comes in this process's place:
    before that they would kill it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)


def _end(_number: int, _frame: object) -> None:
    # No exception: amid an import Python wraps it in one of its own (a RuntimeError, where a class
    # calls `__set_name__`). Nothing is open yet that a power cut would not leave as well.
    os._exit(0)
