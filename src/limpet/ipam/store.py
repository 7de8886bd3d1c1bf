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
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from time import monotonic
from typing import NamedTuple

from limpet.base.disk import Disk
from limpet.base.errors import StorageError
from limpet.ipam.entry_files import EntryFiles
from limpet.ipam.folder import Folder
from limpet.ipam.journal_codec import encode_entries
from limpet.ipam.journal_file import JournalFile
from limpet.ipam.leases import Entry, FileFinding

_STEPS = 8
"""Operations on files between two looks at the queue: a change costs about four to be caught up."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """Sizes and times of a ledger; the defaults fit a node."""

    journal_bytes: int = 256 * 1024
    """Size of a journal that is made; one that is there keeps its size."""
    settle_s: float = 0.05
    """Seconds without a change before the files are seen to, so that bursts go first."""
    retry_s: float = 5.0
    """Seconds between attempts to write what the disk refused."""
    lock_wait_s: float = 2.0
    """Seconds to wait for another process to give up the folder."""
    absent_pods: int = 2048
    """Absent pods for whom a range set keeps addresses: a wide IPv6 one never runs out of them."""


class LedgerChange(NamedTuple):
    """What one reservation or release did: new states of addresses, marks of range sets."""

    entries: Mapping[int, Entry]
    marks: Mapping[int, int]
    encoded: bytes


@dataclass(slots=True)
class _Inbox:
    """What the thread of the ledger has left for the store's own."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    """Guards the next four."""
    changes: list[LedgerChange] = field(default_factory=list)
    waiters: list[Future[None]] = field(default_factory=list)
    writing: bool = False
    closed: bool = False
    wake: SimpleQueue[None] = field(default_factory=SimpleQueue)


class LedgerStore:
    """Takes changes from one thread and brings them to the disk on another one, its own."""

    def __init__(self, folder: Folder, network: str, disk: Disk, tuning: Tuning) -> None:
        """Raises: StorageError if there is no good journal and none can be made."""
        self._tuning = tuning
        self._journal = JournalFile(folder, disk, tuning.journal_bytes)
        self._files = EntryFiles(folder, network, disk)
        self._checkpoint_wanted = self._files.behind
        self._retry_at_s = 0.0
        self._stuck: StorageError | None = None
        self._broken: StorageError | None = None
        self._backlog: list[LedgerChange] = []
        self._inbox = _Inbox()
        self._thread = threading.Thread(target=self._run, name=f"ledger {network}", daemon=True)
        self._thread.start()

    # Called from the thread of the ledger.

    def append(
        self, entries: Mapping[int, Entry], marks: Mapping[int, int], *, release: bool
    ) -> None:
        """Queue a change; from now on it counts as done.

        Raises: StorageError, with nothing queued, if it is no release and there is no point in it:
        the disk refused what came before, or what is left of the journal is kept for releases.
        """
        change = LedgerChange(entries, marks, encode_entries(entries, marks))
        with self._inbox.lock:
            error = None if release else self._objection(change)
            if error is None and not self._inbox.closed:
                self._inbox.changes.append(change)
                return
            self._inbox.wake.put(None)  # tries again what the disk refused
        raise (error or self._gone()).with_traceback(None)

    def _objection(self, change: LedgerChange) -> StorageError | None:
        size, journal = len(change.encoded), self._journal
        if size > journal.longest_change:
            problem = f"a record of {size} bytes is too long; are the names of the pod?"
            return StorageError("write", str(journal.path), problem)
        if self._broken is None and self._stuck is not None:
            queued = sum(len(queued.encoded) + 1 for queued in self._inbox.changes)
            left = journal.room - journal.kept_for_releases - queued
            return self._stuck if size > left else None
        return self._broken

    def durable(self) -> Future[None]:
        """Completes when every change queued so far is on the disk.

        Fails with StorageError, naming the file, when that cannot be done. The changes stay queued,
        and the next call tries again.
        """
        future: Future[None] = Future()
        with self._inbox.lock:
            done = not (self._inbox.changes or self._backlog or self._inbox.writing)
            if not done and not self._inbox.closed:
                self._inbox.waiters.append(future)
                self._inbox.wake.put(None)
                return future
        _tell(future, None if done else self._broken or self._gone())
        return future

    @property
    def refusal(self) -> StorageError | None:
        """Why the disk took no change the last time; None when it did."""
        return self._broken

    def findings(self) -> list[FileFinding]:
        """What the disk refuses at present: one file for each problem, and how many more."""
        return self._files.findings()

    def close(self) -> None:
        """Bring to the disk what it takes, leave the files as the whole truth, and end."""
        with self._inbox.lock:
            self._inbox.closed = True
            self._inbox.wake.put(None)
        self._thread.join()
        self._journal.close()

    def _gone(self) -> StorageError:
        return StorageError("write", str(self._journal.path), "the ledger is closed")

    # The store's own thread.

    def _run(self) -> None:
        try:
            while not self._inbox.closed:
                try:
                    self._inbox.wake.get(timeout=self._pause_s())
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
            with self._inbox.lock:
                self._inbox.closed = True
                waiters = self._inbox.waiters
            for waiter in waiters:
                if waiter.set_running_or_notify_cancel():
                    _tell(waiter, self._broken or self._gone())

    def _pause_s(self) -> float | None:
        """How long to wait for something to do before what can wait is done; None: for ever."""
        if self._files.behind or self._checkpoint_due():
            return self._tuning.settle_s
        if self._backlog or self._files.has_refused or self._stuck:
            return self._tuning.retry_s
        return None

    def _commit(self) -> None:
        """Bring what is queued to the journal, and tell who waits for it."""
        with self._inbox.lock:
            batch = self._backlog + self._inbox.changes
            waiters, self._inbox.waiters, self._inbox.changes = self._inbox.waiters, [], []
            self._inbox.writing = bool(batch)
        error: StorageError | None = self._gone()  # should this end in some other way
        try:
            while batch:
                group = self._group(batch)
                self._journal.append([change.encoded for change in group])
                del batch[: len(group)]
                for change in group:
                    self._files.note(change.entries, change.marks)
            error = None
        except StorageError as refusal:
            error = refusal
        finally:
            with self._inbox.lock:
                self._backlog, self._broken, self._inbox.writing = batch, error, False
            for waiter in waiters:
                if waiter.set_running_or_notify_cancel():
                    _tell(waiter, error)
        self._files.note_trouble("journal", error, "no pod can be added")

    def _group(self, batch: list[LedgerChange]) -> list[LedgerChange]:
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

    def _tidy(self) -> None:
        """Do all that can wait, as long as nothing comes that cannot."""
        if monotonic() >= self._retry_at_s:
            self._files.try_again()
            self._stuck = None
        steps = 0
        while self._step():
            steps += 1
            if self._inbox.waiters and steps % _STEPS == 0:
                self._commit()

    def _step(self) -> bool:
        """One operation on the files behind the journal; False: there is none to be done now."""
        try:
            if self._files.write_one():
                return True
            if not self._checkpoint_due():
                return False
            if not self._files.sync_one():
                self._start_over()
        except StorageError:  # noted
            self._retry_at_s = monotonic() + self._tuning.retry_s
        return True

    def _checkpoint_due(self) -> bool:
        return self._stuck is None and (self._checkpoint_wanted or self._journal.nearly_full)

    def _start_over(self) -> None:
        """Everything is in its files: sync the folder and leave the journal's present half."""
        self._checkpoint_wanted = False
        try:
            self._files.sync_folder()
            carried = encode_entries(self._files.refused, self._files.marks)
            self._journal.start_over(carried, clean=not self._files.refused)
        except StorageError as error:
            self._stuck = error
            self._retry_at_s = monotonic() + self._tuning.retry_s
        self._files.note_trouble("checkpoint", self._stuck, "nothing is lost")


def _tell(waiter: Future[None], error: StorageError | None) -> None:
    if error is None:
        waiter.set_result(None)
    else:
        waiter.set_exception(error)
