"""What systemd does for a service, where none runs: hears of readiness, and keeps descriptors.

Source: sd_notify(3), sd_listen_fds(3), systemd.service(5) (FileDescriptorStoreMax).
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

from tests.waiting import PATIENCE_S, wait_until

_MOST = 16
_STARTED = """
export LISTEN_PID=$$ LISTEN_FDS=$1 LISTEN_FDNAMES=$2
shift 2
exec "$@"
"""
_FIRST = 3


class ServiceManager:
    """Within the block it starts one service after the other, and keeps what they store."""

    def __init__(self, folder: Path) -> None:
        self.stored: list[tuple[str, int]] = []
        self.process: subprocess.Popen[bytes] | None = None
        self._path = folder / "manager.sock"
        self._log = folder / "service.log"
        self._ready = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self._path))
        self._thread = threading.Thread(target=self._hear)

    def __enter__(self) -> ServiceManager:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.stop(signal.SIGKILL)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ending:
            ending.sendto(b"END=1", str(self._path))
        self._thread.join()
        self._socket.close()
        self.forget()

    def forget(self) -> None:
        """As when a service is stopped, and not started again."""
        for _, fd in self.stored:
            os.close(fd)
        self.stored.clear()

    def start(self, command: Sequence[str]) -> None:
        """Returns when the service is ready, after a first start and after each that follows."""
        before = self._ready
        names = ":".join(name for name, _ in self.stored)
        words = ["sh", "-c", _STARTED, "sh", str(len(self.stored)), names, *command]
        fds = [fd for _, fd in self.stored]
        with open(self._log, "ab") as log:
            self.process = subprocess.Popen(
                ["bash", "-c", self._moved(fds), "bash", *words],
                pass_fds=fds,
                env={**os.environ, "NOTIFY_SOCKET": str(self._path)},
                stdout=log,
                stderr=log,
            )
        wait_until(lambda: self._ready > before, f"it is ready: {self._log}")

    @staticmethod
    def _moved(fds: Sequence[int]) -> str:
        """To the numbers at which a service looks for them; dash knows those of one digit alone."""
        assert all(fd >= _FIRST + _MOST for fd in fds)
        moves = [f"exec {_FIRST + n}<&{fd} {fd}<&-" for n, fd in enumerate(fds)]
        return "\n".join([*moves, 'exec "$@"'])

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(PATIENCE_S)
        self.process = None

    def await_another(self) -> None:
        """The service has begun anew by itself."""
        before = self._ready
        wait_until(lambda: self._ready > before, "it has begun anew")

    def _hear(self) -> None:
        while True:
            said, fds, _, _ = socket.recv_fds(self._socket, 4096, _MOST)
            lines = dict(each.partition("=")[::2] for each in said.decode().splitlines())
            if "END" in lines:
                return
            self._ready += "READY" in lines
            name = lines.get("FDNAME", "")
            if "FDSTOREREMOVE" in lines:
                for each in [each for each in self.stored if each[0] == name]:
                    self.stored.remove(each)
                    os.close(each[1])
            for fd in fds:
                if "FDSTORE" in lines:
                    self.stored.append((name, _above(fd)))


def _above(fd: int) -> int:
    """The same by a number that no service's has."""
    found = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST + _MOST)
    os.close(fd)
    return found
