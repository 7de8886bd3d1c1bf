"""eBPF programs that are attached to cgroups of this machine, by whomever. They are found by their
numbers: without their pins, which may be in a bpffs that is not seen here, and without libbpf.

Source: bpf(2), include/uapi/linux/bpf.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from limpet.base.errors import KernelError

_LOOK_UP, _PINNED, _PROGRAM, _MAP, _INFO, _LINK, _NEXT_LINK, _DETACH = 1, 7, 13, 14, 15, 30, 31, 34
"""BPF_MAP_LOOKUP_ELEM, OBJ_GET, PROG_GET_FD_BY_ID, MAP_GET_FD_BY_ID, OBJ_GET_INFO_BY_FD,
LINK_GET_FD_BY_ID, LINK_GET_NEXT_ID, LINK_DETACH."""
_CGROUP_LINK, _HASH = 3, 1
"""BPF_LINK_TYPE_CGROUP, BPF_MAP_TYPE_HASH."""
_LINK_INFO = struct.Struct("=3I4xQI")
"""type, id, program's id, cgroup's id, attach type. Source: struct bpf_link_info."""
_PROGRAM_INFO = struct.Struct("=52xIQ16s")
"""Count of maps, where their ids are to be written, name. Source: struct bpf_prog_info."""
_MAP_INFO = struct.Struct("=I4xII8x16s")
"""type, bytes of a key and of a value, name. Source: struct bpf_map_info."""
_MOST_MAPS = 64
"""A program may have so many. Source: include/linux/bpf_verifier.h, MAX_USED_MAPS."""
_CALLS = {
    8: {
        "x86_64": 321,
        "aarch64": 280,
        "riscv64": 280,
        "loongarch64": 280,
        "ppc64le": 361,
        "s390x": 351,
    },
    4: {"x86_64": 357, "i686": 357, "aarch64": 386, "armv8l": 386, "armv7l": 386, "armv6l": 386},
}
"""Numbers of the system call, by bytes of a pointer: a system of 32 bits may run on a kernel of 64.
Source: arch/*/include/uapi/asm/unistd.h."""
_CALL = _CALLS[ctypes.sizeof(ctypes.c_void_p)].get(os.uname().machine)
_libc = ctypes.CDLL(None, use_errno=True)


class AttachedProgram(NamedTuple):
    """A program and the link that attaches it to a cgroup."""

    link_id: int
    name: str
    map_ids: tuple[int, ...]


def attached_programs() -> Iterator[AttachedProgram]:
    """All of the machine; none where the kernel tells of none: before Linux 5.8, and whoever may
    not ask (CAP_SYS_ADMIN)."""
    number = 0
    while number := _next_link(number):
        with suppress(KernelError):  # it goes just now
            if program_id := _program_of(number):
                yield _look_at(number, program_id)


def detach(link_id: int) -> None:
    """Its program is called no more, whoever has pinned it. Raises: KernelError."""
    with suppress(_Gone), _opened(_LINK, link_id) as link:
        done = _bpf(_DETACH, bytearray(struct.pack("=I", link)))
        if done:
            raise KernelError("detach", "an eBPF program", -done)


def detach_pinned(path: Path) -> None:
    """The program of the link that is pinned there is called no more when this returns. One that is
    only unpinned and closed goes later, by a worker of the kernel (`bpf_link_put`).

    Raises: KernelError (EOPNOTSUPP, EINVAL: a kernel before 5.9).
    """
    name = ctypes.create_string_buffer(os.fsencode(path))
    link = _bpf(_PINNED, bytearray(struct.pack("=Q2I", ctypes.addressof(name), 0, 0)))
    if link < 0:
        raise KernelError("open", f"eBPF link {path}", -link)
    try:
        if done := _bpf(_DETACH, bytearray(struct.pack("=I", link))):
            raise KernelError("detach", f"eBPF link {path}", -done)
    finally:
        os.close(link)


def value_in(map_id: int, name: str, key: bytes, value_bytes: int) -> bytes | None:
    """What the hash of that number and name holds; None: nothing there, or it is another map."""
    with suppress(KernelError), _opened(_MAP, map_id) as found:
        kind, key_size, value_size, its_name = _MAP_INFO.unpack(
            _info(found, bytearray(_MAP_INFO.size))
        )
        if (kind, key_size, value_size) != (_HASH, len(key), value_bytes):
            return None
        if _text(its_name) != name:
            return None
        keys, values = ctypes.create_string_buffer(key), ctypes.create_string_buffer(value_bytes)
        places = ctypes.addressof(keys), ctypes.addressof(values)
        if not _bpf(_LOOK_UP, bytearray(struct.pack("=I4x3Q", found, *places, 0))):
            return values.raw
    return None


class _Gone(KernelError):
    """Nothing has that number any more."""


def _next_link(number: int) -> int:
    """0: there is none."""
    attributes = bytearray(struct.pack("=3I", number, 0, 0))
    if _bpf(_NEXT_LINK, attributes):
        return 0
    return int(struct.unpack_from("=I", attributes, 4)[0])


def _program_of(link_id: int) -> int:
    """0: it is no cgroup's, or attached no more."""
    with _opened(_LINK, link_id) as link:
        kind, _, program_id, cgroup_id, _ = _LINK_INFO.unpack(
            _info(link, bytearray(_LINK_INFO.size))
        )
    return program_id if kind == _CGROUP_LINK and cgroup_id else 0


def _look_at(link_id: int, program_id: int) -> AttachedProgram:
    map_ids = (ctypes.c_uint32 * _MOST_MAPS)()
    asked = bytearray(_PROGRAM_INFO.pack(_MOST_MAPS, ctypes.addressof(map_ids), b""))
    with _opened(_PROGRAM, program_id) as program:
        count, _, name = _PROGRAM_INFO.unpack(_info(program, asked))
    return AttachedProgram(link_id, _text(name), tuple(map_ids[:count]))


@contextmanager
def _opened(command: int, number: int) -> Iterator[int]:
    fd = _bpf(command, bytearray(struct.pack("=3I", number, 0, 0)))
    if fd < 0:
        kind = _Gone if fd == -errno.ENOENT else KernelError
        raise kind("open", f"number {number} of eBPF", -fd)
    try:
        yield fd
    finally:
        os.close(fd)


def _info(fd: int, asked: bytearray) -> bytearray:
    place = ctypes.addressof(ctypes.c_char.from_buffer(asked))
    done = _bpf(_INFO, bytearray(struct.pack("=2IQ", fd, len(asked), place)))
    if done:
        raise KernelError("look at", "an object of eBPF", -done)
    return asked


def _text(name: bytes) -> str:
    return name.split(b"\0", 1)[0].decode(errors="replace")


def _bpf(command: int, attributes: bytearray) -> int:
    """What the kernel says; a number of an error is below 0."""
    if _CALL is None:
        return -errno.ENOSYS
    place = (ctypes.c_char * len(attributes)).from_buffer(attributes)
    done = int(_libc.syscall(ctypes.c_long(_CALL), command, place, len(attributes)))
    return -ctypes.get_errno() if done < 0 else done
