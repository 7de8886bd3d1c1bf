"""The snapshot's log in its file: read, appended to, begun anew. For one thread."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from limpet.base.bounds.words import SNAPSHOT
from limpet.base.disk import Disk, read_regular
from limpet.cluster.documents import Document, Known
from limpet.cluster.merge import merge
from limpet.cluster.snapshot.log import (
    HEADER_BYTES,
    SnapshotLog,
    cluster_mark,
    encode_header,
    encode_record,
)

_PIECE_BYTES = 256 << 10
"""Size of what is encoded at once, so that a large cluster takes no second copy in memory."""
_PAGE_BYTES = 4096


class LogWriter:
    """Keeps the log's file such that what was written once stays, whatever fails later.

    All methods raise OSError, and may be called again after that.
    """

    def __init__(self, path: Path, disk: Disk, compact_bytes: int, nothing: Known) -> None:
        """`compact_bytes`: a log that is shorter is never begun anew because of its length."""
        self.path = path
        self.known = nothing
        """What the log holds."""
        self._mark = cluster_mark(nothing.pinned)
        self._new = path.with_name(path.name + ".new")
        self._disk = disk
        self._fd: int | None = None
        """Descriptor of a log that can be gone on with; None: it has to be begun anew."""
        self._end = 0
        """What may lie behind it was never acknowledged; what comes next overwrites it."""
        self._last_group = (0, b"")
        """What was written last before the start, and where."""
        self._unsure = False
        """What a killed process did last may not be on the disk."""
        self._compact_bytes = self._compact_at_bytes = compact_bytes
        """Length from which on it may pay to do so."""

    def take_up(self, log: SnapshotLog, data: bytes, known: Known) -> None:
        """Goes on with the log that is in the file; one that is not in order is begun anew."""
        self.known = known
        self._unsure = True
        with suppress(OSError):
            self._disk.unlink(self._new)  # of an attempt that the power cut short
        if log.damage or log.torn:
            return
        with suppress(OSError):  # then the log is begun anew, which says what is wrong
            self._fd = self._disk.open(self.path)
        self._last_group = (log.last_group, data[log.last_group : log.end])
        self._end = log.end

    def take(self, batch: Collection[Document]) -> None:
        """`batch` is in the log, and all else that was."""
        if not (batch or self._unsure):
            return
        if self._fd is not None:
            self._append(self._fd, batch)
        else:
            self._start_over(batch)
        self.known = merge(self.known, batch)[0]

    def _append(self, fd: int, batch: Collection[Document]) -> None:
        if self._unsure:
            start, group = self._last_group
            self._disk.pwrite(fd, group, start)
            self._disk.fsync_folder(self.path.parent)
        end = self._write_records(fd, batch, self._end, synced=self._end)
        self._disk.fdatasync(fd)
        self._end = end
        self._unsure, self._last_group = False, (0, b"")

    def _start_over(self, batch: Collection[Document]) -> None:
        """The log holds nothing but the newest of everything."""
        try:
            end = self._write_new(merge(self.known, batch)[0])
        except OSError:
            with suppress(OSError):
                self._disk.unlink(self._new)
            raise
        if self._fd is not None:
            self._disk.close(self._fd)
            self._fd = None
        self._disk.rename(self._new, self.path)
        self._disk.fsync_folder(self.path.parent)
        self._fd = self._disk.open(self.path)
        self._end = end
        self._unsure = False
        self._compact_at_bytes = max(self._compact_bytes, 2 * end)

    def _write_new(self, documents: Iterable[Document]) -> int:
        """Its length, when it is on the disk."""
        self._disk.write(self._new, encode_header(self._mark))
        fd = self._disk.open(self._new)
        try:
            end = self._write_records(fd, documents, HEADER_BYTES, synced=0)
            self._disk.pwrite(fd, encode_header(self._mark, end), 0)
            self._disk.fdatasync(fd)
        finally:
            self._disk.close(fd)
        return end

    def _write_records(
        self, fd: int, documents: Iterable[Document], at: int, *, synced: int
    ) -> int:
        """Where they end."""
        piece = bytearray()
        for document in documents:
            piece += encode_record(document.sealed, synced)
            if len(piece) >= _PIECE_BYTES:
                self._disk.pwrite(fd, bytes(piece), at)
                at += len(piece)
                piece = bytearray()
        self._disk.pwrite(fd, bytes(piece), at)
        return at + len(piece)

    def shorten(self) -> None:
        """Begins the log anew when more than half of it was replaced by later documents."""
        if self._fd is None or self._end <= self._compact_at_bytes:
            return
        needed = HEADER_BYTES + sum(len(encode_record(each.sealed, 0)) for each in self.known)
        self._compact_at_bytes = max(self._compact_bytes, 2 * needed)
        if self._end > self._compact_at_bytes:
            self._start_over(())

    def close(self) -> None:
        if self._fd is not None:
            self._disk.close(self._fd)
            self._fd = None


def read_file(path: Path) -> bytes | None:
    """None: there is none. A page that the disk cannot read is zeros. Raises: OSError."""
    try:
        return read_regular(path, SNAPSHOT.most)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno != errno.EIO:
            raise
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        offsets = range(0, os.fstat(fd).st_size, _PAGE_BYTES)
        return b"".join(_read_page(fd, offset) for offset in offsets)
    finally:
        os.close(fd)


def _read_page(fd: int, offset: int) -> bytes:
    try:
        return os.pread(fd, _PAGE_BYTES, offset)
    except OSError:
        return bytes(_PAGE_BYTES)
