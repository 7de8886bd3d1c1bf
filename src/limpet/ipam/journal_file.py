"""The journal's file: opened or made, appended to, begun anew."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from limpet.base.disk import Disk, cause, refusals
from limpet.base.errors import StorageError
from limpet.base.records.codec import HEADER_BYTES
from limpet.ipam.folder import Folder
from limpet.ipam.hostlocal import DAMAGED_JOURNAL, JOURNAL, NEW_JOURNAL
from limpet.ipam.journal_codec import Journal, encode_base, encode_change, encode_entries
from limpet.ipam.leases import FileFinding

WHAT_TO_DO = "free space on this file system or check the disk; it is tried again by itself"


class JournalFile:
    """All methods raise StorageError, and may be called again after that."""

    def __init__(self, folder: Folder, disk: Disk, new_bytes: int) -> None:
        """Open the journal that `folder` was read with.

        One that is missing, or damaged (a copy is kept), is made anew with all that it said.
        """
        self.path = folder.path / JOURNAL
        self._folder = folder.path
        self._disk = disk
        state = folder.journal
        self._number = state.next_number if state else 1
        self.clean = not (state and state.entries)
        """True: it says nothing that the files don't."""
        with suppress(OSError):
            disk.unlink(folder.path / NEW_JOURNAL)  # of an attempt that the power cut short
        if state and not state.damage:
            self._half = len(folder.journal_data) // 2
            self._begin = self._half if state.end > self._half else 0
            self._end = state.end
        else:
            if folder.journal_data:
                self._keep_damaged(folder)
            self._make(state or Journal(), new_bytes)
        with refusals("open", self.path, WHAT_TO_DO):
            self._fd = disk.open(self.path)
        # What a killed process wrote last may never have reached the disk, or failed to.
        if state and not state.damage:
            try:
                self._write(folder.journal_data[self._begin : self._end], self._begin)
            except StorageError:
                self.close()
                raise

    @property
    def longest_change(self) -> int:
        """Bytes of the longest change that is accepted."""
        return self._half // 8

    @property
    def room(self) -> int:
        """Bytes that the changes of one more record may have, each with one for its separator."""
        return self._begin + self._half - self._end - HEADER_BYTES - 1

    @property
    def kept_for_releases(self) -> int:
        """The part of the room that reservations leave alone when the journal cannot begin anew."""
        return self._half // 4

    @property
    def nearly_full(self) -> bool:
        return self._end - self._begin > self._half // 2

    def append(self, changes: Sequence[bytes]) -> None:
        """Bring `changes` to the disk, all or none; they must fit the room."""
        record = encode_change(self._number, changes)
        self._write(record, self._end)
        self._number += 1
        self._end += len(record)
        self.clean = False

    def start_over(self, carried: bytes, *, clean: bool) -> None:
        """Go on in the other half, with nothing but `carried`; or, at a failure, where it was."""
        base = encode_base(self._number, carried, 2 * self._half)
        if len(base) > self._half * 3 // 8:
            cause = (
                f"too little room for {len(base)} bytes of entries whose files cannot be written"
            )
            raise StorageError("begin anew", str(self.path), cause, hint=WHAT_TO_DO)
        begin = self._half - self._begin
        self._write(base, begin)
        self._number += 1
        self._begin, self._end = begin, begin + len(base)
        self.clean = clean

    def close(self) -> None:
        self._disk.close(self._fd)

    def _write(self, record: bytes, offset: int) -> None:
        with refusals("write", self.path, WHAT_TO_DO):
            self._disk.pwrite(self._fd, record, offset)
            self._disk.fdatasync(self._fd)

    def _make(self, state: Journal, wanted_bytes: int) -> None:
        carried = encode_entries(state.entries, state.marks)
        self._half = max(wanted_bytes // 2, 4 * len(carried))
        base = encode_base(self._number, carried, 2 * self._half)
        new = self._folder / NEW_JOURNAL
        with refusals(f"make a journal of {2 * self._half} bytes,", new, WHAT_TO_DO):
            self._disk.replace(self.path, base.ljust(2 * self._half, b"\0"), new)
        self._number += 1
        self._begin, self._end = 0, len(base)

    def _keep_damaged(self, folder: Folder) -> None:
        copy = self._folder / f"{DAMAGED_JOURNAL}{folder.damaged_journals + 1}"
        problem = "is a copy of the damaged journal"
        try:
            self._disk.write(copy, folder.journal_data)
        except OSError as error:
            problem = f"could not be written as a copy of the damaged journal: {cause(error)}"
        folder.findings.append(FileFinding(str(copy), problem, "remove it when nobody needs it"))
