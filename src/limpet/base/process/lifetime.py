"""A process of ours from its start to its end: limits, lock, readiness, signals."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import fcntl
import os
import resource
import socket
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import structlog

from limpet.base.disk import cause
from limpet.base.errors import StorageError
from limpet.base.process.secrecy import dump_nothing
from limpet.base.process.signals import hears_stops, hold_back, ignore, let_in

_log = structlog.get_logger("process")
T = TypeVar("T")

_OPEN_FILES = 65536
"""One for each connection."""
_END_S = 10.0


def allow_many_files() -> None:
    """As many descriptors as the machine lets us have, up to 65536."""
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most_files, _OPEN_FILES), most_files))


@contextlib.contextmanager
def only_one(path: Path, *, folder_mode: int, taken: str, hint: str) -> Iterator[None]:
    """One process holds the lock file `path` at a time; `taken` and `hint` are for the second.

    Raises: StorageError.
    """
    with contextlib.ExitStack() as held:
        try:
            path.parent.mkdir(mode=folder_mode, parents=True, exist_ok=True)
            file = held.enter_context(open(path, "w", encoding="utf-8"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StorageError("lock", str(path), taken, hint=hint) from error
        except OSError as error:
            raise StorageError("lock", str(path), cause(error)) from error
        yield


def notify_service_manager(state: str) -> None:
    """Source: sd_notify(3)."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(state.encode(), "\0" + address[1:] if address[0] == "@" else address)


def run(main: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
    """What `main` returns; None: SIGTERM or SIGINT came, whatever it was at.

    It is cancelled then, and the process has 10 s to end. What hangs (a disk, another program) must
    not keep its successor out: a process that is still there says on stderr where each of its
    threads stands, and ends with code 1.
    """
    hold_back()  # half a loop cannot be put away
    dump_nothing()
    faulthandler.enable()  # a crash in a library of C says on stderr where, since it dumps no core
    return asyncio.run(_until_stopped(main))


async def _until_stopped(main: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
    working = asyncio.current_task()
    assert working is not None
    told = False

    def stop() -> None:
        nonlocal told
        if told:
            return
        told = True
        if structlog.is_configured():  # else its output is of another kind than a log
            _log.info("stopping")
        faulthandler.dump_traceback_later(_END_S, exit=True)
        working.cancel()

    with hears_stops(asyncio.get_running_loop(), stop):
        let_in()
        try:
            returned = await main()
        except asyncio.CancelledError:
            if not told:
                raise
        if not told:
            return returned
        ignore()
    return None


async def for_ever() -> None:
    """Until the process is told to end."""
    await asyncio.get_running_loop().create_future()
