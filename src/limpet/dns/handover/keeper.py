"""What systemd does for `limpet dns serve`, where no service manager does: keeping its sockets.

A small process that starts the one that answers, holds the sockets which that one stores with it
(`FDSTORE=1` of sd_notify(3)), and starts the next one with them when it dies: what arrives
meanwhile waits in the sockets. It imports nothing that could fail.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence

from limpet.base.process.signals import hold_back, let_in

_FIRST_FD = 3
_MOST_FDS = 64
_AGAIN_S = (0.0, 0.0, 0.2, 1.0, 5.0)
"""Before it is started once more, by how often it has ended in short succession."""
_LIVED_S = 30.0


def keep(command: Sequence[str]) -> int:
    """Runs the command, again and again, until it ends with code 0, or never gets ready, or we are
    told to stop (SIGTERM, SIGINT). SIGHUP has it end and start anew. Its exit code."""
    return _Keeper(command).run()


class _Keeper:
    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self._fds: list[int] = []
        self._stopped = False
        self._was_ready = False
        self._restart_asked = False
        self._notified = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notified.bind("")  # the kernel makes a name of the abstract kind
        name = self._notified.getsockname()
        self._address = "@" + name[1:].decode()
        self._wake, wakes = socket.socketpair()
        self._wake.setblocking(False)
        wakes.setblocking(False)
        self._wakes = wakes
        self._pid = 0

    def run(self) -> int:
        signal.set_wakeup_fd(self._wakes.fileno())
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        signal.signal(signal.SIGHUP, self._ask_restart)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        ended_early = 0
        while True:
            started_s = time.monotonic()
            self._pid = self._start()
            if self._stopped or self._restart_asked:  # while it was started
                self._end()
            code = self._await_end()
            if self._stopped or not self._was_ready or (code == 0 and not self._restart_asked):
                return code
            if self._restart_asked:
                self._restart_asked = False
                continue
            lived = time.monotonic() - started_s > _LIVED_S
            ended_early = 0 if lived else ended_early + 1
            print(f"limpet dns: ended with {code}, started again", file=sys.stderr)  # noqa: T201
            time.sleep(_AGAIN_S[min(ended_early, len(_AGAIN_S) - 1)])
            if self._stopped:
                return code

    def _stop(self, _number: int, _frame: object) -> None:
        self._stopped = True
        self._end()

    def _ask_restart(self, _number: int, _frame: object) -> None:
        self._restart_asked = True
        self._end()

    def _end(self) -> None:
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGTERM)

    def _start(self) -> int:
        environment = {**os.environ, "NOTIFY_SOCKET": self._address}
        hold_back()  # what comes before the new program hears it would kill that, or be lost here
        pid = os.fork()
        if pid:
            let_in()
            return pid
        try:
            # First out of the way, since the places where they have to go may be those of others.
            for number, fd in enumerate([_elsewhere(fd) for fd in self._fds]):
                os.dup2(fd, _FIRST_FD + number, inheritable=True)
            environment["LISTEN_PID"] = str(os.getpid())
            environment["LISTEN_FDS"] = str(len(self._fds))
            os.execve(self._command[0], self._command, environment)
        finally:
            os._exit(127)

    def _await_end(self) -> int:
        while True:
            ended, status = os.waitpid(self._pid, os.WNOHANG)
            self._receive()
            if ended:
                self._pid = 0
                return os.waitstatus_to_exitcode(status)
            select.select([self._notified, self._wake], [], [])
            with contextlib.suppress(BlockingIOError):
                self._wake.recv(4096)

    def _receive(self) -> None:
        """Everything that the process has said until now."""
        size = array.array("i", [0] * _MOST_FDS)
        room = socket.CMSG_SPACE(len(size) * size.itemsize)
        while True:
            try:
                said, controls, _, _ = self._notified.recvmsg(4096, room, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            fds = array.array("i")
            for level, kind, data in controls:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
            lines = said.decode(errors="replace").splitlines()
            self._was_ready = self._was_ready or "READY=1" in lines
            if "FDSTOREREMOVE=1" in lines:
                for fd in self._fds:
                    os.close(fd)
                self._fds = []
            if "FDSTORE=1" in lines:
                self._fds += fds
            else:
                for fd in fds:
                    os.close(fd)


def _elsewhere(fd: int) -> int:
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_FD + _MOST_FDS)
