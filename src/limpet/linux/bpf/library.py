"""eBPF objects, maps and links, through libbpf in this process: no command is started.

Source: bpf(2), bpf-helpers(7), libbpf's headers bpf.h and libbpf.h.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from limpet.base.errors import KernelError, LimpetError

_SONAME = "libbpf.so.1"
_BATCH = 4096
"""Elements of a map that go with one system call."""
_MOST_WORDS = 8
"""Lines of libbpf's and the verifier's words that are kept: the last ones say what is wrong."""
_LINK_INFO = struct.Struct("=III4xQI")
"""type, id, program's id, cgroup's id, attach type. Source: struct bpf_link_info."""
_PROGRAM_INFO = struct.Struct("=II")
_MAP_INFO = struct.Struct("=5I")
"""type, id, bytes of a key and of a value, room. Source: struct bpf_map_info."""
_NOTHING: Mapping[bytes, bytes] = MappingProxyType({})
_Printer = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_libc = ctypes.CDLL(None, use_errno=True)


class BpfLinkInfo(NamedTuple):
    """Where a program is attached."""

    program_id: int
    cgroup_id: int
    """0: somebody has detached it, or the cgroup is gone."""
    attach_type: int
    id: int


class BpfProgram:
    """Loaded; as long as it is open or attached."""

    def __init__(self, lib: ctypes.CDLL, fd: int, attach_type: int) -> None:
        self.fd = fd
        self.attach_type = attach_type
        info = _info(lib, fd, _PROGRAM_INFO.size, "a program")
        self.id: int = _PROGRAM_INFO.unpack_from(info)[1]


class BpfMap:
    """A hash or an array; keys and values as the kernel holds them."""

    def __init__(
        self, lib: ctypes.CDLL, name: str, fd: int, key_bytes: int, value_bytes: int, most: int
    ) -> None:
        """`most`: elements that it has room for."""
        self._lib = lib
        self.name = name
        self.fd = fd
        self._key_bytes, self._value_bytes = key_bytes, value_bytes
        self._most = most

    def read(self, like: Mapping[bytes, bytes] = _NOTHING) -> dict[bytes, bytes]:
        """All of it. Raises: KernelError.

        `like`: what is as there shares its keys and values, and is not in memory twice.
        """
        if not like:
            return dict(chain.from_iterable(self.batches()))
        alike, others = 0, dict[bytes, bytes]()
        for key, value in chain.from_iterable(self.batches()):
            if like.get(key) == value:
                alike += 1
            else:
                others[key] = value
        if alike == len(like):
            return {**like, **others}
        found = dict(chain.from_iterable(self.batches()))
        shared = {
            key: value if found[key] == value else found[key]
            for key, value in like.items()
            if key in found
        }
        return shared | {key: value for key, value in found.items() if key not in shared}

    def batches(self, most: int = _BATCH) -> Iterator[Iterable[tuple[bytes, bytes]]]:
        """All elements, so many at most with one system call; what changes between two of them is
        among them or not. Raises: KernelError."""
        keys = ctypes.create_string_buffer(self._key_bytes * most)
        values = ctypes.create_string_buffer(self._value_bytes * most)
        at = ctypes.c_uint64()
        first = True
        while True:
            count = ctypes.c_uint32(most)
            done = self._lib.bpf_map_lookup_batch(
                self.fd, None if first else ctypes.byref(at), ctypes.byref(at),
                keys, values, ctypes.byref(count), None,
            )  # fmt: skip
            if done not in (0, -errno.ENOENT):  # the latter: these are the last
                raise KernelError("read", f"eBPF map {self.name}", -done)
            yield zip(
                _split(keys.raw, self._key_bytes, count.value),
                _split(values.raw, self._value_bytes, count.value),
                strict=True,
            )
            if done:
                return
            first = False

    def get(self, key: bytes) -> bytes | None:
        """None: it is not there. Raises: KernelError."""
        value = ctypes.create_string_buffer(self._value_bytes)
        done = self._lib.bpf_map_lookup_elem(self.fd, key, value)
        if done == -errno.ENOENT:
            return None
        if done:
            raise KernelError("read", f"eBPF map {self.name}", -done)
        return value.raw

    def put(self, items: Collection[tuple[bytes, bytes]]) -> None:
        """Raises: KernelError (E2BIG: it is full); some of them are there then."""
        left = list(items)
        for start in range(0, len(left), _BATCH):
            part = left[start : start + _BATCH]
            count = ctypes.c_uint32(len(part))
            done = self._lib.bpf_map_update_batch(
                self.fd, b"".join(key for key, _ in part), b"".join(value for _, value in part),
                ctypes.byref(count), None,
            )  # fmt: skip
            if done:
                hint = "it is full" if done == -errno.E2BIG else ""
                raise KernelError("write", f"eBPF map {self.name}", -done, hint)

    def delete(self, keys: Iterable[bytes]) -> None:
        """What is gone already is gone. Raises: KernelError."""
        for key in keys:
            done = self._lib.bpf_map_delete_elem(self.fd, key)
            if done not in (0, -errno.ENOENT):
                raise KernelError("write", f"eBPF map {self.name}", -done)

    @contextmanager
    def mapped(self) -> Iterator[memoryview]:
        """Values of an array (BPF_F_MMAPABLE) whose size is a multiple of 8, in order; who writes
        there writes into the map. Raises: KernelError."""
        try:
            memory = mmap.mmap(self.fd, self._most * self._value_bytes)
        except OSError as error:
            raise KernelError("map", f"eBPF map {self.name}", error.errno or 0) from error
        with memory, memoryview(memory) as values:
            yield values

    def again(self) -> BpfMap:
        """The same, by a descriptor of its own."""
        sizes = self._key_bytes, self._value_bytes, self._most
        return BpfMap(self._lib, self.name, os.dup(self.fd), *sizes)

    def close(self) -> None:
        os.close(self.fd)


class BpfObject:
    """Maps and programs of an object file, by name; open until closed."""

    def __init__(self, maps: Mapping[str, BpfMap], programs: Mapping[str, BpfProgram]) -> None:
        self.maps = maps
        self.programs = programs

    def close(self) -> None:
        """What is pinned or attached stays."""
        for fd in [x.fd for x in self.maps.values()] + [x.fd for x in self.programs.values()]:
            os.close(fd)


class Bpf:
    """The library."""

    def __init__(self) -> None:
        """Raises: LimpetError without it."""
        try:
            self._lib = lib = ctypes.CDLL(_SONAME, use_errno=True)
        except OSError as error:
            raise LimpetError(f"load {_SONAME}: {error} (install libbpf1)") from error
        pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
        for name, result, arguments in (
            ("bpf_object__open_file", pointer, [text, pointer]),
            ("bpf_object__load", number, [pointer]),
            ("bpf_object__close", None, [pointer]),
            ("bpf_object__next_map", pointer, [pointer, pointer]),
            ("bpf_object__next_program", pointer, [pointer, pointer]),
            ("bpf_map__name", text, [pointer]),
            ("bpf_map__fd", number, [pointer]),
            ("bpf_map__key_size", ctypes.c_uint32, [pointer]),
            ("bpf_map__value_size", ctypes.c_uint32, [pointer]),
            ("bpf_map__max_entries", ctypes.c_uint32, [pointer]),
            ("bpf_map__set_pin_path", number, [pointer, text]),
            ("bpf_program__name", text, [pointer]),
            ("bpf_program__fd", number, [pointer]),
            ("bpf_program__expected_attach_type", number, [pointer]),
            ("bpf_map_lookup_batch", number, [number, *[pointer] * 6]),
            ("bpf_map_update_batch", number, [number, text, text, pointer, pointer]),
            ("bpf_map_lookup_elem", number, [number, text, pointer]),
            ("bpf_map_delete_elem", number, [number, text]),
            ("bpf_link_create", number, [number, number, number, pointer]),
            ("bpf_link_update", number, [number, number, pointer]),
            ("bpf_obj_pin", number, [number, text]),
            ("bpf_obj_get", number, [text]),
            ("bpf_obj_get_info_by_fd", number, [number, pointer, pointer]),
            ("libbpf_set_print", pointer, [pointer]),
        ):
            function = getattr(lib, name)
            function.restype, function.argtypes = result, arguments

    def load(self, path: Path, map_pin: Callable[[str], Path]) -> BpfObject:
        """Loads it; maps are those that are pinned already where `map_pin` says, by a map's name,
        or are pinned there.

        Raises: LimpetError with libbpf's words, which the verifier's are among.
        """
        with self._listening() as words:
            opened = self._lib.bpf_object__open_file(os.fsencode(path), None)
            if not opened:
                raise _refused("open", path, ctypes.get_errno(), words)
            try:
                for each in self._each("map", opened):
                    pin = map_pin(self._lib.bpf_map__name(each).decode())
                    self._lib.bpf_map__set_pin_path(each, os.fsencode(pin))
                done = self._lib.bpf_object__load(opened)
                if done:
                    raise _refused("load", path, -done, words)
                return BpfObject(self._maps(opened), self._programs(opened))
            finally:
                self._lib.bpf_object__close(opened)

    def _maps(self, opened: int) -> dict[str, BpfMap]:
        found = {}
        for each in self._each("map", opened):
            name = self._lib.bpf_map__name(each).decode()
            sizes = (
                self._lib.bpf_map__key_size(each),
                self._lib.bpf_map__value_size(each),
                self._lib.bpf_map__max_entries(each),
            )
            found[name] = BpfMap(self._lib, name, _kept(self._lib.bpf_map__fd(each)), *sizes)
        return found

    def _programs(self, opened: int) -> dict[str, BpfProgram]:
        return {
            self._lib.bpf_program__name(each).decode(): BpfProgram(
                self._lib,
                _kept(self._lib.bpf_program__fd(each)),
                self._lib.bpf_program__expected_attach_type(each),
            )
            for each in self._each("program", opened)
        }

    def _each(self, kind: str, opened: int) -> Iterator[int]:
        following = getattr(self._lib, f"bpf_object__next_{kind}")
        each = following(opened, None)
        while each:
            yield each
            each = following(opened, each)

    @contextmanager
    def _listening(self) -> Iterator[list[str]]:
        """What libbpf says meanwhile, the last lines of it; it prints nothing."""
        words: list[str] = []

        def hear(_level: int, text: bytes, arguments: int) -> int:
            buffer = ctypes.create_string_buffer(1 << 16)
            length = _libc.vsnprintf(buffer, len(buffer), text, ctypes.c_void_p(arguments))
            if _level == 0:
                lines = buffer.value.decode(errors="replace").splitlines()
                words.extend(line.strip() for line in lines if line.strip())
                del words[:-_MOST_WORDS]
            return int(length)

        printer = _Printer(hear)
        before = self._lib.libbpf_set_print(ctypes.cast(printer, ctypes.c_void_p))
        try:
            yield words
        finally:
            self._lib.libbpf_set_print(before)

    # Links and pins

    def attach(self, program: BpfProgram, cgroup_fd: int) -> int:
        """A descriptor of the link, which ends with it unless it is pinned. Raises: KernelError."""
        fd: int = self._lib.bpf_link_create(program.fd, cgroup_fd, program.attach_type, None)
        if fd < 0:
            raise KernelError("attach", "an eBPF program to the cgroup", -fd)
        return fd

    def update(self, link_fd: int, program: BpfProgram) -> None:
        """The link's program is this one from one call to the next. Raises: KernelError."""
        done = self._lib.bpf_link_update(link_fd, program.fd, None)
        if done:
            raise KernelError("update", "an eBPF link", -done)

    def link(self, link_fd: int) -> BpfLinkInfo:
        """Raises: KernelError."""
        info = _info(self._lib, link_fd, 128, "a link")
        _, number, program, cgroup, attach_type = _LINK_INFO.unpack_from(info)
        return BpfLinkInfo(program, cgroup, attach_type, number)

    def pin(self, fd: int, path: Path) -> None:
        """Raises: KernelError."""
        done = self._lib.bpf_obj_pin(fd, os.fsencode(path))
        if done:
            raise KernelError("pin", str(path), -done)

    def pinned(self, path: Path) -> int | None:
        """A descriptor; None: nothing is pinned there. Raises: KernelError."""
        fd: int = self._lib.bpf_obj_get(os.fsencode(path))
        if fd == -errno.ENOENT:
            return None
        if fd < 0:
            raise KernelError("open", str(path), -fd)
        return fd

    def pinned_map(self, path: Path) -> BpfMap | None:
        """As `pinned`."""
        fd = self.pinned(path)
        if fd is None:
            return None
        try:
            info = _info(self._lib, fd, _MAP_INFO.size, "a map")
        except KernelError:
            os.close(fd)
            raise
        _, _, key_bytes, value_bytes, most = _MAP_INFO.unpack_from(info)
        return BpfMap(self._lib, path.name, fd, key_bytes, value_bytes, most)


def _info(lib: ctypes.CDLL, fd: int, size: int, what: str) -> bytes:
    buffer = ctypes.create_string_buffer(size)
    length = ctypes.c_uint32(size)
    done = lib.bpf_obj_get_info_by_fd(fd, buffer, ctypes.byref(length))
    if done:
        raise KernelError("look at", f"{what} of eBPF", -done)
    return buffer.raw


def _kept(fd: int) -> int:
    """One of our own, which outlives libbpf's."""
    return os.dup(fd)


def _split(content: bytes, size: int, count: int) -> Iterator[bytes]:
    return (content[at : at + size] for at in range(0, size * count, size))


def _refused(verb: str, path: Path, number: int, words: Iterable[str]) -> LimpetError:
    said: Any = "; ".join(words)
    return LimpetError(f"{verb} {path}: {os.strerror(number)}{f' ({said})' if said else ''}")
