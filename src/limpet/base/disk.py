"""Every file operation of the ledger, one method each, so that tests see and disturb them."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path

_LARGEST_FILE_BYTES = 16 * 1024 * 1024


class Disk:
    """Raises OSError, from all methods."""

    def make_folder(self, folder: Path) -> None:
        """Make `folder` and what is missing above it, durable; nothing if it is there."""
        if folder.is_dir():
            return
        self.make_folder(folder.parent)
        folder.mkdir(mode=0o755, exist_ok=True)
        self.fsync_folder(folder.parent)

    def list_folder(self, folder: Path) -> list[str]:
        return os.listdir(folder)

    def read(self, path: Path) -> bytes:
        """Content of a regular file of at most 16 MiB; a pipe or a device is an error at once."""
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "not a regular file")
            if status.st_size > _LARGEST_FILE_BYTES:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
            return os.read(fd, status.st_size)
        finally:
            os.close(fd)

    def write(self, path: Path, content: bytes) -> None:
        """Make `content` all that `path` holds, not synced.

        A file that is there is overwritten before it is cut: a full disk does not hinder that.
        """
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self.pwrite(fd, content, 0)
            os.ftruncate(fd, len(content))
        finally:
            os.close(fd)

    def fsync(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def fsync_folder(self, folder: Path) -> None:
        self.fsync(folder)

    def rename(self, source: Path, target: Path) -> None:
        os.rename(source, target)

    def unlink(self, path: Path) -> None:
        """Remove a file, not synced; nothing if it is gone."""
        path.unlink(missing_ok=True)

    def open(self, path: Path) -> int:
        """A descriptor to read and write an existing file."""
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def pwrite(self, fd: int, data: bytes, offset: int) -> None:
        written = 0
        while written < len(data):
            count = os.pwrite(fd, data[written:], offset + written)
            if count == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            written += count

    def fdatasync(self, fd: int) -> None:
        os.fdatasync(fd)

    def close(self, fd: int) -> None:
        os.close(fd)

    def lock(self, path: Path) -> int | None:
        """A descriptor that holds flock on `path`, made if missing; None: another has it."""
        fd = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        except OSError:
            os.close(fd)
            raise
        return fd
