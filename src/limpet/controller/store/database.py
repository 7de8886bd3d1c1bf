"""The controller's SQLite file: made, checked, copied, opened such that commits are durable."""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
import struct
from pathlib import Path

from limpet.base.disk import Disk, cause, refusals
from limpet.base.errors import StorageError

FORMAT = 1
"""`PRAGMA user_version` of the files that this code writes."""
_APPLICATION_ID = 0x4C4D5054
_MAGIC = b"SQLite format 3\0"
_HEADER_BYTES = 100

_HINTS = {
    sqlite3.SQLITE_FULL: "make room on its file system; it goes on by itself, nothing was lost",
    sqlite3.SQLITE_IOERR: "look at the disk: dmesg, df; nothing that was answered is lost",
    sqlite3.SQLITE_READONLY: "let it be written: mount, ls -l; nothing was lost",
    sqlite3.SQLITE_CORRUPT: "stop the controller, then `limpet controller restore FILE`",
    sqlite3.SQLITE_NOTADB: "stop the controller, then `limpet controller restore FILE`",
}
"""What a person can do, by SQLite's primary result code."""
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


def check_database(path: Path) -> None:
    """Raises: StorageError for a file that is damaged, strange or of a newer Limpet.

    Only reads. No file at all is in order.
    """
    with refusals("read database", path):
        try:
            with open(path, "rb") as file:
                header = file.read(_HEADER_BYTES)
        except FileNotFoundError:
            return
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
            problem = str(reader.execute("PRAGMA quick_check(1)").fetchone()[0])
    except (sqlite3.Error, UnicodeError) as error:  # names in it that are no UTF-8, in its words
        problem = str(error)
    if problem != "ok":
        problem = f"it is damaged: {' '.join(problem.split())}"
        raise StorageError("open database", str(path), problem, hint=restore)


def copy_database(source: Path, target: Path) -> None:
    """A copy as of one moment, also while a controller writes; whole or not at all, mode 0600.

    Raises: StorageError, also where `target` exists.
    """
    check_database(source)
    if not source.exists():
        raise StorageError("copy database", str(source), "there is no such file")
    if target.exists():
        raise StorageError("write", str(target), "it exists", hint="choose another name")
    temporary = unfinished(target)
    try:
        _make_empty(temporary)
        try:
            with (
                contextlib.closing(sqlite3.connect(source)) as reader,
                contextlib.closing(sqlite3.connect(temporary)) as writer,
            ):
                reader.backup(writer)
                writer.execute("PRAGMA journal_mode = DELETE")
            Disk().fsync(temporary)
            os.rename(temporary, target)
            Disk().fsync_folder(target.absolute().parent)
        finally:
            temporary.unlink(missing_ok=True)
    except (OSError, sqlite3.Error) as error:
        raise storage_error("copy database", target, error) from error


def unfinished(target: Path) -> Path:
    """Where a copy, or a new database, is until it is whole."""
    return target.with_name(target.name + ".new")


def _make_empty(path: Path) -> None:
    """Raises: OSError, StorageError."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError as error:
        raise StorageError(
            "copy database",
            str(path),
            "another copy to this name is being made, or one was cut off",
            hint=f"if none is being made, remove {path}",
        ) from error


def read_item(path: Path, kind: str, name: str) -> bytes | None:
    """An item's value, of a database that no controller works on. Raises: StorageError."""
    check_database(path)
    try:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            row = connection.execute(
                "SELECT value FROM item WHERE kind = ? AND name = ?", (kind, name)
            ).fetchone()
    except (sqlite3.Error, UnicodeError) as error:
        raise StorageError("read database", str(path), str(error)) from error
    if row is not None and not isinstance(row[0], bytes):
        raise StorageError("read database", str(path), f"{kind} {name}: it is no item")
    return None if row is None else row[0]


def begin_new_life(path: Path) -> None:
    """Versions that were told before this are unknown afterwards. Raises: StorageError."""
    check_database(path)
    try:
        with contextlib.closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE state SET incarnation = ?", (secrets.token_hex(4),))
    except sqlite3.Error as error:
        raise storage_error("write database", path, error) from error


def make_database(path: Path) -> None:
    """Under another name first: a half-made one is never met."""
    temporary = unfinished(path)
    temporary.unlink(missing_ok=True)
    _make_empty(temporary)
    with contextlib.closing(sqlite3.connect(temporary, isolation_level=None)) as connection:
        connection.executescript(_SCHEMA)
        connection.execute("INSERT INTO state VALUES (1, ?, 0, 0)", (secrets.token_hex(4),))
    Disk().fsync(temporary)
    os.rename(temporary, path)
    Disk().fsync_folder(path.absolute().parent)


def connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA busy_timeout = 5000")
    return connection


def storage_error(operation: str, path: Path, error: Exception) -> StorageError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    words = cause(error) if isinstance(error, OSError) else str(error)
    return StorageError(operation, str(path), words, hint=_HINTS.get(code, ""))
