"""The embedded store: a SQLite file, a writing thread, one commit for all writes of a moment."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sqlite3
import threading
from collections import deque
from collections.abc import AsyncGenerator, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from limpet.base.errors import StorageError
from limpet.controller.store.database import check_database, connect, make_database, storage_error
from limpet.controller.store.interface import (
    Bookmark,
    Change,
    ConflictError,
    Delete,
    Deleted,
    Event,
    Item,
    Listing,
    TooOldError,
)

_KEPT_DELETIONS = 10_000
_KEPT_EVENTS, _KEPT_EVENT_BYTES = 4_096, 8 << 20
"""In memory, for watchers that follow closely; who is further behind reads the database."""
_WRITES_AT_ONCE = 512
_LOG_PAGES = 1_000
"""Pages of SQLite's write-ahead log before a checkpoint."""
BOOKMARK_S = 30.0
"""Between bookmarks while nothing happens; what reads a watch takes silence for a dead link."""


@dataclass(slots=True)
class _Write:
    changes: Sequence[Change]
    done: asyncio.Future[list[str]]
    versions: list[int]
    failure: Exception | None = None


@dataclass(slots=True)
class _At:
    """What the thread has written; put back when it fails."""

    version: int
    compacted: int
    """Deletions up to this version are forgotten."""
    deletions: int


@dataclass(slots=True)
class _Told:
    """Events told to watchers."""

    version: int
    events: deque[tuple[int, Item | Deleted]] = field(default_factory=deque)
    """The last ones, up to that version."""
    size_bytes: int = 0
    """Size of the events' values."""

    def take(self, events: Sequence[tuple[int, Item | Deleted]], version: int) -> None:
        self.events.extend(events)
        self.version = version
        self.size_bytes += sum(_size_of(event) for _, event in events)
        while len(self.events) > _KEPT_EVENTS or self.size_bytes > _KEPT_EVENT_BYTES:
            self.size_bytes -= _size_of(self.events.popleft()[1])


def _size_of(event: Item | Deleted) -> int:
    return len(event.value) if isinstance(event, Item) else 0


class SqliteStore:
    """Opened by one process at a time. Made and used on one event loop."""

    def __init__(
        self,
        path: Path,
        *,
        kept_deletions: int = _KEPT_DELETIONS,
        log_pages: int = _LOG_PAGES,
    ) -> None:
        """Makes the file where there is none. Raises: StorageError; then nothing was changed."""
        self._path = path
        self._kept_deletions = kept_deletions
        check_database(path)
        try:
            if not path.exists():
                make_database(path)
            self._writer = connect(path)
            self._writer.execute(f"PRAGMA wal_autocheckpoint = {log_pages}")
            self._reader = connect(path)
            row = self._reader.execute(
                "SELECT incarnation, version, compacted FROM state"
            ).fetchone()
            deletions = self._reader.execute("SELECT count(*) FROM deletion").fetchone()[0]
        except sqlite3.Error as error:
            raise storage_error("open database", path, error) from error
        self._incarnation: str = row[0]
        self._at = _At(row[1], row[2], deletions)
        self._told = _Told(row[1])
        self._loop = asyncio.get_running_loop()
        self._changed: asyncio.Future[None] = self._loop.create_future()
        self._queue: queue.SimpleQueue[_Write | None] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._write_all, name="store", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        """Writes that were asked for are made first."""
        if self._closed:
            return
        self._closed = True
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)
        await asyncio.sleep(0)  # the thread's last answers
        self._wake()
        self._reader.close()
        self._writer.close()

    # Reading, on the event loop: a read of one item takes some ten microseconds.

    async def get(self, kind: str, name: str) -> Item | None:
        with self._reading():
            row = self._reader.execute(
                "SELECT value, version FROM item WHERE kind = ? AND name = ?", (kind, name)
            ).fetchone()
        return row and Item(kind, name, row[0], self._text(row[1]))

    async def listing(self, kind: str) -> Listing:
        with self._reading():
            version = self._reader.execute("SELECT version FROM state").fetchone()[0]
            rows = self._reader.execute(
                "SELECT name, value, version FROM item WHERE kind = ? ORDER BY name", (kind,)
            ).fetchall()
        items = tuple(Item(kind, name, value, self._text(of)) for name, value, of in rows)
        return Listing(items, self._text(version))

    async def mark(self, kinds: Collection[str]) -> str:
        return self._text(self._told.version)

    async def watch(self, kinds: Collection[str], since: str) -> AsyncGenerator[Event, None]:
        wanted = frozenset(kinds)
        position = self._number(since)
        while not self._closed:
            changed = self._changed
            events, position = self._since(position, wanted)
            for event in events:
                if event.kind in wanted:
                    yield event
            if position < self._told.version:
                continue
            yield Bookmark(self._text(position))
            while position >= self._told.version and not self._closed:
                done, _ = await asyncio.wait((changed,), timeout=BOOKMARK_S)
                if not done:
                    yield Bookmark(self._text(position))
                changed = self._changed

    def _since(self, position: int, kinds: Collection[str]) -> tuple[list[Item | Deleted], int]:
        """What happened after `position`, and the version up to which this is all: also of other
        kinds where it is in memory, and of these alone where it is read."""
        if position < self._at.compacted:
            raise TooOldError(f"watch from {self._text(position)}: that is no longer known")
        if (
            position < self._told.version
            and self._told.events
            and self._told.events[0][0] <= position + 1
        ):
            newest_first = []
            for version, event in reversed(self._told.events):
                if version <= position:
                    break
                newest_first.append(event)
            return newest_first[::-1], self._told.version
        if position >= self._told.version:
            return [], position
        # What is of no other kind: reports of nodes have up to a mebibyte each.
        told = f"version > ? AND version <= ? AND kind IN ({', '.join('?' * len(kinds))})"
        meant = (position, self._told.version, *kinds)
        with self._reading():
            rows = self._reader.execute(
                f"SELECT version, kind, name, value FROM item WHERE {told} "
                f"UNION ALL SELECT version, kind, name, NULL FROM deletion WHERE {told} "
                "ORDER BY version",
                (*meant, *meant),
            ).fetchall()
        return [self._event(*row) for row in rows], self._told.version

    def _event(self, version: int, kind: str, name: str, value: bytes | None) -> Item | Deleted:
        text = self._text(version)
        return Deleted(kind, name, text) if value is None else Item(kind, name, value, text)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """One moment's state. Raises: StorageError."""
        try:
            self._reader.execute("BEGIN")
            try:
                yield
            finally:
                self._reader.execute("COMMIT")
        except sqlite3.Error as error:
            raise storage_error("read database", self._path, error) from error

    def _text(self, version: int) -> str:
        return f"{self._incarnation}-{version}"

    def _number(self, text: str) -> int:
        """Raises: TooOldError for a version of another life of this database."""
        incarnation, _, number = text.rpartition("-")
        if incarnation != self._incarnation or not number.isascii() or not number.isdigit():
            raise TooOldError(f"watch from {text[:80]!r}: this database has never been there")
        if len(number) > 18 or int(number) > max(self._told.version, self._written()):
            raise TooOldError(f"watch from {text[:80]!r}: this database is not there yet")
        return int(number)

    def _written(self) -> int:
        """A list may be a moment ahead of what was told to watchers."""
        with self._reading():
            version: int = self._reader.execute("SELECT version FROM state").fetchone()[0]
        return version

    # Writing, on the thread.

    async def write(self, changes: Sequence[Change]) -> list[str]:
        if self._closed:
            raise StorageError("write", str(self._path), "the store is closed")
        done: asyncio.Future[list[str]] = self._loop.create_future()
        self._queue.put(_Write(changes, done, []))
        # The write goes on when the one who asked is cancelled.
        return await asyncio.shield(done)

    def _write_all(self) -> None:
        last = False
        while not last:
            writes = []
            write = self._queue.get()
            while write is not None:
                writes.append(write)
                if len(writes) == _WRITES_AT_ONCE or self._queue.empty():
                    break
                write = self._queue.get()
            last = write is None
            if writes:
                events = self._commit(writes)
                self._loop.call_soon_threadsafe(self._finish, writes, events, self._at.version)

    def _commit(self, writes: list[_Write]) -> list[tuple[int, Item | Deleted]]:
        """What was written. A failure is each write's own, or that of all of them."""
        before = replace(self._at)
        events: list[tuple[int, Item | Deleted]] = []
        try:
            self._writer.execute("BEGIN IMMEDIATE")
            for write in writes:
                events += self._try(write)
            self._compact()
            self._writer.execute(
                "UPDATE state SET version = ?, compacted = ?",
                (self._at.version, self._at.compacted),
            )
            self._writer.execute("COMMIT")
        except Exception as error:  # noqa: BLE001 - each writer is told; no later one waits for ever
            with contextlib.suppress(sqlite3.Error):
                self._writer.execute("ROLLBACK")
            self._at = before
            failure = storage_error("write database", self._path, error)
            for write in writes:
                write.failure = write.failure or failure
            return []
        return events

    def _try(self, write: _Write) -> list[tuple[int, Item | Deleted]]:
        before = replace(self._at)
        self._writer.execute("SAVEPOINT one")
        try:
            events = [self._change(change) for change in write.changes]
        except ConflictError as error:
            self._writer.execute("ROLLBACK TO one")
            self._at = before
            write.failure = error
            events = []
        self._writer.execute("RELEASE one")
        write.versions = [version for version, _ in events]
        return events

    def _change(self, change: Change) -> tuple[int, Item | Deleted]:
        """Raises: ConflictError."""
        kind, name = change.kind, change.name
        row = self._writer.execute(
            "SELECT version FROM item WHERE kind = ? AND name = ?", (kind, name)
        ).fetchone()
        if change.version is None:
            if row is not None:
                raise ConflictError(kind, name, "it is there already")
        elif row is None:
            raise ConflictError(kind, name, "it is gone")
        elif self._text(row[0]) != change.version:
            raise ConflictError(kind, name, "it was changed by another")
        self._at.version += 1
        if isinstance(change, Delete):
            self._writer.execute("DELETE FROM item WHERE kind = ? AND name = ?", (kind, name))
            self._writer.execute(
                "INSERT INTO deletion VALUES (?, ?, ?)", (self._at.version, kind, name)
            )
            self._at.deletions += 1
            return self._at.version, Deleted(kind, name, self._text(self._at.version))
        self._writer.execute(
            "INSERT INTO item VALUES (?, ?, ?, ?) ON CONFLICT (kind, name) "
            "DO UPDATE SET version = excluded.version, value = excluded.value",
            (kind, name, self._at.version, change.value),
        )
        return self._at.version, Item(kind, name, change.value, self._text(self._at.version))

    def _compact(self) -> None:
        """Half of the deletions at a time, so that it is seldom."""
        if self._at.deletions <= self._kept_deletions:
            return
        keep = self._kept_deletions // 2
        self._at.compacted = self._writer.execute(
            "SELECT version FROM deletion ORDER BY version DESC LIMIT 1 OFFSET ?", (keep,)
        ).fetchone()[0]
        self._writer.execute("DELETE FROM deletion WHERE version <= ?", (self._at.compacted,))
        self._at.deletions = keep

    def _finish(
        self, writes: list[_Write], events: list[tuple[int, Item | Deleted]], version: int
    ) -> None:
        self._told.take(events, version)
        for write in writes:
            if write.done.done():
                continue
            if write.failure is not None:
                write.done.set_exception(write.failure)
                write.done.exception()  # told, even where nobody waits any more
            else:
                write.done.set_result([self._text(each) for each in write.versions])
        if events:
            self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, self._loop.create_future()
        changed.set_result(None)
