"""Hearing that a file was replaced, made or removed, by whoever it was."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import threading
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from limpet.base.errors import KernelError

_CLOSE_WRITE, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x8, 0x40, 0x80, 0x100, 0x200
_MASK = _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE
_EVENT = struct.Struct("iIII")


class FileChanges:
    """Watches the folders that the files are in, whether these are there or not; inotify(7)."""

    def __init__(self, files: Iterable[Path], *, follows: bool = False) -> None:
        """`follows`: a folder that comes, or is replaced as a whole, is watched from then on where
        the one above it was there; else such a one is told of by nothing. Raises: KernelError."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise KernelError("watch", "files", ctypes.get_errno())
        self._files: dict[int, set[bytes]] = {}
        """Names of interest by their folder's watch."""
        self._paths = tuple(files)
        self._follows = follows
        self._folders: dict[int, set[bytes]] = {}
        """The same of folders in the one above them."""
        try:
            self.look_again()
        except KernelError:
            self.close()
            raise

    def look_again(self) -> None:
        """Folders that are there now, or are others than before, are watched. Raises:
        KernelError."""
        for path in self._paths:
            # The one above it first: what is made between is heard of.
            if self._follows:
                self._add(path.parent, self._folders)
            self._add(path, self._files)

    def _add(self, path: Path, names: dict[int, set[bytes]]) -> None:
        """One that is watched already has the same watch again."""
        folder = os.fsencode(path.parent)
        watch = self._libc.inotify_add_watch(self._fd, folder, _MASK)
        if watch >= 0:
            names.setdefault(watch, set()).add(os.fsencode(path.name))
        elif (number := ctypes.get_errno()) not in (errno.ENOENT, errno.ENOTDIR):
            raise KernelError("watch", str(path.parent), number)

    def fileno(self) -> int:
        return int(self._fd)

    def close(self) -> None:
        """Nobody waits for it: the kernel does until nobody on the machine looks at watches, some
        15 ms, and more than ten seconds were seen. Source: fsnotify_destroy_group()."""
        work = partial(os.close, self._fd)
        threading.Thread(target=work, name="unwatch", daemon=True).start()

    def drain(self) -> bool:
        """Whether one of the files was touched since; also when events were lost, or its folder
        came. Raises: KernelError."""
        touched = is_other = False
        while True:
            try:
                events = os.read(self._fd, 1 << 16)
            except BlockingIOError:
                if is_other:
                    self.look_again()
                return touched or is_other
            at = 0
            while at < len(events):
                watch, _mask, _cookie, length = _EVENT.unpack_from(events, at)
                at += _EVENT.size
                name = events[at : at + length].rstrip(b"\0")
                at += length
                touched = touched or name in self._files.get(watch, ())
                is_other = is_other or watch < 0 or name in self._folders.get(watch, ())
