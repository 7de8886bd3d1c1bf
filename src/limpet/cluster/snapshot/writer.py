"""The snapshot's log in its file: read, appended to, begun anew. For one thread."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from limpet.base.disk import Disk
from limpet.cluster.documents import NodeEntry, Sealed
from limpet.cluster.merge import merge_entries
from limpet.cluster.snapshot.log import (
    HEADER_BYTES,
    SnapshotLog,
    encode_header,
    encode_network,
    encode_pair,
)

_PIECE_BYTES = 256 << 10
"""Of what is encoded at once, so that a large cluster takes no second copy in memory."""
_PAGE_BYTES = 4096


@dataclass(slots=True)
class Documents:
    """The newest of each that was put."""

    network: Sealed | None = None
    entries: dict[str, NodeEntry] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return self.network is not None or bool(self.entries)

    def add(self, network: Sealed | None, entries: Iterable[NodeEntry]) -> None:
        self.network = network or self.network
        for entry in entries:
            known = self.entries.get(entry.grant.uid)
            self.entries[entry.grant.uid] = merge_entries(known, entry) if known else entry

    def records(self, synced: int) -> Iterator[bytes]:
        if self.network is not None:
            yield encode_network(self.network, synced)
        for entry in self.entries.values():
            yield encode_pair((entry.sealed_grant, entry.sealed_presence), synced)

    def size_bytes(self) -> int:
        return sum(map(len, self.records(0)))


class LogWriter:
    """Keeps the log's file such that what was written once stays, whatever fails later.

    All methods raise OSError, and may be called again after that.
    """

    def __init__(self, path: Path, disk: Disk, anew_bytes: int) -> None:
        """`anew_bytes`: a log that is shorter is never begun anew because of its length."""
        self.known = Documents()
        """What the log holds."""
        self._path = path
        self._new = path.with_name(path.name + ".new")
        self._disk = disk
        self._fd: int | None = None
        """Of a log that can be gone on with; None: it has to be begun anew."""
        self._end = 0
        """What may lie behind it was never acknowledged; what comes next overwrites it."""
        self._last_group = (0, b"")
        """What was written last before the start, and where."""
        self._unsure = False
        """What a killed process did last may not be on the disk."""
        self._anew_bytes = self._anew_at = anew_bytes
        """Length from which on it may pay to do so."""

    def take_up(self, log: SnapshotLog, data: bytes, known: Documents) -> None:
        """Goes on with the log that is in the file; one that is not in order is begun anew."""
        self.known = known
        self._unsure = True
        with suppress(OSError):
            self._disk.unlink(self._new)  # of an attempt that the power cut short
        if log.damage or log.torn:
            return
        with suppress(OSError):  # then the log is begun anew, which says what is wrong
            self._fd = self._disk.open(self._path)
        self._last_group = (log.last_group, data[log.last_group : log.end])
        self._end = log.end

    def take(self, batch: Documents) -> None:
        """`batch` is in the log, and all else that was."""
        if not (batch or self._unsure):
            return
        if self._fd is not None:
            self._append(self._fd, batch)
        else:
            self._begin_anew(batch)
        self.known.add(batch.network, batch.entries.values())

    def _append(self, fd: int, batch: Documents) -> None:
        if self._unsure:
            start, group = self._last_group
            self._disk.pwrite(fd, group, start)
            self._disk.fsync_folder(self._path.parent)
        end = self._write_records(fd, batch, self._end, synced=self._end)
        self._disk.fdatasync(fd)
        self._end = end
        self._unsure, self._last_group = False, (0, b"")

    def _begin_anew(self, batch: Documents) -> None:
        """The log holds nothing but the newest of everything."""
        documents = Documents(self.known.network, dict(self.known.entries))
        documents.add(batch.network, batch.entries.values())
        try:
            end = self._write_new(documents)
        except OSError:
            with suppress(OSError):
                self._disk.unlink(self._new)
            raise
        if self._fd is not None:
            self._disk.close(self._fd)
            self._fd = None
        self._disk.rename(self._new, self._path)
        self._disk.fsync_folder(self._path.parent)
        self._fd = self._disk.open(self._path)
        self._end = end
        self._unsure = False
        self._anew_at = max(self._anew_bytes, 2 * end)

    def _write_new(self, documents: Documents) -> int:
        """Its length, when it is on the disk."""
        self._disk.write(self._new, encode_header())
        fd = self._disk.open(self._new)
        try:
            end = self._write_records(fd, documents, HEADER_BYTES, synced=0)
            self._disk.pwrite(fd, encode_header(end), 0)
            self._disk.fdatasync(fd)
        finally:
            self._disk.close(fd)
        return end

    def _write_records(self, fd: int, documents: Documents, at: int, *, synced: int) -> int:
        """Where they end."""
        piece = bytearray()
        for record in documents.records(synced):
            piece += record
            if len(piece) >= _PIECE_BYTES:
                self._disk.pwrite(fd, bytes(piece), at)
                at += len(piece)
                piece = bytearray()
        self._disk.pwrite(fd, bytes(piece), at)
        return at + len(piece)

    def shorten(self) -> None:
        """Begins the log anew when more than half of it was replaced by later documents."""
        if self._fd is None or self._end <= self._anew_at:
            return
        needed = HEADER_BYTES + self.known.size_bytes()
        self._anew_at = max(self._anew_bytes, 2 * needed)
        if self._end > self._anew_at:
            self._begin_anew(Documents())

    def close(self) -> None:
        if self._fd is not None:
            self._disk.close(self._fd)
            self._fd = None


def read_file(path: Path) -> bytes | None:
    """None: there is none. A page that the disk cannot read is zeros. Raises: OSError."""
    try:
        return path.read_bytes()
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
