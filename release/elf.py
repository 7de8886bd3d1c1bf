"""What an ELF file says of itself: for which machine it is, and whether it needs another file.

Source: elf(5).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from release.checkout import ReleaseError

_MACHINES = {62: "x86_64", 183: "aarch64", 247: "bpf"}
_DYNAMIC, _INTERPRETER = 2, 3
"""Kinds of program headers."""


@dataclass(frozen=True, slots=True)
class Elf:
    """A 64-bit little-endian one."""

    machine: str
    static: bool
    """It has neither a loader nor a table of libraries."""


def read_elf(path: Path) -> Elf:
    """Raises: ReleaseError for what is no such file."""
    content = path.read_bytes()
    if content[:6] != b"\x7fELF\x02\x01":
        raise ReleaseError(f"{path}: no 64-bit little-endian ELF file")
    (machine,) = struct.unpack_from("<H", content, 18)
    (headers_at,) = struct.unpack_from("<Q", content, 32)
    size, count = struct.unpack_from("<HH", content, 54)
    kinds = {struct.unpack_from("<I", content, headers_at + i * size)[0] for i in range(count)}
    return Elf(_MACHINES.get(machine, f"machine {machine}"), not kinds & {_DYNAMIC, _INTERPRETER})
