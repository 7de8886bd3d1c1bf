"""Processes that outlive the command that started them: agents and the controller of the lab."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from limpet.base.process.programs import end_process
from limpet.lab.command import LabError
from limpet.lab.files import write_text
from limpet.lab.launch import Process, launcher

_READY_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 60.0
_ASK_AGAIN_S = 0.05
_LOG_SHOWN = 2000


class Daemon:
    """A process in a session of its own; a file holds its pid and when it started.

    Whoever reads that file later never takes another process with the same pid for it.
    """

    def __init__(self, what: str, pid_file: Path, log: Path) -> None:
        """`what`: for a person, such as `agent of crane-1`."""
        self.what = what
        self.log = log
        self.ended: tuple[int, int] | None = None
        """Pid and exit code of the last that was started here and has been waited for."""
        self._pid_file = pid_file
        self._child: Process | None = None

    def start(
        self,
        command: Sequence[str],
        *,
        notify: Path,
        environment: Mapping[str, str] | None = None,
        inherit: Sequence[int] = (),
        within_s: float = _READY_TIMEOUT_S,
    ) -> None:
        """Returns when the process says that it is ready. Raises: LabError with its log.

        `notify`: where the socket is made that it says so to, as a service manager's.
        `inherit`: descriptors that it gets.
        """
        notify.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        notify.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as readiness:
            readiness.bind(str(notify))
            told = {**(environment or {}), "NOTIFY_SOCKET": str(notify)}
            if not _becomes_ready(readiness, self._spawn(command, told, inherit), within_s):
                self.kill()
                raise LabError(f"start {self.what}: {self.tail()}")

    def start_and_ask(
        self,
        command: Sequence[str],
        answers: Callable[[], bool],
        *,
        within_s: float,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """The same for a program that tells nobody: `answers` asks it until it does."""
        descriptor = os.pidfd_open(self._spawn(command, environment or {}))
        deadline_s = time.monotonic() + within_s
        try:
            while not answers():
                if select.select([descriptor], [], [], _ASK_AGAIN_S)[0]:
                    raise LabError(f"start {self.what}: it ended: {self.tail()}")
                if time.monotonic() > deadline_s:
                    self.kill()
                    raise LabError(f"start {self.what}: no answer in {within_s:g} s: {self.tail()}")
        finally:
            os.close(descriptor)

    def _spawn(
        self, command: Sequence[str], environment: Mapping[str, str], inherit: Sequence[int] = ()
    ) -> int:
        """Its pid."""
        with open(self.log, "ab") as log:
            self._child = launcher().start(
                command,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=inherit,
            )
        pid = self._child.pid
        write_text(self._pid_file, f"{pid} {_started_at(pid)}\n")
        return pid

    def tail(self) -> str:
        """The end of its log."""
        text = self.log.read_text(encoding="utf-8", errors="replace")
        return text[-_LOG_SHOWN:] or "it said nothing"

    @property
    def pid(self) -> int | None:
        """None: it does not run."""
        try:
            pid, started_at = map(int, self._pid_file.read_text(encoding="ascii").split())
        except (FileNotFoundError, ValueError):
            return None
        return pid if _started_at(pid) == started_at else None

    def stop(
        self, number: signal.Signals = signal.SIGTERM, *, within_s: float = _STOP_TIMEOUT_S
    ) -> None:
        """Ends it and waits until it has ended. Raises: KernelError when it does not end."""
        end_process(lambda: self.pid, self._pid_file, (number,), within_s=within_s)
        if self._child is not None:
            self.ended = self._child.pid, self._child.wait(within_s)
            self._child = None
        self._pid_file.unlink(missing_ok=True)

    def kill(self) -> None:
        """Ends it whatever it does. Raises: KernelError."""
        self.stop(signal.SIGKILL)


def _becomes_ready(readiness: socket.socket, pid: int, within_s: float) -> bool:
    descriptor = os.pidfd_open(pid)
    deadline_s = time.monotonic() + within_s
    try:
        while (left_s := deadline_s - time.monotonic()) > 0:
            found = select.select([readiness.fileno(), descriptor], [], [], left_s)[0]
            if readiness.fileno() in found:
                if readiness.recv(100).startswith(b"READY=1"):
                    return True
            elif found:
                return False
        return False
    finally:
        os.close(descriptor)


def _started_at(pid: int) -> int | None:
    """In clock ticks after the boot; None: there is no such process, or it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name may hold blanks and brackets; the fields after it don't.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] == "Z" else int(fields[19])
