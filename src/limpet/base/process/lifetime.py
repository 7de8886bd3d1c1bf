"""A process of ours from its start to its end: limits, lock, readiness, signals."""

from __future__ import annotations

import array
import asyncio
import contextlib
import faulthandler
import fcntl
import os
import resource
import socket
from collections.abc import Callable, Coroutine, Iterator, Sequence
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
_FIRST_STORED = 3
"""Number of the first descriptor that a service manager gives. Source: sd_listen_fds(3)."""


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


def stored_descriptors() -> list[tuple[str, int]]:
    """Name and number of each descriptor that the service manager has kept for us; they are ours
    from now on. Source: sd_listen_fds(3)."""
    is_for_us = os.environ.pop("LISTEN_PID", "") == str(os.getpid())
    count = int(os.environ.pop("LISTEN_FDS", "0") or 0)
    names = os.environ.pop("LISTEN_FDNAMES", "").split(":")
    if not is_for_us:
        return []
    fds = range(_FIRST_STORED, _FIRST_STORED + count)
    for fd in fds:
        os.set_inheritable(fd, False)
    return list(zip([*names, *[""] * count][:count], fds, strict=True))


def store_descriptors(name: str, fds: Sequence[int]) -> None:
    """The service manager keeps these under that name, if any, and none that it kept so before.

    Source: sd_notify(3).
    """
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    target = "\0" + address[1:] if address[0] == "@" else address
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(f"FDSTOREREMOVE=1\nFDNAME={name}".encode(), target)
        if not fds:
            return
        sender.connect(target)
        # Not polled: an error that waits at a socket would have it thrown away.
        said = f"FDSTORE=1\nFDPOLL=0\nFDNAME={name}".encode()
        sender.sendmsg([said], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])


class KeptDescriptors:
    """Descriptors that outlive this process, by name, where a service manager keeps them: what the
    kernel ties to an open file goes on while nobody runs."""

    def __init__(self) -> None:
        self._fds: dict[str, int] = {}

    def begin(self) -> None:
        """Takes what an earlier process has left. Once, before others are begun."""
        self._fds.update(stored_descriptors())

    def find(self, name: str) -> int | None:
        """It stays ours: who uses it takes a copy."""
        return self._fds.get(name)

    def keep(self, name: str, fd: int) -> None:
        """From now on, if there is a service manager that can; `fd` is copied."""
        if os.environ.get("NOTIFY_SOCKET") and name not in self._fds:
            self._fds[name] = os.dup(fd)
            store_descriptors(name, [fd])

    def give_up(self, name: str) -> None:
        """It is kept no longer, if it was."""
        fd = self._fds.pop(name, None)
        if fd is not None:
            store_descriptors(name, [])
            os.close(fd)

    def hand_on(self) -> None:
        """To what this process executes next, which begins as after a start by the manager."""
        first = _FIRST_STORED + len(self._fds)
        copies = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, first) for fd in self._fds.values()]
        for number, fd in enumerate(copies):
            os.dup2(fd, _FIRST_STORED + number, inheritable=True)
        os.environ["LISTEN_PID"], os.environ["LISTEN_FDS"] = str(os.getpid()), str(len(copies))
        os.environ["LISTEN_FDNAMES"] = ":".join(self._fds)


KEPT_DESCRIPTORS = KeptDescriptors()
"""Those of this process."""


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
