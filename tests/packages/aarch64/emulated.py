"""A machine of aarch64 with Debian 12's kernel, emulated by QEMU, and all of it in its memory."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path
from typing import BinaryIO

from release.checkout import cache_folder
from release.debian import fetch, resolve, unpack

PACKAGES = ("python3", "libnftables1", "libbpf1", "iproute2", "iputils-ping", "busybox-static")
"""What a node has, and a shell."""
_MODULES = ("kernel/net", "kernel/drivers/net", "kernel/lib", "kernel/crypto", "kernel/arch")
_LONGEST_S = 1500
QEMU = Path("/usr/bin/qemu-aarch64-static")
"""Runs a program of aarch64 on this machine's kernel."""


def lay_kernel(root: Path) -> Path:
    """Debian's image for aarch64; its modules are laid into `root`, and those of its network."""
    home = cache_folder("roots") / "bookworm-arm64-kernel"
    if not home.exists():
        fresh = home.with_name(".bookworm-arm64-kernel.new")
        debs = resolve("bookworm", "arm64", ["linux-image-arm64"], fresh.with_suffix(".apt"))
        (image,) = [each for each in debs if each.package.startswith("linux-image-6")]
        unpack([fetch(image)], fresh)
        fresh.rename(home)
    (of_version,) = (home / "lib/modules").iterdir()
    target = root / "lib/modules" / of_version.name
    for each in (*_MODULES, *(path.name for path in of_version.glob("modules.*"))):
        (target / each).parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-a", of_version / each, (target / each).parent], check=True)
    depmod = ("/bin/busybox", "depmod", of_version.name)
    subprocess.run(["chroot", root, f"/{QEMU.name}", *depmod], check=True)
    (found,) = (home / "boot").glob("vmlinuz-*")
    return found


def boot(root: Path, image: Path, archive: Path) -> str:
    """What the machine says at its serial line, from its start to its end. `root` is laid into
    its memory by `archive`, which is written."""
    with archive.open("wb", buffering=1 << 20) as into:
        _write_archive(into, root)
    done = subprocess.run(
        [
            *("qemu-system-aarch64", "-machine", "virt", "-cpu", "cortex-a72", "-smp", "2"),
            *("-m", "2048", "-accel", "tcg,thread=multi", "-nodefaults", "-no-user-config"),
            *("-display", "none", "-no-reboot", "-serial", "stdio", "-kernel", image),
            *("-initrd", archive, "-append", "console=ttyAMA0 quiet panic=-1 rdinit=/init"),
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=_LONGEST_S,
    )
    return (done.stdout + done.stderr).decode(errors="replace")


def _write_archive(into: BinaryIO, root: Path) -> None:
    """An archive of the kernel's own format for its first root.

    Source: Documentation/driver-api/early-userspace/buffer-format.rst, `newc`.
    """
    for number, path in enumerate(sorted(root.rglob("*")), 1):
        mode = path.lstat().st_mode
        content = b""
        if stat.S_ISLNK(mode):
            content = os.fsencode(path.readlink())
        elif stat.S_ISREG(mode):
            content = path.read_bytes()
        into.write(_entry(number, mode, os.fsencode(path.relative_to(root)), content))
    into.write(_entry(0, 0, b"TRAILER!!!", b""))


def _entry(number: int, mode: int, name: bytes, content: bytes) -> bytes:
    fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0)
    head = b"070701" + b"".join(b"%08X" % each for each in fields) + name + b"\0"
    return _padded(head) + _padded(content)


def _padded(part: bytes) -> bytes:
    return part + bytes(-len(part) % 4)
