"""Settings below /proc/sys, in the network namespace of the calling thread."""

from __future__ import annotations

import os

from limpet.base.errors import KernelError

WRITABLE_VARIABLE = "LIMPET_PROC_SYS"
_WRITABLE = os.environ.get(WRITABLE_VARIABLE, "/proc/sys")
"""Where settings are written: a container's own /proc/sys is read-only, so the machine's is mounted
elsewhere. The kernel shows the settings of whoever asks, by whatever mount. Source:
fs/proc/proc_sysctl.c, net_ctl_root."""


def read_sysctl(path: str) -> str | None:
    """The value, or None where the kernel has no such setting (IPv6 off, device gone)."""
    try:
        with open(f"/proc/sys/{path}", encoding="ascii") as file:
            return file.read().strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise KernelError("read", f"sysctl {path}", error.errno or 0) from error


def has_ipv6() -> bool:
    """False: ipv6.disable=1, or a kernel that was built without. Raises: KernelError."""
    return read_sysctl("net/ipv6/conf/all/disable_ipv6") is not None


def write_sysctl(path: str, value: str) -> None:
    """In the namespace of the calling thread. Raises: KernelError."""
    try:
        fd = os.open(f"{_WRITABLE}/{path}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, value.encode())
        finally:
            os.close(fd)
    except OSError as error:
        raise KernelError("write", f"sysctl {path} = {value}", error.errno or 0) from error
