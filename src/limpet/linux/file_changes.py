"""Hearing that a file was replaced, made or removed, by whoever it was."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterable
from pathlib import Path

from limpet.base.errors import KernelError

_CLOSE_WRITE, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x8, 0x40, 0x80, 0x100, 0x200
_MASK = _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE
_EVENT = struct.Struct("iIII")


class FileChanges:
    """Watches the folders that the files are in, whether these are there or not; inotify(7).

    A folder that is missing, or replaced as a whole, is told of by nothing.
    """

    def __init__(self, files: Iterable[Path]) -> None:
        """Raises: KernelError."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise KernelError("watch", "files", ctypes.get_errno())
        self._files: dict[int, set[bytes]] = {}
        """Names of interest by their folder's watch."""
        for file in files:
            self._add(file)

    def _add(self, file: Path) -> None:
        folder = os.fsencode(file.parent)
        watch = self._libc.inotify_add_watch(self._fd, folder, _MASK)
        if watch >= 0:
            self._files.setdefault(watch, set()).add(os.fsencode(file.name))
        elif (number := ctypes.get_errno()) not in (errno.ENOENT, errno.ENOTDIR):
            self.close()
            raise KernelError("watch", str(file.parent), number)

    def fileno(self) -> int:
        return int(self._fd)

    def close(self) -> None:
        os.close(self._fd)

    def drain(self) -> bool:
        """Whether one of the files was touched since; also when events were lost."""
        touched = False
        while True:
            try:
                events = os.read(self._fd, 1 << 16)
            except BlockingIOError:
                return touched
            at = 0
            while at < len(events):
                watch, _mask, _cookie, length = _EVENT.unpack_from(events, at)
                at += _EVENT.size
                name = events[at : at + length].rstrip(b"\0")
                at += length
                touched = touched or watch < 0 or name in self._files.get(watch, ())
