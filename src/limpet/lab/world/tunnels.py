"""The programs of a node's tunnels: which, under which name, and their end.

WireGuard's sockets are in one folder of the machine, whatever the namespace, so the devices of all
nodes of all worlds need names of their own. They outlive the agent, but not its node.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from functools import partial
from hashlib import blake2s
from pathlib import Path

import limpet
from limpet.base.ownership import IPSEC_FOLDER
from limpet.base.process.programs import end_process, peer_pid
from limpet.datapath.tunnel.ipsec import process as ipsec_process
from limpet.datapath.tunnel.wireguard.process import PROGRAM, SOCKET_FOLDER
from limpet.lab.command import LabError, run_command

_SCRIPTS = Path(limpet.__file__).parents[2] / "scripts"


def find_tunnel_program(tell: Callable[[str], None]) -> str:
    """In a checkout the one that it fetches; else, or if that fails, the one that PATH has, if
    it has one."""
    return _find("fetch-wireguard", PROGRAM, "userspace WireGuard", tell)


def find_ipsec_program(tell: Callable[[str], None]) -> str:
    """The same for strongSwan's daemon."""
    return _find("fetch-strongswan", ipsec_process.PROGRAM, "strongSwan", tell)


def _find(script: str, program: str, what: str, tell: Callable[[str], None]) -> str:
    path = _SCRIPTS / script
    if not path.exists():
        return program
    try:
        return run_command(str(path)).strip()
    except LabError as error:
        tell(f"no {what} was fetched, so it has to be in PATH: {error}")
        return program


def tunnel_ifname(namespace: str) -> str:
    """Name of a node's tunnel device: one on the machine, the same whenever it is asked."""
    return f"limwg{blake2s(namespace.encode(), digest_size=5).hexdigest()}"


def tunnel_pid(namespace: str) -> int | None:
    """Pid of the process that serves a node's tunnel device; None: none does."""
    return _pid_at(_wireguard_socket(namespace))


def ipsec_pid(namespace: str) -> int | None:
    """Pid of a node's IKE daemon; None: none runs."""
    return _pid_at(_ipsec_socket(namespace))


def _wireguard_socket(namespace: str) -> Path:
    return SOCKET_FOLDER / f"{tunnel_ifname(namespace)}.sock"


def _ipsec_socket(namespace: str) -> Path:
    return run_folder(namespace) / IPSEC_FOLDER / "vici.sock"


def run_folder(namespace: str) -> Path:
    """Folder of a node's agent: on tmpfs, as /run is; some machines have theirs on disk."""
    return Path("/dev/shm") / namespace


def _pid_at(path: Path) -> int | None:
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
            return peer_pid(connection)
    except OSError:
        return None


def end_tunnel(namespace: str) -> None:
    """Ends a node's tunnels as a loss of power does: processes and sockets. Raises: LimpetError."""
    for path in (_wireguard_socket(namespace), _ipsec_socket(namespace)):
        end_process(partial(_pid_at, path), path, (signal.SIGKILL,))
        path.unlink(missing_ok=True)
