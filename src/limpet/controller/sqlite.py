"""The embedded store: a SQLite file, a writing thread, one commit for all writes of a moment."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import secrets
import sqlite3
import struct
import threading
from collections import deque
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from limpet.controller.store import (
    Bookmark,
    Change,
    ConflictError,
    Create,
    Delete,
    Deleted,
    Event,
    Item,
    Listing,
    TooOldError,
)
from limpet.model.errors import StorageError

FORMAT = 1
"""`PRAGMA user_version` of the files that this code writes."""
_APPLICATION_ID = 0x4C4D5054
_MAGIC = b"SQLite format 3\0"
_HEADER_BYTES = 100
_KEPT_DELETIONS = 10_000
_KEPT_EVENTS = 4_096
"""In memory, for watchers that follow closely."""
_WRITES_AT_ONCE = 512
BOOKMARK_S = 30.0
"""Between bookmarks while nothing happens; what reads a watch takes silence for a dead link."""

_SCHEMA = f"""
CREATE TABLE item (
    kind TEXT NOT NULL, name TEXT NOT NULL, version INTEGER NOT NULL, value BLOB NOT NULL,
    PRIMARY KEY (kind, name)
) WITHOUT ROWID;
CREATE INDEX item_version ON item (version);
CREATE TABLE deletion (version INTEGER PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL);
CREATE TABLE state (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    incarnation TEXT NOT NULL, version INTEGER NOT NULL, compacted INTEGER NOT NULL
);
PRAGMA application_id = {_APPLICATION_ID};
PRAGMA user_version = {FORMAT};
"""


@dataclass(slots=True)
class _Write:
    changes: Sequence[Change]
    done: asyncio.Future[list[str]]
    versions: list[int]
    failure: Exception | None = None


class SqliteStore:
    """Opened by one process at a time. Made and used on one event loop."""

    def __init__(self, path: Path, *, kept_deletions: int = _KEPT_DELETIONS) -> None:
        """Makes the file where there is none. Raises: StorageError; then nothing was changed."""
        self._path = path
        self._kept_deletions = kept_deletions
        check_database(path)
        try:
            if not path.exists():
                _make_database(path)
            self._writer = _connect(path)
            self._reader = _connect(path)
            row = self._reader.execute(
                "SELECT incarnation, version, compacted FROM state"
            ).fetchone()
            self._deletions = self._reader.execute("SELECT count(*) FROM deletion").fetchone()[0]
        except sqlite3.Error as error:
            raise _storage_error("open database", path, error) from error
        self._incarnation: str = row[0]
        self._version: int = row[1]
        self._compacted: int = row[2]
        self._told = self._version
        """The version up to which `_events` goes."""
        self._events: deque[tuple[int, Item | Deleted]] = deque(maxlen=_KEPT_EVENTS)
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

    async def watch(self, kinds: Collection[str], since: str) -> AsyncIterator[Event]:
        wanted = frozenset(kinds)
        position = self._number(since)
        while not self._closed:
            changed = self._changed
            events, position = self._since(position)
            for event in events:
                if event.kind in wanted:
                    yield event
            if position < self._told:
                continue
            yield Bookmark(self._text(position))
            while position >= self._told and not self._closed:
                done, _ = await asyncio.wait((changed,), timeout=BOOKMARK_S)
                if not done:
                    yield Bookmark(self._text(position))
                changed = self._changed

    def _since(self, position: int) -> tuple[list[Item | Deleted], int]:
        """What happened after `position`, and the version up to which this is all."""
        if position < self._compacted:
            raise TooOldError(f"watch from {self._text(position)}: that is no longer known")
        if position < self._told and self._events and self._events[0][0] <= position + 1:
            newest_first = []
            for version, event in reversed(self._events):
                if version <= position:
                    break
                newest_first.append(event)
            return newest_first[::-1], self._told
        if position >= self._told:
            return [], position
        with self._reading():
            rows = self._reader.execute(
                "SELECT version, kind, name, value FROM item WHERE version > ?1 AND version <= ?2 "
                "UNION ALL SELECT version, kind, name, NULL FROM deletion "
                "WHERE version > ?1 AND version <= ?2 ORDER BY version",
                (position, self._told),
            ).fetchall()
        return [self._event(*row) for row in rows], self._told

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
            raise _storage_error("read database", self._path, error) from error

    def _text(self, version: int) -> str:
        return f"{self._incarnation}-{version}"

    def _number(self, text: str) -> int:
        """Raises: TooOldError for a version of another life of this database."""
        incarnation, _, number = text.rpartition("-")
        if incarnation != self._incarnation or not number.isascii() or not number.isdigit():
            raise TooOldError(f"watch from {text!r}: this database has never been there")
        if len(number) > 18 or int(number) > max(self._told, self._written()):
            raise TooOldError(f"watch from {text!r}: this database is not there yet")
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
                self._loop.call_soon_threadsafe(self._finish, writes, events, self._version)

    def _commit(self, writes: list[_Write]) -> list[tuple[int, Item | Deleted]]:
        """What was written. A failure is each write's own, or that of all of them."""
        before = (self._version, self._compacted, self._deletions)
        events: list[tuple[int, Item | Deleted]] = []
        try:
            self._writer.execute("BEGIN IMMEDIATE")
            for write in writes:
                events += self._try(write)
            self._compact()
            self._writer.execute(
                "UPDATE state SET version = ?, compacted = ?", (self._version, self._compacted)
            )
            self._writer.execute("COMMIT")
        except sqlite3.Error as error:
            with contextlib.suppress(sqlite3.Error):
                self._writer.execute("ROLLBACK")
            self._version, self._compacted, self._deletions = before
            failure = _storage_error("write database", self._path, error)
            for write in writes:
                write.failure = write.failure or failure
            return []
        return events

    def _try(self, write: _Write) -> list[tuple[int, Item | Deleted]]:
        before = (self._version, self._deletions)
        self._writer.execute("SAVEPOINT one")
        try:
            events = [self._change(change) for change in write.changes]
        except ConflictError as error:
            self._writer.execute("ROLLBACK TO one")
            self._version, self._deletions = before
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
        if isinstance(change, Create):
            if row is not None:
                raise ConflictError(kind, name, "it is there already")
        elif row is None:
            raise ConflictError(kind, name, "it is gone")
        elif self._text(row[0]) != change.version:
            raise ConflictError(kind, name, "it was changed by another")
        self._version += 1
        if isinstance(change, Delete):
            self._writer.execute("DELETE FROM item WHERE kind = ? AND name = ?", (kind, name))
            self._writer.execute(
                "INSERT INTO deletion VALUES (?, ?, ?)", (self._version, kind, name)
            )
            self._deletions += 1
            return self._version, Deleted(kind, name, self._text(self._version))
        self._writer.execute(
            "INSERT INTO item VALUES (?, ?, ?, ?) ON CONFLICT (kind, name) "
            "DO UPDATE SET version = excluded.version, value = excluded.value",
            (kind, name, self._version, change.value),
        )
        return self._version, Item(kind, name, change.value, self._text(self._version))

    def _compact(self) -> None:
        """Half of the deletions at a time, so that it is seldom."""
        if self._deletions <= self._kept_deletions:
            return
        keep = self._kept_deletions // 2
        self._compacted = self._writer.execute(
            "SELECT version FROM deletion ORDER BY version DESC LIMIT 1 OFFSET ?", (keep,)
        ).fetchone()[0]
        self._writer.execute("DELETE FROM deletion WHERE version <= ?", (self._compacted,))
        self._deletions = keep

    def _finish(
        self, writes: list[_Write], events: list[tuple[int, Item | Deleted]], version: int
    ) -> None:
        self._events.extend(events)
        self._told = version
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


def check_database(path: Path) -> None:
    """Raises: StorageError for a file that is damaged, strange or of a newer Limpet.

    Only reads. No file at all is in order.
    """
    try:
        with open(path, "rb") as file:
            header = file.read(_HEADER_BYTES)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageError("read database", str(path), error.strerror or str(error)) from error
    restore = "put a back-up in its place with `limpet controller restore FILE`; it was not touched"
    if len(header) < _HEADER_BYTES or not header.startswith(_MAGIC):
        raise StorageError("open database", str(path), "it is no SQLite database", hint=restore)
    (found_format,) = struct.unpack_from(">I", header, 60)
    (application,) = struct.unpack_from(">I", header, 68)
    if application != _APPLICATION_ID:
        raise StorageError("open database", str(path), "it is not one of Limpet's", hint=restore)
    if found_format > FORMAT:
        raise StorageError(
            "open database",
            str(path),
            f"it is of format {found_format}, this Limpet knows up to {FORMAT}",
            hint="run the newer Limpet that wrote it; it was not touched",
        )
    try:
        with contextlib.closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        ) as reader:
            problem = reader.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.Error as error:
        problem = str(error)
    if problem != "ok":
        cause = f"it is damaged: {' '.join(problem.split())}"
        raise StorageError("open database", str(path), cause, hint=restore)


def copy_database(source: Path, target: Path) -> None:
    """A copy as of one moment, also while a controller writes; whole or not at all, mode 0600.

    Raises: StorageError, also where `target` exists.
    """
    check_database(source)
    if not source.exists():
        raise StorageError("copy database", str(source), "there is no such file")
    if target.exists():
        raise StorageError("write", str(target), "it exists", hint="choose another name")
    temporary = target.with_name(target.name + ".new")
    try:
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        try:
            with (
                contextlib.closing(sqlite3.connect(source)) as reader,
                contextlib.closing(sqlite3.connect(temporary)) as writer,
            ):
                reader.backup(writer)
                writer.execute("PRAGMA journal_mode = DELETE")
            _sync(temporary)
            os.rename(temporary, target)
            _sync(target.absolute().parent)
        finally:
            temporary.unlink(missing_ok=True)
    except (OSError, sqlite3.Error) as error:
        raise _storage_error("copy database", target, error) from error


def read_item(path: Path, kind: str, name: str) -> bytes | None:
    """An item's value, of a database that no controller works on. Raises: StorageError."""
    check_database(path)
    try:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            row = connection.execute(
                "SELECT value FROM item WHERE kind = ? AND name = ?", (kind, name)
            ).fetchone()
    except sqlite3.Error as error:
        raise _storage_error("read database", path, error) from error
    return None if row is None else bytes(row[0])


def begin_new_life(path: Path) -> None:
    """Versions that were told before this are unknown afterwards. Raises: StorageError."""
    check_database(path)
    try:
        with contextlib.closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE state SET incarnation = ?", (secrets.token_hex(4),))
    except sqlite3.Error as error:
        raise _storage_error("write database", path, error) from error


def _make_database(path: Path) -> None:
    """Under another name first: a half-made one is never met."""
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    with contextlib.closing(sqlite3.connect(temporary, isolation_level=None)) as connection:
        connection.executescript(_SCHEMA)
        connection.execute("INSERT INTO state VALUES (1, ?, 0, 0)", (secrets.token_hex(4),))
    _sync(temporary)
    os.rename(temporary, path)
    _sync(path.absolute().parent)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA busy_timeout = 5000")
    return connection


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _storage_error(operation: str, path: Path, error: Exception) -> StorageError:
    cause = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return StorageError(operation, str(path), cause)
