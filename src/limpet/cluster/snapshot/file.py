"""The snapshot on disk: a log of sealed documents, fsynced, begun anew when it has grown.

`own.json` beside it holds the network and the node's own grant once more: without the others'
documents a node waits for its neighbours, without its own grant it has no addresses.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from time import monotonic

from limpet.base import faults
from limpet.base.disk import Disk
from limpet.base.errors import StorageError
from limpet.cluster.documents import NodeEntry, Sealed, Snapshot
from limpet.cluster.merge import merge_snapshots
from limpet.cluster.seal import (
    SealError,
    decode_snapshot,
    encode_snapshot,
    make_entry,
    open_network,
    parse_entry,
    trusted_keys,
)
from limpet.cluster.snapshot.log import NewerLogError, SnapshotLog, parse_log
from limpet.cluster.snapshot.writer import Documents, LogWriter, read_file

_RETRY_S = 5.0
_ANEW_BYTES = 1 << 20
_WHAT_TO_DO = "free space on this file system or check the disk; it is tried again by itself"


class SnapshotFile:
    """Written by a thread of its own, many documents with one fdatasync."""

    def __init__(
        self,
        path: Path,
        *,
        own_uid: str,
        disk: Disk | None = None,
        retry_s: float = _RETRY_S,
        anew_bytes: int = _ANEW_BYTES,
    ) -> None:
        """Reads the file; nothing is written before `read` has returned.

        `anew_bytes`: a log that is shorter is never begun anew because of its length.
        Raises: StorageError if it cannot be read, or is of a later Limpet.
        """
        self._path = path
        self._own_path = path.with_name("own.json")
        self._own_uid = own_uid
        self._disk = disk or Disk()
        self._retry_s = retry_s
        try:
            self._found: bytes | None = read_file(path)
            self._log = parse_log(self._found) if self._found is not None else SnapshotLog()
        except OSError as error:
            raise StorageError("read", str(path), error.strerror or str(error)) from error
        except NewerLogError as error:
            raise StorageError("read", str(path), str(error)) from error
        self._writer = LogWriter(path, self._disk, anew_bytes)
        self._anew_at_s = 0.0
        """When it may be tried to begin the log anew."""
        self._own_text = b""
        """What `own.json` holds."""
        self._troubles: dict[str, StorageError] = {}
        """By what was to be done."""
        self._trouble = ""

        self._changed = threading.Condition()  # guards the next five
        self._pending = Documents()
        self._busy = True
        """Something is being written, or what was read is not known to be on the disk."""
        self._told: list[Future[None]] = []
        self._waiters: list[Future[None]] = []
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="snapshot", daemon=True)

    # What is on the disk

    def read(self, pinned_key: bytes) -> tuple[Snapshot, list[str]]:
        """What it holds, and what of it is damaged, in words. Called once, before all else.

        Signatures were checked before they were written, and nobody else writes here; only where
        the network is not signed as `pinned_key` demands is every other document doubted too.
        """
        log, self._log = self._log, SnapshotLog()
        own, own_problem = self._read_own(pinned_key)
        trusted = trusted_keys(pinned_key, own.network.keys if own.network else ())
        snapshot, bad = _open_documents(log, pinned_key, trusted)
        problems = [own_problem] if own_problem else []
        if bad and not log.damage:
            log.damage = f"{len(bad)} documents do not count, the first: {bad[0]}"
        if log.damage:
            problems.insert(0, self._keep_damaged(log.damage, len(snapshot.nodes)))
        merged = merge_snapshots(snapshot, own)
        known = Documents(snapshot.sealed_network, dict(snapshot.nodes))
        if merged.sealed_network != snapshot.sealed_network:
            self._pending.add(merged.sealed_network, ())
        self._pending.add(None, self._newer_own(snapshot, merged))
        if self._found is not None:
            self._writer.take_up(log, self._found, known)
        self._found = None
        self._thread.start()
        return merged, problems

    def _newer_own(self, snapshot: Snapshot, merged: Snapshot) -> Iterator[NodeEntry]:
        entry = merged.nodes.get(self._own_uid)
        if entry is not None and entry != snapshot.nodes.get(self._own_uid):
            yield entry

    def _read_own(self, pinned_key: bytes) -> tuple[Snapshot, str]:
        try:
            text = self._disk.read(self._own_path)
            snapshot, bad = decode_snapshot(text, pinned_key)
        except FileNotFoundError:
            return Snapshot(), ""
        except OSError as error:
            return Snapshot(), f"read {self._own_path}: {error.strerror or error}"
        except SealError as error:
            return Snapshot(), f"{self._own_path}: {error} (it is made again)"
        if bad:
            return snapshot, f"{self._own_path}: {bad[0]} (it is made again)"
        self._own_text = text
        return snapshot, ""

    def _keep_damaged(self, damage: str, nodes: int) -> str:
        number = 1
        while (copy := self._path.with_name(f"{self._path.name}.damaged-{number}")).exists():
            number += 1
        kept = f"the damaged file is kept as {copy.name}, remove it when nobody needs it"
        try:
            self._disk.write(copy, self._found or b"")
        except OSError as error:
            kept = f"no copy could be kept as {copy.name}: {error.strerror or error}"
            with suppress(OSError):
                self._disk.unlink(copy)
        return (
            f"{self._path}: {damage}; {nodes} nodes could be read, the others are told anew by "
            f"neighbours and the cloud ({kept})"
        )

    # Called from any thread

    def put(self, network: Sealed | None, entries: Iterable[NodeEntry]) -> Future[None]:
        """Done when they are on disk, or the disk has refused them. Raises nothing.

        What was refused is kept and tried again; `trouble` and `durable` say so.
        """
        future: Future[None] = Future()
        with self._changed:
            self._pending.add(network, entries)
            if self._closed:
                future.set_result(None)
            else:
                self._told.append(future)
                self._changed.notify()
        return future

    def durable(self) -> Future[None]:
        """Done when all that was put is on disk; StorageError when it can't be.

        What the disk has refused is tried again first.
        """
        future: Future[None] = Future()
        with self._changed:
            if not (self._pending or self._busy):
                future.set_result(None)
            elif self._closed:
                why = self._trouble or "it is closed"
                future.set_exception(StorageError("write", str(self._path), why))
            else:
                self._waiters.append(future)
                self._changed.notify()
        return future

    @property
    def trouble(self) -> str:
        """Why it cannot be written now; empty: it can."""
        return self._trouble

    def close(self) -> None:
        """Brings to the disk what it takes, and ends."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join()

    # The file's own thread

    def _run(self) -> None:
        closing = self._pass()
        while not closing:
            with self._changed:
                self._changed.wait_for(self._is_asked, timeout=self._pause_s())
            closing = self._pass()
        self._writer.close()

    def _is_asked(self) -> bool:
        """What the disk has refused waits for its time, unless somebody asks."""
        return self._closed or bool(self._told or self._waiters)

    def _pause_s(self) -> float | None:
        return self._retry_s if self._troubles else None

    def _pass(self) -> bool:
        """Writes what there is to write; True: it was the last time."""
        with self._changed:
            closing = self._closed
            batch, self._pending = self._pending, Documents()
            told, self._told = self._told, []
            waiters, self._waiters = self._waiters, []
            self._busy = True
        error = self._attempt("write", self._path, lambda: self._writer.take(batch))
        with self._changed:
            self._busy = error is not None
            if error is not None:
                batch.add(self._pending.network, self._pending.entries.values())
                self._pending = batch
        for future in told:
            _tell(future, None)
        for future in waiters:
            _tell(future, error)
        if error is None:
            self._tidy()
        return closing

    def _tidy(self) -> None:
        """What nobody waits for."""
        self._attempt("write", self._own_path, self._write_own)
        if monotonic() < self._anew_at_s:
            return
        if self._attempt("begin anew", self._path, self._writer.shorten) is not None:
            self._anew_at_s = monotonic() + self._retry_s

    def _attempt(self, what: str, path: Path, do: Callable[[], None]) -> StorageError | None:
        key = f"{what} {path}"
        try:
            do()
        except OSError as error:
            cause = error.strerror or str(error)
            refusal = StorageError(what, str(path), cause, hint=_WHAT_TO_DO)
            self._troubles[key] = refusal
        except Exception as error:  # noqa: BLE001 - without this thread nothing would be kept at all
            faults.note("snapshot on the disk", error)
            cause = f"internal error: {error!r} (see the agent's log)"
            self._troubles[key] = StorageError(what, str(path), cause)
        else:
            self._troubles.pop(key, None)
        self._trouble = next(map(str, self._troubles.values()), "")
        return self._troubles.get(key)

    def _write_own(self) -> None:
        """Replaced whole, so that power loss leaves the former one or this."""
        known = self._writer.known
        own = known.entries.get(self._own_uid)
        if own is None and known.network is None:
            return
        grants = {} if own is None else {self._own_uid: NodeEntry(own.grant, own.sealed_grant)}
        text = encode_snapshot(Snapshot(None, known.network, grants))
        if text == self._own_text:
            return
        new = self._own_path.with_name(self._own_path.name + ".new")
        self._disk.write(new, text)
        self._disk.fsync(new)
        self._disk.rename(new, self._own_path)
        self._disk.fsync_folder(self._own_path.parent)
        self._own_text = text


def _tell(future: Future[None], error: StorageError | None) -> None:
    if not future.set_running_or_notify_cancel():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def _open_documents(
    log: SnapshotLog, pinned_key: bytes, trusted: frozenset[bytes]
) -> tuple[Snapshot, list[SealError]]:
    """The newest of everything in the log, and what of it does not count."""
    bad: list[SealError] = []
    snapshot = Snapshot()
    for sealed in log.networks:
        try:
            network = open_network(sealed, pinned_key)
        except SealError as error:
            bad.append(error)
        else:
            snapshot = merge_snapshots(snapshot, Snapshot(network, sealed))
            trusted |= trusted_keys(pinned_key, network.keys)
    doubted = bool(bad)
    documents = Documents()
    for grant, presence in log.pairs:
        try:
            entry = (
                make_entry(grant, presence, trusted) if doubted else parse_entry(grant, presence)
            )
        except SealError as error:
            bad.append(error)
        else:
            documents.add(None, (entry,))
    return Snapshot(snapshot.network, snapshot.sealed_network, documents.entries), bad
