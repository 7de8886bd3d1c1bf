"""Runs a command under a kernel that lacks something: what it asks for is refused as by a kernel
that was built without it, by a seccomp filter that the command and its children inherit.

`python tests/lab/diagnosis/lacking_kernel.py LACK COMMAND...`
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import socket
import struct
import sys

LACKS = {
    "packet": (socket.AF_PACKET, None, errno.EAFNOSUPPORT),
    "netfilter": (socket.AF_NETLINK, 12, errno.EPROTONOSUPPORT),
}
"""Family and protocol of a socket, and what a kernel without CONFIG_PACKET, or without netfilter's
netlink, says to who opens one (socket(2), netlink(7))."""
_MACHINES = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}
"""AUDIT_ARCH_… and the number of socket(2), by what `uname -m` says."""
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000
_PR_SET_SECCOMP, _MODE_FILTER, _PR_SET_NO_NEW_PRIVS = 22, 2, 38


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def _filter(family: int, protocol: int | None, refusal: int) -> bytes:
    """Instructions of classic BPF over `struct seccomp_data` (linux/seccomp.h)."""
    arch, number = _MACHINES[platform.machine()]
    wanted = [(4, arch), (0, number), (16, family)]
    if protocol is not None:
        wanted.append((32, protocol))
    steps = []
    for at, (offset, value) in enumerate(wanted):
        to_allow = 2 * (len(wanted) - at - 1) + 1
        steps.append(struct.pack("=HBBI", _LOAD, 0, 0, offset))
        steps.append(struct.pack("=HBBI", _JUMP_IF_EQUAL, 0, to_allow, value))
    steps.append(struct.pack("=HBBI", _RETURN, 0, 0, _REFUSE | refusal))
    steps.append(struct.pack("=HBBI", _RETURN, 0, 0, _ALLOW))
    return b"".join(steps)


def _take_away(lack: str) -> None:
    """From this process on. Raises: OSError."""
    steps = _filter(*LACKS[lack])
    program = _Program(len(steps) // 8, steps)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
        _PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0
    ):
        raise OSError(ctypes.get_errno(), "seccomp")


if __name__ == "__main__":
    _take_away(sys.argv[1])
    os.execvp(sys.argv[2], sys.argv[2:])
