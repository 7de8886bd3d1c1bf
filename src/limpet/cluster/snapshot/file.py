"""The snapshot on disk: a log of sealed documents, fsynced, begun anew when it has grown.

`own.log` beside it holds once more what the node cannot start without: the documents that others
are checked with, and those that the cluster has signed for this node. Without the others' it waits
for its neighbours, without its own it has no addresses. Policies and tombstones are there too: who
has lost one lets in whom it must not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from limpet.base import faults
from limpet.base.disk import Disk
from limpet.base.errors import StorageError
from limpet.base.records.codec import NewerRecordError
from limpet.cluster.documents import Document, Key, Known, kept_twice
from limpet.cluster.keys import SealError
from limpet.cluster.kinds import KINDS
from limpet.cluster.merge import Changes, merge
from limpet.cluster.seal import check, read_sealed
from limpet.cluster.snapshot import completeness
from limpet.cluster.snapshot.log import SnapshotLog, cluster_mark, parse_log
from limpet.cluster.snapshot.writer import LogWriter, read_file

OWN_NAME = "own.log"
_RETRY_S = 5.0
_COMPACT_BYTES = 1 << 20
_WHAT_TO_DO = "free space on this file system or check the disk; it is tried again by itself"


@dataclass(slots=True)
class _Inbox:
    """What other threads have left for the file's own."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    """Guards the others."""
    pending: dict[Key, Document] = field(default_factory=dict)
    busy: bool = True
    """Something is being written, or what was read is not known to be on the disk."""
    told: list[Future[None]] = field(default_factory=list)
    waiters: list[Future[None]] = field(default_factory=list)
    all_told: bool = False
    """With what is here or on the disk already nothing of the cluster is missing."""
    closed: bool = False

    def add(self, documents: Iterable[Document]) -> None:
        for document in documents:
            if document.is_newer(self.pending.get(document.key)):
                self.pending[document.key] = document

    def is_asked(self) -> bool:
        """What the disk has refused waits for its time, unless somebody asks."""
        return self.closed or bool(self.told or self.waiters)


class SnapshotFile:
    """Written by a thread of its own, many documents with one fdatasync."""

    def __init__(
        self,
        path: Path,
        *,
        own_uid: str,
        disk: Disk | None = None,
        retry_s: float = _RETRY_S,
        compact_bytes: int = _COMPACT_BYTES,
        is_joined: bool = False,
    ) -> None:
        """Reads the file; nothing is written before `read` has returned.

        `compact_bytes`: a log that is shorter is never begun anew because of its length.
        `is_joined`: the node has joined, so there was a log.
        Raises: StorageError if it cannot be read, or is of a later Limpet.
        """
        self._path = path
        self._own_uid = own_uid
        self._disk = disk or Disk()
        self._retry_s = retry_s
        self._compact_bytes = compact_bytes
        self._found = _load(path)
        self._writers: list[LogWriter] = []
        """Writers of the log, and of the node's own."""
        self._compact_at_s = 0.0
        """When it may be tried to begin the log anew."""
        self._troubles: Mapping[str, StorageError] = {}
        """By what was to be done; another mapping after each change."""
        self._doubt = completeness.Doubt(path.parent)
        if is_joined and self._found is None and not path.with_name(OWN_NAME).exists():
            self._doubt.begin()
        self._inbox = _Inbox()
        self._thread = threading.Thread(target=self._run, name="snapshot", daemon=True)

    # What is on the disk

    def read(self, pinned_key: bytes) -> tuple[Known, list[str]]:
        """What it holds, and what of it is damaged, in words. Called once, before all else.

        Signatures were checked before they were written, and nobody else writes here; only what
        was checked with another key than `pinned_key`, or nobody knows with which, is doubted.
        """
        nothing, problems = Known(KINDS, pinned_key), []
        own_path = self._path.with_name(OWN_NAME)
        try:
            found_own = _load(own_path)
        except StorageError as error:
            found_own = None
            problems.append(str(error))
        known, damage = self._take_up(self._path, self._found, nothing)
        if is_damaged := bool(damage):
            problems.insert(0, self._keep_damaged(damage, known))
        own, damage = self._take_up(own_path, found_own, nothing)
        # What stands at its end may have been there as well, and be gone in both.
        own_is_whole = found_own is not None and found_own[0].whole and not damage
        if damage:
            problems.append(f"{own_path}: {damage} (it is made again)")
        if self._found is None and self._doubt.is_there and not own_path.exists():
            problems.append(f"{self._path} and {OWN_NAME} are gone: what they held is told anew")
        lags = self._doubt.second_lags or self._news_for(own, known)
        is_lost = is_damaged or (self._found is None and own_path.exists())
        if is_lost and (lags or not own_is_whole):
            self._doubt.begin()
        of_log = known
        known, lost = merge(known, own)
        if lost and self._found is not None and not is_damaged:
            # What was there twice was on the disk here before: the power cannot have cut it.
            said = f"its end is damaged, and {OWN_NAME} has {len(lost)} documents that it has lost"
            problems.insert(0, self._keep_damaged(said, of_log))
        self._inbox.add(found for key in lost if (found := known.find(key)) is not None)
        self._found = None
        self._thread.start()
        return known, problems

    def _take_up(
        self, path: Path, found: tuple[SnapshotLog, bytes] | None, nothing: Known
    ) -> tuple[Known, str]:
        """What the log says, and what is wrong with it; its writer goes on with it."""
        writer = LogWriter(path, self._disk, self._compact_bytes, nothing)
        self._writers.append(writer)
        if found is None:
            return nothing, ""
        log, data = found
        known, bad = _open_documents(log, nothing)
        if bad and not log.damage:
            log.damage = f"{len(bad)} documents do not count, the first: {bad[0]}"
        writer.take_up(log, data, known)
        return known, log.damage

    def _news_for(self, own: Known, known: Known) -> list[Document]:
        """What is to be kept twice and is not in the node's own log yet."""
        needed = kept_twice(known, self._own_uid)
        return [each for each in needed if each.is_newer(own.find(each.key))]

    @property
    def is_doubted(self) -> bool:
        """Once it was read: what it held then may not be all that the cluster had to say."""
        return self._doubt.is_there

    def _keep_damaged(self, damage: str, known: Known) -> str:
        number = 1
        while (copy := self._path.with_name(f"{self._path.name}.damaged-{number}")).exists():
            number += 1
        kept = f"the damaged file is kept as {copy.name}, remove it when nobody needs it"
        try:
            self._disk.write(copy, self._found[1] if self._found else b"")
        except OSError as error:
            kept = f"no copy could be kept as {copy.name}: {error.strerror or error}"
            with suppress(OSError):
                self._disk.unlink(copy)
        return (
            f"{self._path}: {damage}; {sum(1 for _ in known)} documents could be read, the others "
            f"are told anew by neighbours and the cloud ({kept})"
        )

    @property
    def folder(self) -> Path:
        return self._path.parent

    # Called from any thread

    def put(self, documents: Iterable[Document]) -> Future[None]:
        """Done when they are on disk, or the disk has refused them. Raises nothing.

        What was refused is kept and tried again; `trouble` and `durable` say so.
        """
        future: Future[None] = Future()
        inbox = self._inbox
        with inbox.changed:
            inbox.add(documents)
            if inbox.closed:
                future.set_result(None)
            else:
                inbox.told.append(future)
                inbox.changed.notify()
        return future

    def durable(self) -> Future[None]:
        """Done when all that was put is on disk; StorageError when it can't be.

        What the disk has refused is tried again first.
        """
        future: Future[None] = Future()
        inbox = self._inbox
        with inbox.changed:
            if not (inbox.pending or inbox.busy):
                future.set_result(None)
            elif inbox.closed:
                why = self.trouble or "it is closed"
                future.set_exception(StorageError("write", str(self._path), why))
            else:
                inbox.waiters.append(future)
                inbox.changed.notify()
        return future

    def settle(self) -> Future[None]:
        """As `durable`, after all was told: once that is on disk, no doubt is left there.

        Whether somebody waits for it or not, and also where the disk refuses it at first.
        """
        with self._inbox.changed:  # of one piece: what is written just now may not know it
            self._inbox.all_told = self._inbox.busy = True
            return self.durable()

    @property
    def trouble(self) -> str:
        """Why it cannot be written now; empty: it can."""
        return next(map(str, self._troubles.values()), "")

    def close(self) -> None:
        """Brings to the disk what it takes, and ends."""
        with self._inbox.changed:
            self._inbox.closed = True
            self._inbox.changed.notify()
        if self._thread.ident is not None:
            self._thread.join()

    # The file's own thread

    def _run(self) -> None:
        closing = self._pass()
        while not closing:
            with self._inbox.changed:
                self._inbox.changed.wait_for(self._inbox.is_asked, timeout=self._pause_s())
            closing = self._pass()
        for writer in self._writers:
            writer.close()

    def _pause_s(self) -> float | None:
        return self._retry_s if self._troubles else None

    def _pass(self) -> bool:
        """Writes what there is to write; True: it was the last time."""
        inbox = self._inbox
        with inbox.changed:
            closing = inbox.closed
            batch, inbox.pending = inbox.pending, {}
            told, inbox.told = inbox.told, []
            waiters, inbox.waiters = inbox.waiters, []
            inbox.busy, all_told = True, inbox.all_told
        log, _own = self._writers
        error = self._attempt("write", log, lambda: self._write(log, batch.values(), all_told))
        with inbox.changed:
            inbox.busy = error is not None
            if error is not None:
                later, inbox.pending = inbox.pending, batch
                inbox.add(later.values())
        for future in told:
            _tell(future, None)
        for future in waiters:
            _tell(future, error)
        if error is None:
            self._tidy()
        return closing

    def _write(self, log: LogWriter, batch: Collection[Document], all_told: bool) -> None:
        """Raises: OSError, StorageError."""
        self._doubt.keep()
        log.take(batch)
        if all_told:
            self._doubt.end()

    def _tidy(self) -> None:
        """What nobody waits for."""
        log, own = self._writers
        news = self._news_for(own.known, log.known)
        refused = self._attempt("write", own, lambda: own.take(news))
        self._doubt.note_lag(refused is not None)
        if monotonic() < self._compact_at_s:
            return
        for writer in self._writers:
            if self._attempt("begin anew", writer, writer.shorten) is not None:
                self._compact_at_s = monotonic() + self._retry_s

    def _attempt(self, what: str, writer: LogWriter, do: Callable[[], None]) -> StorageError | None:
        path, key = writer.path, f"{what} {writer.path}"
        try:
            do()
        except OSError as error:
            cause = error.strerror or str(error)
            refusal = StorageError(what, str(path), cause, hint=_WHAT_TO_DO)
            self._troubles = {**self._troubles, key: refusal}
        except StorageError as refusal:
            self._troubles = {**self._troubles, key: refusal}
        except Exception as error:  # noqa: BLE001 - without this thread nothing would be kept at all
            faults.note("snapshot on the disk", error)
            cause = f"internal error: {error!r} (see the agent's log)"
            self._troubles = {**self._troubles, key: StorageError(what, str(path), cause)}
        else:
            self._troubles = {each: why for each, why in self._troubles.items() if each != key}
        return self._troubles.get(key)


def _tell(future: Future[None], error: StorageError | None) -> None:
    if not future.set_running_or_notify_cancel():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def read_documents(path: Path, pinned_key: bytes) -> tuple[Known, Known]:
    """Nothing, and what a log holds; nothing is repaired or written. Raises: StorageError."""
    nothing, found = Known(KINDS, pinned_key), _load(path)
    return nothing, nothing if found is None else _open_documents(found[0], nothing)[0]


def _load(path: Path) -> tuple[SnapshotLog, bytes] | None:
    """None: there is no such file. Raises: StorageError."""
    try:
        data = read_file(path)
        return None if data is None else (parse_log(data), data)
    except OSError as error:
        raise StorageError("read", str(path), error.strerror or str(error)) from error
    except NewerRecordError as error:
        hint = "install the later Limpet again, or move the file away: the cluster tells everything"
        raise StorageError("read", str(path), str(error), hint=f"{hint} anew") from error


def _open_documents(log: SnapshotLog, nothing: Known) -> tuple[Known, list[SealError]]:
    """The newest of everything in the log, and what of it does not count."""
    bad: list[SealError] = []
    doubted = log.mark != cluster_mark(nothing.pinned)
    changes, kinds = Changes(nothing), nothing.kinds
    for sealed in sorted(log.documents, key=lambda each: kinds.order(each.kind)):
        if kinds.get(sealed.kind) is None:
            continue  # of a later Limpet that was here: the cluster tells it anew
        try:
            document = read_sealed(sealed, kinds)
            if doubted and changes.is_news(document):
                check(document, changes)
            changes.take(document)
        except SealError as error:
            bad.append(error)
    return changes.finish()[0], bad
