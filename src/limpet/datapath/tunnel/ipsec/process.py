"""strongSwan's charon-systemd as a process of ours: one for the node's network namespace.

Its tunnel device lives as long as it does.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from limpet.base.errors import KernelError
from limpet.base.ownership import IPSEC_SOCKET
from limpet.base.process.programs import cut_log, find_program, locked, start_process
from limpet.datapath.tunnel.process import TunnelProcess

PROGRAM = "charon-systemd"
_FOLDERS = "/usr/sbin:/usr/libexec/strongswan:/usr/libexec/ipsec:/usr/lib/ipsec:/usr/lib/strongswan"
"""Where distributions have it, beside PATH."""
ANSWER_S = 2.0
"""It answers in milliseconds."""
_LONGEST_PATH = 107
"""Source: unix(7)."""


def _began(pid: int) -> str:
    """When the process did: with that, a number is its for ever. Raises: OSError."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    # Source: proc(5), starttime, the 22nd field; the second may hold anything, in brackets.
    return stat.rpartition(")")[2].split()[19]


def _path() -> str:
    return f"{os.environ.get('PATH', os.defpath)}:{_FOLDERS}"


class IpsecProcess(TunnelProcess):
    """The daemon with its files in one folder."""

    def __init__(self, folder: Path, *, program: str = PROGRAM, in_kernel: bool = False) -> None:
        """`in_kernel`: the kernel makes ESP, and the daemon has no device of its own."""
        super().__init__(folder / IPSEC_SOCKET, program=program, what="strongSwan")
        self.folder = folder
        self.in_kernel = in_kernel
        self._settings_path = folder / "strongswan.conf"
        self._pid_path = folder / "charon.pid"
        self._log = folder / "charon.log"
        self.silent_since_s: float | None = None
        """Since when it gives no answer, by the monotonic clock; None: it does, or does not run."""

    @property
    def missing(self) -> str:
        """Why it cannot be started, and what to do; empty: it can, as far as is seen."""
        if find_program(self._program, path=_path()) is None:
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

    def _remembered_pid(self) -> int | None:
        """Pid of the daemon started last, if it is still there: one that hangs takes a few
        connections only."""
        try:
            pid, began = self._pid_path.read_text(encoding="ascii").split()
            return int(pid) if _began(int(pid)) == began else None
        except (OSError, ValueError):
            return None

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

    def _start(self) -> None:
        if self.missing:
            raise KernelError("start", self._program, errno.ENOENT, self.missing)
        path = _path()
        program = find_program(self._program, path=path) or self._program
        start_process(
            [program],
            {"PATH": path, "STRONGSWAN_CONF": str(self._settings_path)},
            self._log,
            answers=lambda: self.pid is not None,
            what=self._program,
            begun=self._remember,
        )
        self.socket_path.chmod(0o600)  # strongSwan makes it its group's too, whatever the umask

    def _remember(self, pid: int) -> None:
        self._pid_path.write_text(f"{pid} {_began(pid)}\n", encoding="ascii")

    def _stop(self) -> None:
        super()._stop()
        self.silent_since_s = None

    def cut_log(self) -> None:
        """It says some lines for each SA, for months."""
        cut_log(self._log)
