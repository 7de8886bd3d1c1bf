"""Programs beside the agent: started and ended by one at a time, in a session of their own, so that
they outlive it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from limpet.base.bounds.words import PROGRAM_LOG
from limpet.base.errors import KernelError

_START_TIMEOUT_S = 10.0
_STOP_TIMEOUT_S = 5.0
_LOOK_AGAIN_MS = 2
_CREDENTIALS = struct.Struct("=iII")
_LOG_SHOWN = 300
"""Characters, the last ones: enough for what it failed with."""


def peer_pid(connection: socket.socket) -> int:
    """The process that listens at the other end of a Unix socket, as it is numbered here; 0: it is
    in a PID namespace that is not seen from here. Source: unix(7). Raises: OSError."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(raw)[0])


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Nobody else starts or stops what runs there meanwhile. Raises: OSError."""
    # The folder itself is locked: a lock file would stay.
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def start_process(
    command: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    *,
    answers: Callable[[], bool],
    what: str,
    hint: str = "",
    begun: Callable[[int], None] | None = None,
) -> None:
    """Returns when the program answers; all that it says is in `log`, which begins anew.

    `environment` is all that it gets, and `begun` hears its pid at once. Raises: OSError;
    KernelError with what it said, and `hint`, when it ends or is silent.
    """
    with open(log, "wb") as fresh, open(log, "ab") as output:
        fresh.truncate()
        child = subprocess.Popen(
            command,
            env=dict(environment),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    descriptor = os.pidfd_open(child.pid)
    try:
        try:
            if begun is not None:
                begun(child.pid)  # while the number is its: it is not waited for yet
        finally:
            # Nobody else waits for it, and it would stay a zombie.
            threading.Thread(target=child.wait, name=f"reap {what}", daemon=True).start()
        trouble = _await_answer(descriptor, answers)
        if trouble is not None:
            said = log.read_text(encoding="utf-8", errors="replace")[-_LOG_SHOWN:]
            words = " ".join(said.split()) or "it said nothing"
            raise KernelError("start", what, trouble[0], f"{trouble[1]}: {words}{hint}")
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        raise
    finally:
        os.close(descriptor)


def _await_answer(descriptor: int, answers: Callable[[], bool]) -> tuple[int, str] | None:
    ended = select.poll()
    ended.register(descriptor, select.POLLIN)
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while not answers():
        if ended.poll(_LOOK_AGAIN_MS):
            return errno.ECHILD, "it ended at once"
        if time.monotonic() > deadline_s:
            return errno.ETIMEDOUT, f"no answer in {_START_TIMEOUT_S:g} s"
    return None


def end_process(
    pid_of: Callable[[], int | None],
    where: Path,
    signals: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGKILL),
    *,
    within_s: float = _STOP_TIMEOUT_S,
) -> None:
    """Ends the process that is told of at `where`; each signal has a time of its own to do it.

    `pid_of`: that process now; None: none does. Raises: KernelError when it is still there.
    """
    pid = pid_of()
    if pid is None:
        return
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if pid_of() != pid:
            return  # it ended meanwhile, and the number is another's
        ended = select.poll()
        ended.register(descriptor, select.POLLIN)
        for number in signals:
            signal.pidfd_send_signal(descriptor, number)
            if ended.poll(within_s * 1000):
                return
    except ProcessLookupError:
        return
    finally:
        os.close(descriptor)
    raise KernelError("stop", f"process {pid} ({where})", errno.ETIMEDOUT)


def cut_log(log: Path) -> None:
    """Empties a log that has grown for months; one that cannot be cut is no reason to have no
    tunnel."""
    try:
        if log.stat().st_size > PROGRAM_LOG.most:
            os.truncate(log, 0)
    except OSError:
        return


def find_program(name: str, path: str | None = None) -> str | None:
    """The first executable file of that name; one with a slash is looked for where it says.

    `shutil` knows it too, with libraries of compression in its train.
    `path`: folders with colons between; None: those of PATH.
    """
    folders = [""] if "/" in name else (path or os.environ.get("PATH", os.defpath)).split(":")
    for folder in folders:
        found = os.path.join(folder, name)
        if os.path.isfile(found) and os.access(found, os.X_OK):
            return found
    return None
