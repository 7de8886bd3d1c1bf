"""The durable half of a ledger: its journal, and the files of its folder behind it.

    change -> queue -> one record of the journal, one fdatasync -> futures complete
                       -> files of the folder, not synced, once nothing else is to be done
                       -> all of them synced -> a new base in the journal's other half

The files are never ahead of the journal, and the journal mentions an address until its files are
synced. So at any instant the files with the journal over them are the state after some change, and
not one older than the last that was acknowledged.

A change that cannot be written stays queued, in order, and is tried again with the next one and
every few seconds: what was done stays done in memory, and `durable` tells the truth about the disk
each time that it is called. An entry whose files cannot be written is carried from base to base.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from time import monotonic
from typing import NamedTuple

from limpet.base.disk import Disk, cause, refusals
from limpet.base.errors import StorageError
from limpet.ipam.folder import Folder
from limpet.ipam.hostlocal import encode_files, mark_name
from limpet.ipam.journal_codec import encode_entries
from limpet.ipam.journal_file import WHAT_TO_DO, JournalFile
from limpet.ipam.leases import FREE, Entry, Finding, address_of

_STEPS = 8
"""Operations on files between two looks at the queue: a change costs about four to be caught up."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """Sizes and times of a ledger; the defaults fit a node."""

    journal_bytes: int = 256 * 1024
    """Of a journal that is made; one that is there keeps its size."""
    settle_s: float = 0.05
    """Seconds without a change before the files are seen to, so that bursts go first."""
    retry_s: float = 5.0
    """Seconds between attempts to write what the disk refused."""
    lock_wait_s: float = 2.0
    """Seconds to wait for another process to give up the folder."""
    absent_pods: int = 2048
    """Absent pods for whom a range set keeps addresses: a wide IPv6 one never runs out of them."""


class Change(NamedTuple):
    """What one reservation or release did: new states of addresses, marks of range sets."""

    entries: Mapping[int, Entry]
    marks: Mapping[int, int]
    encoded: bytes


def make_change(entries: Mapping[int, Entry], marks: Mapping[int, int]) -> Change:
    return Change(entries, marks, encode_entries(entries, marks))


class Store:
    """Takes changes from one thread and brings them to the disk on another one, its own."""

    def __init__(self, folder: Folder, network: str, disk: Disk, tuning: Tuning) -> None:
        """Raises: StorageError if there is no good journal and none can be made."""
        self._path = folder.path
        self._network = network
        self._disk = disk
        self._tuning = tuning
        self._journal = JournalFile(folder, disk, tuning.journal_bytes)
        self._names = folder.names
        self._marks = dict(folder.marks)
        self._stale_marks: set[int] = set()
        self._refused_marks: set[int] = set()
        # An address is in at most one of these three; the files of all others are synced.
        self._unwritten = {number: folder.entries.get(number, FREE) for number in folder.stale}
        self._refused: dict[int, Entry] = {}
        self._written: dict[int, Entry] = {}
        self._checkpoint_wanted = bool(folder.stale)
        self._troubles: dict[int | str, Finding] = {}
        self._retry_at_s = 0.0
        self._stuck: StorageError | None = None
        self._broken: StorageError | None = None
        self._backlog: list[Change] = []

        self._lock = threading.Lock()  # guards the next four
        self._queue: list[Change] = []
        self._waiters: list[Future[None]] = []
        self._writing = False
        self._closed = False
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"ledger {network}", daemon=True)
        self._thread.start()

    # Called from the thread of the ledger.

    def append(self, change: Change, *, release: bool) -> None:
        """Queue a change; from now on it counts as done.

        Raises: StorageError, with nothing queued, if it is no release and there is no point in it:
        the disk refused what came before, or what is left of the journal is kept for releases.
        """
        with self._lock:
            error = None if release else self._objection(change)
            if error is None and not self._closed:
                self._queue.append(change)
                return
            self._wake.put(None)  # tries again what the disk refused
        raise (error or self._gone()).with_traceback(None)

    def _objection(self, change: Change) -> StorageError | None:
        size, journal = len(change.encoded), self._journal
        if size > journal.longest_change:
            problem = f"a record of {size} bytes is too long; are the names of the pod?"
            return StorageError("write", str(journal.path), problem)
        if self._broken is None and self._stuck is not None:
            queued = sum(len(queued.encoded) + 1 for queued in self._queue)
            left = journal.room - journal.kept_for_releases - queued
            return self._stuck if size > left else None
        return self._broken

    def durable(self) -> Future[None]:
        """Completes when every change queued so far is on the disk.

        Fails with StorageError, naming the file, when that cannot be done. The changes stay queued,
        and the next call tries again.
        """
        future: Future[None] = Future()
        with self._lock:
            done = not (self._queue or self._backlog or self._writing)
            if not done and not self._closed:
                self._waiters.append(future)
                self._wake.put(None)
                return future
        _tell(future, None if done else self._broken or self._gone())
        return future

    @property
    def refusal(self) -> StorageError | None:
        """Why the disk took no change the last time; None when it did."""
        return self._broken

    def findings(self) -> list[Finding]:
        """What the disk refuses at present: one file for each problem, and how many more."""
        alike: dict[tuple[str, str], list[Finding]] = {}
        for finding in list(self._troubles.values()):
            alike.setdefault((finding.problem, finding.action), []).append(finding)
        return [
            Finding(first.path, problem + f", and for {len(rest)} more" * bool(rest), action)
            for (problem, action), (first, *rest) in alike.items()
        ]

    def close(self) -> None:
        """Bring to the disk what it takes, leave the files as the whole truth, and end."""
        with self._lock:
            self._closed = True
            self._wake.put(None)
        self._thread.join()
        self._journal.close()

    def _gone(self) -> StorageError:
        return StorageError("write", str(self._journal.path), "the ledger is closed")

    # The store's own thread.

    def _run(self) -> None:
        try:
            while not self._closed:
                try:
                    self._wake.get(timeout=self._pause_s())
                except Empty:
                    self._commit()
                    self._tidy()
                    continue
                self._commit()
                if self._checkpoint_due():
                    self._tidy()
            self._commit()
            self._checkpoint_wanted |= not self._journal.clean
            self._retry_at_s = 0.0
            self._tidy()
        finally:
            with self._lock:
                self._closed = True
                waiters = self._waiters
            for waiter in waiters:
                if waiter.set_running_or_notify_cancel():
                    _tell(waiter, self._broken or self._gone())

    def _pause_s(self) -> float | None:
        """How long to wait for something to do before what can wait is done; None: for ever."""
        if self._unwritten or self._stale_marks or self._checkpoint_due():
            return self._tuning.settle_s
        if self._backlog or self._refused or self._refused_marks or self._stuck:
            return self._tuning.retry_s
        return None

    def _commit(self) -> None:
        """Bring what is queued to the journal, and tell who waits for it."""
        with self._lock:
            batch = self._backlog + self._queue
            waiters, self._waiters, self._queue = self._waiters, [], []
            self._writing = bool(batch)
        error: StorageError | None = self._gone()  # should this end in some other way
        try:
            while batch:
                group = self._group(batch)
                self._journal.append([change.encoded for change in group])
                del batch[: len(group)]
                for change in group:
                    self._note(change)
            error = None
        except StorageError as refusal:
            error = refusal
        finally:
            with self._lock:
                self._backlog, self._broken, self._writing = batch, error, False
            for waiter in waiters:
                if waiter.set_running_or_notify_cancel():
                    _tell(waiter, error)
        self._note_trouble("journal", error, "no pod can be added")

    def _group(self, batch: list[Change]) -> list[Change]:
        """As many of the first changes as fit; first begins the journal anew if it is time to."""
        size, journal = len(batch[0].encoded) + 1, self._journal
        if size > journal.room - journal.kept_for_releases and self._stuck is None:
            self._checkpoint_wanted = True
            while self._step():
                pass
        room = journal.room - (journal.kept_for_releases if self._stuck is None else 0)
        count = 0
        for change in batch:
            room -= len(change.encoded) + 1
            if room < 0:
                break
            count += 1
        if not count:
            full = StorageError("write", str(journal.path), "it is full")
            raise (self._stuck or full).with_traceback(None)
        return batch[:count]

    def _note(self, change: Change) -> None:
        """The change is durable; its files have to follow."""
        for number, entry in change.entries.items():
            self._refused.pop(number, None)
            self._written.pop(number, None)
            self._unwritten[number] = entry
        self._marks.update(change.marks)
        self._stale_marks.update(change.marks)

    def _tidy(self) -> None:
        """Do all that can wait, as long as nothing comes that cannot."""
        if monotonic() >= self._retry_at_s:
            self._unwritten.update(self._refused)
            self._refused.clear()
            self._stale_marks |= self._refused_marks
            self._refused_marks.clear()
            self._stuck = None
        steps = 0
        while self._step():
            steps += 1
            if self._waiters and steps % _STEPS == 0:
                self._commit()

    def _step(self) -> bool:
        """One operation on the files behind the journal; False: there is none to be done now."""
        if self._unwritten:
            self._write_files(*self._unwritten.popitem())
        elif self._stale_marks:
            self._write_mark(self._stale_marks.pop())
        elif not self._checkpoint_due():
            return False
        elif self._written:
            self._sync_files(*self._written.popitem())
        else:
            self._begin_anew()
        return True

    def _checkpoint_due(self) -> bool:
        return self._stuck is None and (self._checkpoint_wanted or self._journal.nearly_full)

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
            return
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
                content = str(address_of(self._marks[index])).encode()
                self._disk.write(self._path / mark_name(index), content)
        except StorageError as refusal:
            error = refusal
            self._refused_marks.add(index)
            self._retry_at_s = monotonic() + self._tuning.retry_s
        self._note_trouble(f"mark {index}", error, "nothing is lost, the journal has it")

    def _sync_files(self, number: int, entry: Entry) -> None:
        try:
            for name in encode_files(self._network, address_of(number), entry):
                with refusals("sync", self._path / name, WHAT_TO_DO):
                    self._disk.fsync(self._path / name)
        except StorageError as error:
            self._refuse(number, entry, error)

    def _refuse(self, number: int, entry: Entry, error: StorageError) -> None:
        self._refused[number] = entry
        self._retry_at_s = monotonic() + self._tuning.retry_s
        self._note_trouble(number, error, "nothing is lost, the journal has it")

    def _begin_anew(self) -> None:
        """Everything is in its files: sync the folder and leave the journal's present half."""
        self._checkpoint_wanted = False
        try:
            with refusals("sync folder", self._path, WHAT_TO_DO):
                self._disk.fsync_folder(self._path)
            carried = encode_entries(self._refused, self._marks)
            self._journal.begin_anew(carried, clean=not self._refused)
        except StorageError as error:
            self._stuck = error
            self._retry_at_s = monotonic() + self._tuning.retry_s
        self._note_trouble("checkpoint", self._stuck, "nothing is lost")

    def _note_trouble(self, key: int | str, error: StorageError | None, comfort: str) -> None:
        if error is None:
            self._troubles.pop(key, None)
        else:
            refusal = error.__cause__
            problem = cause(refusal) if isinstance(refusal, OSError) else str(error)
            self._troubles[key] = Finding(error.path, problem, f"{comfort}; {WHAT_TO_DO}")


def _tell(waiter: Future[None], error: StorageError | None) -> None:
    if error is None:
        waiter.set_result(None)
    else:
        waiter.set_exception(error)
