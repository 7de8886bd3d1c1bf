"""The userspace WireGuard: wireguard-go, started where the kernel has no WireGuard.

It ends when its device is deleted or its socket removed, and its device goes with it: the kernel's
notification of that wakes a round, which starts it again.
"""

from __future__ import annotations

import errno
import math
import os
import re
import subprocess
import time
from pathlib import Path

from limpet.base.errors import KernelError
from limpet.base.process.programs import cut_log, find_program, locked, start_process
from limpet.datapath.tunnel.process import TunnelProcess
from limpet.datapath.tunnel.program import Program
from limpet.datapath.tunnel.wireguard.uapi_codec import END, GET

SOCKET_FOLDER = Path("/var/run/wireguard")
"""Fixed in the program: names of devices are unique in a mount namespace."""
PROGRAM = "wireguard-go"
WIREGUARD_LOG = "wireguard.log"
"""Name of the file for what the program says, in the agent's folder of live things."""
SLOW_BEFORE = (0, 0, 20230223)
"""Versions before it pass a sixth of the traffic: they do not use the offloads of a tun device."""
_INSTALL = "install the package wireguard-go, on Debian 12 the one of its backports"
_VERSION_TIMEOUT_S = 2.0
_ANSWER_TIMEOUT_S = 3.0
"""For each part of an answer: whoever asks is the agent itself, which must not stand still."""
_SET_TIMEOUT_S = 10.0
"""A thousand peers at once take their time."""
_REST_S = 5.0
_HANGS_AFTER = 2


class WireguardProcess(TunnelProcess, Program):
    """wireguard-go for one device, in the network namespace of the calling thread."""

    def __init__(self, ifname: str, *, log: Path, program: str = PROGRAM) -> None:
        """`log`: what the program says; cut when it grows."""
        what = f"the userspace WireGuard of {ifname}"
        super().__init__(SOCKET_FOLDER / f"{ifname}.sock", program=program, what=what)
        self.ifname = ifname
        self._log = log
        self._silences = 0
        """Answers that were waited for in vain, since the last that came."""
        self._rests_until_s = -math.inf

    @property
    def is_in_doubt(self) -> bool:
        return self._silences > 0 and time.monotonic() >= self._rests_until_s

    @property
    def problem(self) -> str:
        return str(self.error("ask", TimeoutError())) if self._silences else ""

    @property
    def hangs(self) -> bool:
        return self._silences >= _HANGS_AFTER

    @property
    def missing(self) -> str:
        if find_program(self._program) is None:
            return f"this kernel has no WireGuard, and {self._program} is not there: {_INSTALL}"
        if not os.path.exists("/dev/net/tun"):
            return f"{self._program} needs /dev/net/tun, which is missing: modprobe tun"
        return ""

    def read_version(self) -> str:
        """Program version, as 0.0.20230223; empty if it does not say. Blocks for milliseconds."""
        try:
            done = subprocess.run(
                [self._program, "--version"],
                env=_environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_VERSION_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.SubprocessError):
            return ""
        found = re.search(r"\bv?(\d+\.\d+\.\d+)", done.stdout)
        return found[1] if found is not None else ""

    def ask(self, question: bytes) -> bytes:
        """The answer to a question of `uapi_codec`. One that has given none is not asked
        again for some seconds.

        Raises: KernelError (ENOENT, ECONNREFUSED: it does not run).
        """
        if time.monotonic() < self._rests_until_s:
            raise self.error("ask", TimeoutError())
        try:
            with self.connect(
                _ANSWER_TIMEOUT_S if question == GET else _SET_TIMEOUT_S
            ) as connection:
                connection.sendall(question)
                answer = bytearray()
                while not answer.endswith(END):
                    part = connection.recv(1 << 18)
                    if not part:
                        raise ConnectionResetError(errno.ECONNRESET, "it hung up")
                    answer += part
        except (TimeoutError, BlockingIOError) as error:
            self._silences += 1
            self._rests_until_s = time.monotonic() + _REST_S
            raise self.error("ask", error) from error
        except OSError as error:
            raise self.error("ask", error) from error
        self._silences = 0
        cut_log(self._log)  # a line for each handshake that could not be sent, for months
        return bytes(answer)

    def start(self) -> None:
        try:
            SOCKET_FOLDER.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._log.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            with locked(SOCKET_FOLDER):
                if self.pid is None:
                    self._start()
        except OSError as error:
            raise self.error("start", error) from error

    def await_others(self) -> None:
        """Returns when no other agent is just starting or stopping one. Raises: KernelError."""
        try:
            with locked(SOCKET_FOLDER):
                pass
        except FileNotFoundError:
            return  # nobody ever has
        except OSError as error:
            raise self.error("wait for", error) from error

    def _start(self) -> None:
        # The variable keeps it from talking of the kernel's own WireGuard, and from forking.
        environment = {"LOG_LEVEL": "error", "WG_PROCESS_FOREGROUND": "1"}
        what = f"{self._program} for {self.ifname}"
        hint = "" if os.path.exists("/dev/net/tun") else "; /dev/net/tun is missing: modprobe tun"
        try:
            start_process(
                [self._program, "-f", self.ifname],
                _environment() | environment,
                self._log,
                answers=lambda: self.pid is not None,
                what=what,
                hint=hint,
            )
        except FileNotFoundError as error:
            cause = f"this kernel has no WireGuard, and the userspace one is not there: {_INSTALL}"
            raise KernelError("start", what, errno.ENOENT, cause) from error

    def _stop(self) -> None:
        super()._stop()
        self._silences, self._rests_until_s = 0, -math.inf


def _environment() -> dict[str, str]:
    """Nothing of ours is handed on: what preloads a library into the agent is not meant for it."""
    return {"PATH": os.environ.get("PATH", os.defpath)}
