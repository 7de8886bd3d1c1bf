"""The userspace WireGuard of a node: which program, under which name, and its end.

Its sockets are in one folder of the machine, whatever the namespace, so the devices of all nodes of
all worlds need names of their own. It outlives the agent, but not its node.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
from collections.abc import Callable
from hashlib import blake2s
from pathlib import Path

import limpet
from limpet.kernel.wireguard_process import PROGRAM, SOCKET_FOLDER
from limpet.lab.command import LabError, run_command

_CREDENTIALS = struct.Struct("=iII")
_END_TIMEOUT_S = 10.0
_FETCH = Path(limpet.__file__).parents[2] / "scripts" / "fetch-wireguard"


def find_tunnel_program(tell: Callable[[str], None]) -> str:
    """In a checkout the one that it fetches; else, or if that fails, the one that PATH has.

    Where there is none, nodes go on without tunnels and say so.
    """
    if not _FETCH.exists():
        return PROGRAM
    try:
        return run_command(str(_FETCH)).strip()
    except LabError as error:
        tell(f"no userspace WireGuard was fetched, so it has to be in PATH: {error}")
        return PROGRAM


def tunnel_ifname(namespace: str) -> str:
    """Of a node's tunnel device: one name on the machine, the same whenever it is asked."""
    return f"limwg{blake2s(namespace.encode(), digest_size=5).hexdigest()}"


def tunnel_pid(namespace: str) -> int | None:
    """Of the process that serves a node's tunnel device; None: none does."""
    ifname = tunnel_ifname(namespace)
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(SOCKET_FOLDER / f"{ifname}.sock"))
            raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    except OSError:
        return None
    return int(_CREDENTIALS.unpack(raw)[0])


def end_tunnel(namespace: str) -> None:
    """As a loss of power does: the process is gone, and its socket. Raises: LabError."""
    pid = tunnel_pid(namespace)
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            _kill(pid, namespace)
    (SOCKET_FOLDER / f"{tunnel_ifname(namespace)}.sock").unlink(missing_ok=True)


def _kill(pid: int, namespace: str) -> None:
    descriptor = os.pidfd_open(pid)
    try:
        if tunnel_pid(namespace) != pid:
            return  # it ended meanwhile, and the number is another's
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        if not select.select([descriptor], [], [], _END_TIMEOUT_S)[0]:
            raise LabError(f"end the tunnel of {namespace}: process {pid} does not end")
    finally:
        os.close(descriptor)
