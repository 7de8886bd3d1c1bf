"""Files that survive power loss.

Every operation is a method of `Disk`, so that tests see and disturb them; `write_durably` and its
neighbours are for small files that are read and written whole.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from limpet.base.bounds.words import FILE, SNAPSHOT
from limpet.base.errors import StorageError

_READ_BYTES = 1 << 18


def read_regular(path: Path, most_bytes: int = FILE.most) -> bytes:
    """Content of a regular file; a pipe or a device in its place is an error at once: it would be
    waited for, or read for ever. Raises: OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        if info.st_size > most_bytes:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
        parts, left = [], most_bytes
        while part := os.read(fd, min(left + 1, _READ_BYTES)):  # files of /proc say no size
            parts.append(part)
            left -= len(part)
            if left < 0:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
        return b"".join(parts)
    finally:
        os.close(fd)


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
        return read_regular(path)

    def write(self, path: Path, content: bytes) -> None:
        """Make `content` all that `path` holds, not synced.

        A file that is there is overwritten before it is cut: a full disk does not hinder that.
        A link in its place is replaced, and what it names left alone.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            fd = os.open(path, flags, 0o644)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            self.unlink(path)
            fd = os.open(path, flags | os.O_EXCL, 0o644)
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

    def replace(self, path: Path, content: bytes, temporary: Path) -> None:
        """The old or the new content is at `path`, whatever happens; the new when this returns."""
        self.write(temporary, content)
        self.fsync(temporary)
        self.rename(temporary, path)
        self.fsync_folder(path.parent)

    def rename(self, source: Path, target: Path) -> None:
        os.rename(source, target)

    def unlink(self, path: Path) -> None:
        """Remove a file, not synced; nothing if it is gone."""
        path.unlink(missing_ok=True)

    def open(self, path: Path) -> int:
        """A descriptor to read and write an existing file, which is no link."""
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)

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
        """A descriptor that holds flock on `path`, made if missing; None: another has it.

        A link is refused (ELOOP): who follows it and who does not would not see each other's lock.
        """
        fd = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        except OSError:
            os.close(fd)
            raise
        return fd


@contextlib.contextmanager
def refusals(operation: str, path: Path, hint: str = "") -> Iterator[None]:
    """Turns an OSError into the StorageError that says what could not be done to `path`."""
    try:
        yield
    except OSError as error:
        raise StorageError(operation, str(path), cause(error), hint=hint) from error


def cause(error: OSError) -> str:
    return error.strerror or str(error)


def read_if_there(path: Path, most_bytes: int = FILE.most) -> bytes | None:
    """None: there is no such file. Raises: StorageError."""
    with refusals("read", path):
        try:
            return read_regular(path, most_bytes)
        except FileNotFoundError:
            return None


def read_kept(path: Path) -> bytes | None:
    """What this node has written itself of its cluster, of whatever size that was.

    None: there is no such file. Raises: StorageError.
    """
    return read_if_there(path, SNAPSHOT.most)


def is_rotten(error: StorageError) -> bool:
    """The disk has lost what was there, for ever: as with any other damage."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EIO


def put_aside(path: Path) -> str:
    """A damaged file makes room for the next one. Returns what became of it, in words."""
    aside = path.with_name(f"{path.name}.damaged")
    try:
        path.rename(aside)
    except OSError as error:
        return f"it cannot be put aside as {aside.name}: {cause(error)}"
    return f"kept as {aside.name}, remove it when nobody needs it"


def write_durably(path: Path, content: bytes, mode: int = 0o600) -> None:
    """The old or the new content is there, whatever happens; the new when this returns.

    The temporary file is in the same folder: containerd reloads its configuration for a rename
    within the folder only. Its name ends in nothing that a runtime reads. Raises: StorageError.
    """
    temporary = path.with_name(f"{path.name}.new")
    with refusals("write", path, hint="free space, or check the disk"):
        try:
            temporary.unlink(missing_ok=True)  # whatever its mode and whatever it is
            temporary.touch(mode, exist_ok=False)
            temporary.chmod(mode)  # whatever the umask
            Disk().replace(path, content, temporary)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise


def remove_durably(path: Path) -> bool:
    """False when it was gone already. Raises: StorageError."""
    with refusals("remove", path):
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        Disk().fsync_folder(path.parent)
        return True
