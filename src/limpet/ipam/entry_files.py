"""Files of a ledger's folder, brought behind its journal one operation at a time."""

from __future__ import annotations

from collections.abc import Mapping

from limpet.base.disk import Disk, cause, refusals
from limpet.base.errors import StorageError
from limpet.ipam.folder import Folder
from limpet.ipam.hostlocal import encode_files, mark_name
from limpet.ipam.journal_file import WHAT_TO_DO
from limpet.ipam.leases import FREE, Entry, FileFinding, address_of


class EntryFiles:
    """What of the folder is not yet as the journal says, and what the disk refuses."""

    def __init__(self, folder: Folder, network: str, disk: Disk) -> None:
        self._path = folder.path
        self._network = network
        self._disk = disk
        self._names = folder.names
        self.marks = dict(folder.marks)
        self._stale_marks: set[int] = set()
        self._refused_marks: set[int] = set()
        # An address is in at most one of these three; the files of all others are synced.
        self._unwritten = {number: folder.entries.get(number, FREE) for number in folder.stale}
        self.refused: dict[int, Entry] = {}
        self._written: dict[int, Entry] = {}
        self._troubles: dict[int | str, FileFinding] = {}

    @property
    def behind(self) -> bool:
        """There is something to write now."""
        return bool(self._unwritten or self._stale_marks)

    @property
    def has_refused(self) -> bool:
        return bool(self.refused or self._refused_marks)

    def note(self, entries: Mapping[int, Entry], marks: Mapping[int, int]) -> None:
        """These are durable in the journal; their files have to follow."""
        for number, entry in entries.items():
            self.refused.pop(number, None)
            self._written.pop(number, None)
            self._unwritten[number] = entry
        self.marks.update(marks)
        self._stale_marks.update(marks)

    def try_again(self) -> None:
        """What the disk refused is to be written once more."""
        self._unwritten.update(self.refused)
        self.refused.clear()
        self._stale_marks |= self._refused_marks
        self._refused_marks.clear()

    def write_one(self) -> bool:
        """False: everything is written. Raises: StorageError, which is noted."""
        if self._unwritten:
            self._write_files(*self._unwritten.popitem())
        elif self._stale_marks:
            self._write_mark(self._stale_marks.pop())
        else:
            return False
        return True

    def sync_one(self) -> bool:
        """False: all that was written is synced. Raises: StorageError, which is noted."""
        if not self._written:
            return False
        number, entry = self._written.popitem()
        try:
            for name in encode_files(self._network, address_of(number), entry):
                with refusals("sync", self._path / name, WHAT_TO_DO):
                    self._disk.fsync(self._path / name)
        except StorageError as error:
            self._refuse(number, entry, error)
            raise
        return True

    def sync_folder(self) -> None:
        """Raises: StorageError."""
        with refusals("sync folder", self._path, WHAT_TO_DO):
            self._disk.fsync_folder(self._path)

    def findings(self) -> list[FileFinding]:
        """What the disk refuses at present: one file for each problem, and how many more."""
        alike: dict[tuple[str, str], list[FileFinding]] = {}
        for finding in list(self._troubles.values()):
            alike.setdefault((finding.problem, finding.action), []).append(finding)
        return [
            FileFinding(first.path, problem + f", and for {len(rest)} more" * bool(rest), action)
            for (problem, action), (first, *rest) in alike.items()
        ]

    def note_trouble(self, key: int | str, error: StorageError | None, comfort: str) -> None:
        if error is None:
            self._troubles.pop(key, None)
        else:
            refusal = error.__cause__
            problem = cause(refusal) if isinstance(refusal, OSError) else str(error)
            self._troubles[key] = FileFinding(error.path, problem, f"{comfort}; {WHAT_TO_DO}")

    def _write_files(self, number: int, entry: Entry) -> None:
        """Make the files about an address say what `entry` says, and no others be there."""
        files = encode_files(self._network, address_of(number), entry)
        names = self._names.pop(number, set())
        self._names[number] = names | files.keys()
        try:
            for name, content in files.items():
                with refusals("write", self._path / name, WHAT_TO_DO):
                    self._disk.write(self._path / name, content)
            for name in names - files.keys():
                with refusals("remove", self._path / name, WHAT_TO_DO):
                    self._disk.unlink(self._path / name)
        except StorageError as error:
            self._refuse(number, entry, error)
            raise
        self._written[number] = entry
        if files:
            self._names[number] = set(files)
        else:
            del self._names[number]
        self._troubles.pop(number, None)

    def _write_mark(self, index: int) -> None:
        """For host-local, should it come back; the journal has it in any case."""
        error = None
        try:
            with refusals("write", self._path / mark_name(index), WHAT_TO_DO):
                content = str(address_of(self.marks[index])).encode()
                self._disk.write(self._path / mark_name(index), content)
        except StorageError as refusal:
            error = refusal
            self._refused_marks.add(index)
            raise
        finally:
            self.note_trouble(f"mark {index}", error, "nothing is lost, the journal has it")

    def _refuse(self, number: int, entry: Entry, error: StorageError) -> None:
        self.refused[number] = entry
        self.note_trouble(number, error, "nothing is lost, the journal has it")
