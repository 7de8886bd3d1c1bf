"""What the programs that make tunnels have in common: each answers at a Unix socket of its own.

They run in sessions of their own and outlive the agent, so that a new agent finds every tunnel as
it was. Whether one runs is asked at its socket, and nowhere written down.
"""

from __future__ import annotations

import errno
import socket
import struct
from pathlib import Path

from limpet.base.errors import KernelError
from limpet.base.process.programs import end_process, locked, peer_pid
from limpet.linux.namespaces import namespace_id, own_namespace_id

GONE = (errno.ENOENT, errno.ECONNREFUSED, errno.ECONNRESET, errno.EPIPE)
"""What connecting or talking to a program that has ended fails with."""
_CONNECT_S = 0.1
"""The kernel connects at once, whatever the program does, unless too many wait."""


class TunnelProcess:
    """In the network namespace of the calling thread."""

    def __init__(self, socket_path: Path, *, program: str, what: str) -> None:
        """`what`: the program's name in errors."""
        self.socket_path = socket_path
        self._program = program
        self._what = what

    @property
    def pid(self) -> int | None:
        """Pid of the process that listens at the socket; None: none does.

        Raises: KernelError when it is one of another network namespace.
        """
        try:
            with self.connect(_CONNECT_S) as connection:
                pid = peer_pid(connection)
        except OSError as error:
            if error.errno in GONE:
                return None
            remembered = self._remembered_pid()
            if remembered is None:
                raise self.error("find", error) from error
            pid = remembered
        theirs = namespace_id(f"/proc/{pid}/ns/net")
        if theirs is not None and theirs != own_namespace_id():
            raise KernelError(
                "use",
                str(self.socket_path),
                errno.EADDRINUSE,
                f"process {pid} serves it in another network namespace; "
                "end it, or give one of the two another name",
            )
        return pid

    def _remembered_pid(self) -> int | None:
        """Pid of a process that takes no connection; None: not known."""
        return None

    def connect(self, waits_s: float) -> socket.socket:
        """A connection that waits `waits_s` for each part of an answer, then fails with EAGAIN.

        Raises: OSError.
        """
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # Kept by the kernel: also while connecting, where many wait to be taken.
            timeval = struct.pack("@ll", int(waits_s), int(waits_s % 1 * 1e6))
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                connection.setsockopt(socket.SOL_SOCKET, option, timeval)
            connection.connect(str(self.socket_path))
        except BaseException:
            connection.close()
            raise
        return connection

    def stop(self) -> None:
        """Returns when it has ended and its device is gone. Raises: KernelError."""
        try:
            with locked(self.socket_path.parent):
                self._stop()
        except FileNotFoundError:
            return  # there is not even the folder of the socket
        except OSError as error:
            raise self.error("stop", error) from error

    def _stop(self) -> None:
        end_process(lambda: self.pid, self.socket_path)

    def error(self, operation: str, error: OSError) -> KernelError:
        number = error.errno or errno.ETIMEDOUT
        if number in GONE:
            cause = "it does not run"
        elif isinstance(error, TimeoutError | BlockingIOError):
            cause = "no answer for seconds; if that lasts, it is ended and started again"
        else:
            cause = error.strerror or str(error)
        return KernelError(operation, f"{self._what} ({self.socket_path})", number, cause)
