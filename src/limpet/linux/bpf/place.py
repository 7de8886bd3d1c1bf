"""What eBPF programs are pinned in and attached to: bpffs, cgroups, network namespaces."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from pathlib import Path

from limpet.base.errors import KernelError

_BPFFS_MAGIC = 0xCAFE4A11
"""Source: include/uapi/linux/magic.h, BPF_FS_MAGIC."""
_SO_NETNS_COOKIE = 71
"""From Linux 5.14 on. Source: include/uapi/asm-generic/socket.h."""
_libc = ctypes.CDLL(None, use_errno=True)


def is_bpffs(path: Path) -> bool:
    """It is there, and pins can be made in it."""
    buffer = ctypes.create_string_buffer(256)
    failed = _libc.statfs(os.fsencode(path), buffer)
    return not failed and ctypes.c_long.from_buffer(buffer).value == _BPFFS_MAGIC


def find_root_cgroup() -> Path | None:
    """Where the root of the unified hierarchy is mounted; None: nowhere that is visible here."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
        for line in mounts:
            before, _, after = line.partition(" - ")
            if after.startswith("cgroup2 "):
                place = Path(before.split(" ")[4])
                # Of a container's own hierarchy the root has another number than the machine's.
                if cgroup_id(place) == 1:
                    return place
    return None


def cgroup_id(path: Path) -> int:
    """As links tell it; 0: there is none."""
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def network_cookie() -> int:
    """Cookie of the calling thread's network namespace: what a program sees of it, and no other
    has as long as the machine runs. Raises: KernelError."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here:
            found = here.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8)
    except OSError as error:
        hint = "Linux 5.14 or newer is needed"
        raise KernelError("ask", "for a namespace's cookie", error.errno or 0, hint) from error
    return int(struct.unpack("=Q", found)[0])
