"""Named network namespaces of this machine: the one way in which lab, tests and bench make them.

As `ip netns` has them, without its processes: worlds and tests make them by the thousand.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from limpet.base.errors import KernelError
from limpet.lab.command import LabError, run_command
from limpet.linux.namespaces import Namespace
from limpet.linux.packets.echo import answering

FOLDER = Path("/run/netns")
"""Where `ip netns` has them, each a file of its name."""
_OWN = "/proc/thread-self/ns/net"
# Source: linux/sched.h, linux/mount.h, linux/sockios.h, linux/if.h.
_CLONE_NEWNET, _MS_BIND, _MNT_DETACH = 0x40000000, 0x1000, 2
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1

_libc = ctypes.CDLL(None, use_errno=True)


def make_namespace(name: str) -> None:
    """Makes a namespace, with its loopback device up. Raises: LabError."""
    if not _is_mount():
        # The first of the machine: `ip` makes the folder a mount that mount namespaces share.
        run_command("ip", "netns", "add", name)
        run_command("ip", "link", "set", "lo", "up", netns=name)
        return
    path = FOLDER / name
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0))
        try:
            with _in_a_fresh_one():
                _set_loopback_up()
                _call("mount", _OWN.encode(), bytes(path), b"none", _MS_BIND, None)
        except OSError:
            path.unlink()
            raise
    except OSError as error:
        raise LabError(f"make network namespace {name}: {error.strerror}") from error


def _is_mount() -> bool:
    """Whether FOLDER is a mount of itself, which has the same device as the folder above it."""
    lines = Path("/proc/thread-self/mountinfo").read_text(encoding="utf-8").splitlines()
    return any(line.split()[4] == str(FOLDER) for line in lines)


@contextlib.contextmanager
def _in_a_fresh_one() -> Iterator[None]:
    """The calling thread is in a new network namespace within the block. Raises: OSError."""
    before = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _call("unshare", _CLONE_NEWNET)
        try:
            yield
        finally:
            _call("setns", before, _CLONE_NEWNET)
    finally:
        os.close(before)


def _set_loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as anything:
        fcntl.ioctl(anything, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))


def delete_namespace(name: str) -> None:
    """What lives in it goes with it; does nothing when it has gone."""
    path = FOLDER / name
    with contextlib.suppress(OSError):
        _call("umount2", bytes(path), _MNT_DETACH)
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def answered_pings(name: str, addresses: Sequence[str], within_s: float) -> set[str]:
    """Addresses that answer pings from the namespace in time. Raises: LabError: it is gone."""
    try:
        with Namespace(str(FOLDER / name)) as namespace, namespace.entered():
            return answering(addresses, within_s)
    except KernelError as error:
        raise LabError(f"ping from network namespace {name}: {error}") from error


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
