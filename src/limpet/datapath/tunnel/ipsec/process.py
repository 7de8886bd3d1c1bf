"""strongSwan's charon-systemd as a process of ours: one for the node's network namespace.

Like the userspace WireGuard it has a session of its own and outlives the agent; whether it runs is
asked at its socket. Its tunnel device lives as long as it does.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from limpet.base.errors import KernelError
from limpet.base.ownership import IPSEC_SOCKET
from limpet.base.process import cut_log, end_process, locked, start_process
from limpet.linux.namespaces import namespace_id, own_namespace_id

PROGRAM = "charon-systemd"
_FOLDERS = "/usr/sbin:/usr/libexec/strongswan:/usr/libexec/ipsec:/usr/lib/ipsec:/usr/lib/strongswan"
"""Where distributions have it, beside PATH."""
ANSWER_S = 2.0
"""It answers in milliseconds."""
_TAKEN_S = 0.1
_LONGEST_PATH = 107
"""Source: unix(7)."""
_CREDENTIALS = struct.Struct("=iII")
GONE = (errno.ENOENT, errno.ECONNREFUSED, errno.ECONNRESET, errno.EPIPE)


def _began(pid: int) -> str:
    """When the process did: with that, a number is its for ever. Raises: OSError."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    # Source: proc(5), starttime, the 22nd field; the second may hold anything, in brackets.
    return stat.rpartition(")")[2].split()[19]


def _timeval(seconds: float) -> bytes:
    return struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))


def _path() -> str:
    return f"{os.environ.get('PATH', os.defpath)}:{_FOLDERS}"


class IpsecProcess:
    """The daemon with its files in one folder, in the network namespace of the calling thread."""

    def __init__(self, folder: Path, *, program: str = PROGRAM, in_kernel: bool = False) -> None:
        """`in_kernel`: the kernel makes ESP, and the daemon has no device of its own."""
        self.folder = folder
        self.in_kernel = in_kernel
        self._program = program
        self.silent_since_s: float | None = None
        """Since when it gives no answer, by the monotonic clock; None: it does, or does not run."""

    @property
    def socket_path(self) -> Path:
        return self.folder / IPSEC_SOCKET

    @property
    def _settings_path(self) -> Path:
        return self.folder / "strongswan.conf"

    @property
    def _log(self) -> Path:
        return self.folder / "charon.log"

    @property
    def _pid_path(self) -> Path:
        return self.folder / "charon.pid"

    @property
    def missing(self) -> str:
        """Why it cannot be started, and what to do; empty: it can, as far as is seen."""
        if shutil.which(self._program, path=_path()) is None:
            return (
                f"{self._program} is not there: install strongSwan 5.9 or newer, packages "
                "charon-systemd and libcharon-extra-plugins"
            )
        if not self.in_kernel and not os.path.exists("/dev/net/tun"):
            return f"{self._program} needs /dev/net/tun, which is missing: modprobe tun"
        return ""

    @property
    def settings(self) -> str:
        """What it was started with, last; empty: nothing is known of that."""
        try:
            return self._settings_path.read_text(encoding="utf-8")
        except (OSError, UnicodeError):
            return ""

    @property
    def pid(self) -> int | None:
        """Of the process that listens at the socket; None: none does.

        Raises: KernelError when it is one of another network namespace.
        """
        try:
            # Taken at once, whatever it does, unless too many wait.
            with self.connected(_TAKEN_S) as connection:
                raw = connection.getsockopt(
                    socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
                )
            pid = int(_CREDENTIALS.unpack(raw)[0])
        except OSError as error:
            if error.errno in GONE:
                return None
            found = self._started_last()
            if found is None:
                raise self.error("find", error) from error
            pid = found
        theirs = namespace_id(f"/proc/{pid}/ns/net")
        if theirs is not None and theirs != own_namespace_id():
            raise KernelError(
                "use",
                str(self.socket_path),
                errno.EADDRINUSE,
                f"process {pid} serves another network namespace; end it",
            )
        return pid

    def _started_last(self) -> int | None:
        """If it is still there: one that hangs takes no connections, after some."""
        try:
            pid, began = self._pid_path.read_text(encoding="ascii").split()
            return int(pid) if _began(int(pid)) == began else None
        except (OSError, ValueError):
            return None

    @contextmanager
    def connected(self, waits_s: float = ANSWER_S) -> Iterator[socket.socket]:
        """As `connect`, closed at the end. Raises: OSError."""
        connection = self.connect(waits_s)
        try:
            yield connection
        finally:
            connection.close()

    def connect(self, waits_s: float = ANSWER_S) -> socket.socket:
        """Whoever talks on it waits so long for an answer, no longer. Raises: OSError."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # Kept by the kernel: also while connecting, where many wait to be taken.
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                connection.setsockopt(socket.SOL_SOCKET, option, _timeval(waits_s))
            connection.connect(str(self.socket_path))
        except BaseException:
            connection.close()
            raise
        return connection

    def start(self, settings: str) -> None:
        """It runs with these settings; one that ran with others is ended. Raises: KernelError."""
        if len(str(self.socket_path)) > _LONGEST_PATH:
            hint = f"longer than {_LONGEST_PATH} characters: choose a shorter folder"
            raise KernelError("listen at", str(self.socket_path), errno.ENAMETOOLONG, hint)
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with locked(self.folder):
                if self.pid is not None:
                    if self.settings == settings:
                        return
                    self._stop()
                self._settings_path.write_text(settings, encoding="utf-8")
                self._start()
        except OSError as error:
            raise self.error("start", error) from error

    def stop(self) -> None:
        """It does not run, and its device is gone. Raises: KernelError."""
        try:
            with locked(self.folder):
                self._stop()
        except FileNotFoundError:
            return
        except OSError as error:
            raise self.error("stop", error) from error

    def _start(self) -> None:
        if self.missing:
            raise KernelError("start", self._program, errno.ENOENT, self.missing)
        path = _path()
        program = shutil.which(self._program, path=path) or self._program
        start_process(
            [program],
            {"PATH": path, "STRONGSWAN_CONF": str(self._settings_path)},
            self._log,
            answers=lambda: self.pid is not None,
            what=self._program,
            begun=self._remember,
        )

    def _remember(self, pid: int) -> None:
        self._pid_path.write_text(f"{pid} {_began(pid)}\n", encoding="ascii")

    def _stop(self) -> None:
        end_process(lambda: self.pid, self.socket_path)
        self.silent_since_s = None

    def cut_log(self) -> None:
        """It says some lines for each SA, for months."""
        cut_log(self._log)

    def error(self, operation: str, error: OSError) -> KernelError:
        what = f"strongSwan ({self.socket_path})"
        number = error.errno or errno.ETIMEDOUT
        if number in GONE:
            cause = "it does not run"
        elif isinstance(error, TimeoutError | BlockingIOError):
            cause = f"no answer in {ANSWER_S:g} s; if that lasts, it is ended and started anew"
        else:
            cause = error.strerror or str(error)
        return KernelError(operation, what, number, cause)
