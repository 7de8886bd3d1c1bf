"""SIGTERM and SIGINT: before there is an event loop, while one runs, and behind it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Iterator

STOPS = (signal.SIGTERM, signal.SIGINT)
_OTHERS = bytes({*range(256)} - {*STOPS})


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


@contextlib.contextmanager
def hears_stops(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> Iterator[None]:
    """The loop calls `stop` for each of them.

    Not by the loop's own way: it takes a signal back to what it does by default (Lib/asyncio/
    unix_events.py) while other threads, which have blocked nothing, can still be given one.
    """
    reader, writer = socket.socketpair()

    def heard() -> None:
        if reader.recv(4096).strip(_OTHERS):
            stop()

    with reader, writer:
        reader.setblocking(False)
        writer.setblocking(False)
        loop.add_reader(reader, heard)
        before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        former = {number: signal.signal(number, _do_nothing) for number in STOPS}
        try:
            yield
        finally:
            for number, handler in former.items():
                if signal.getsignal(number) is _do_nothing:  # they are not ignored
                    signal.signal(number, handler)
            signal.set_wakeup_fd(before)
            loop.remove_reader(reader)


def ignore() -> None:
    """The process ends already. It stays so while Python ends, which resets all other handlers
    (_PySignal_Fini in Modules/signalmodule.c)."""
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)


def _do_nothing(_number: int, _frame: object) -> None:
    """Python has written the number to the descriptor that wakes the loop."""


def _end(_number: int, _frame: object) -> None:
    # No exception: amid an import Python wraps it in one of its own (a RuntimeError, where a class
    # calls `__set_name__`). Nothing is open yet that a power cut would not leave as well.
    os._exit(0)
