"""What the agent keeps in files for this process, which reads them without it: the catalog, by what
has changed, and what it knows at this moment of nodes and pods."""

from __future__ import annotations

import os
from collections.abc import Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from limpet.base.disk import read_if_there, read_kept, refusals
from limpet.base.errors import StorageError
from limpet.base.records.version import NewerFormatError
from limpet.services.catalog import Catalog, Item
from limpet.services.kept import (
    JOURNAL_FILE,
    KEPT_FILE,
    ItemKey,
    KeptChange,
    decode_change,
    decode_item,
    says_part,
    split_items,
)
from limpet.services.kept_here import HERE_FILE, as_of, decode_here
from limpet.services.rotation import Here
from limpet.services.values import ServiceName

_log = structlog.get_logger("dns")

_Stat = tuple[int, int, int]
_TAIL_BYTES = 64


@dataclass(frozen=True, slots=True)
class _JournalPlace:
    """How far the journal was read."""

    inode: int = 0
    end: int = 0
    tail: bytes = b""
    """What is right before that."""


@dataclass(frozen=True, slots=True)
class _Journal:
    """What is in the journal now, without a last line that is written just now."""

    inode: int
    start: int
    """Where it was read from: nearly all is known mostly, and may be 4 MiB."""
    content: bytes

    def goes_on(self, place: _JournalPlace) -> bool:
        """All up to there is as it was read, if it was read from before its tail on."""
        is_same = self.inode == place.inode or not place.end
        end = place.end - self.start
        return is_same and self.content[end - len(place.tail) : end] == place.tail


@dataclass(frozen=True, slots=True)
class _FileNews:
    """What the file says that the catalog does not."""

    stat: _Stat
    items: list[tuple[int, Item]]
    """With the hashes of their lines."""
    gone: frozenset[int]
    """Lines that are no more."""
    is_partial: bool = False
    """It is damaged: there may have been others."""


@dataclass(frozen=True, slots=True)
class CatalogNews:
    """What both files say that the catalog does not."""

    file: _FileNews | None
    """None: it is as it was."""
    changes: list[KeptChange]
    """What was heard since, in order."""
    place: _JournalPlace


class KeptServices:
    """A catalog that follows its file, and the journal of what was heard since that was written.

    The agent writes the whole file some seconds later, on a slow disk much later. A file that is
    gone, or cut, changes nothing, and without it the journal says nothing. Of one that is damaged
    when it is read first what can be read counts, as it does for the agent.
    """

    def __init__(self, folder: Path, run_dir: Path) -> None:
        self.path = folder / KEPT_FILE
        self.journal_path = run_dir / JOURNAL_FILE
        self.catalog = Catalog()
        self._lines: dict[int, ItemKey] = {}
        """What each line is about, by the line's hash: the lines themselves are large."""
        self.is_partial = False
        """There may be Services that could not be read."""
        self._stat: _Stat | None = None
        self._place = _JournalPlace()
        self._since: set[ItemKey] = set()
        """What the journal says, so that it may be other than the file has it."""

    def read(self) -> set[ServiceName] | None:
        """Services that are others now; None: the files say nothing new.

        Raises: StorageError; then the catalog is as it was.
        """
        news = self.look()
        return None if news is None else self.apply(news)

    def look(self) -> CatalogNews | None:
        """What the files say that is new, in any thread: it takes 25 ms of 10,000 Services. Until
        that is applied nobody looks again. Raises: StorageError."""
        place = self._place
        journal = self._read_journal(place.end - len(place.tail))
        if journal.goes_on(place) and self._stat_now() == self._stat is not None:
            changes, place = self._changes(journal, place.end)
            return CatalogNews(None, changes, place) if changes else None
        # Before the file: what the journal has no more is in that by then. What is in both ends as
        # the journal has it, which is in order.
        journal = self._read_journal(0)
        stat = self._stat_now()
        if stat is None:
            return None
        content = read_kept(self.path)
        if content is None:
            return None
        try:
            file = self._file_news(stat, content)
        except ValueError as error:
            if self._stat is not None or isinstance(error, NewerFormatError):
                hint = (
                    "the agent writes it again: after a boot what it could read, "
                    "and all when an API server has told all"
                )
                raise StorageError("read", str(self.path), str(error), hint=hint) from error
            items = _readable(content)
            if not items:  # as where there is no file
                return None
            _log.warning("Services are known as far as they can be read", damage=str(error))
            file = _FileNews(stat, items, frozenset(), is_partial=True)
        return CatalogNews(file, *self._changes(journal, 0))

    def apply(self, news: CatalogNews) -> set[ServiceName]:
        """Services that are others now."""
        changed: set[ServiceName] = set()
        if news.file is not None:
            changed |= self._apply_file(news.file)
        for change in news.changes:
            changed.update(change.apply(self.catalog))
            self._since.add(change.about)
        self._place = news.place
        return changed

    # The whole

    def _file_news(self, stat: _Stat, content: bytes) -> _FileNews:
        """Raises: ValueError for nonsense."""
        lines = {hash(line): line for line in split_items(content)}
        known: Set[int] = self._lines.keys()
        if self._since:
            known = {key for key, about in self._lines.items() if about not in self._since}
        new = [(key, decode_item(line)) for key, line in lines.items() if key not in known]
        if says_part(content):  # what is known beside it may be what was lost
            return _FileNews(stat, new, frozenset(), is_partial=True)
        return _FileNews(stat, new, frozenset(self._lines.keys() - lines.keys()))

    def _apply_file(self, news: _FileNews) -> set[ServiceName]:
        self._stat, self.is_partial = news.stat, news.is_partial
        changed: set[ServiceName] = set()
        before = {self._lines.pop(key) for key in news.gone} | self._since
        self._since = set()
        for key, item in news.items:
            changed.update(self.catalog.put(item))
            self._lines[key] = (type(item), item.key)
        for about in before - {(type(item), item.key) for _, item in news.items}:
            changed.update(KeptChange(about, None).apply(self.catalog))
        return changed

    def _stat_now(self) -> _Stat | None:
        with refusals("read", self.path):
            try:
                found = os.stat(self.path)
            except FileNotFoundError:
                return None
        return found.st_mtime_ns, found.st_ino, found.st_size

    # What came since

    def _read_journal(self, start: int) -> _Journal:
        with refusals("read", self.journal_path):
            try:
                with self.journal_path.open("rb") as file:
                    file.seek(start)
                    inode, content = os.fstat(file.fileno()).st_ino, file.read()
            except FileNotFoundError:
                return _Journal(0, 0, b"")
        return _Journal(inode, start, content[: content.rfind(b"\n") + 1])

    def _changes(self, journal: _Journal, start: int) -> tuple[list[KeptChange], _JournalPlace]:
        """What cannot be read ends it: then the file says the rest, later."""
        changes, end = [], start
        for line in journal.content[start - journal.start :].split(b"\n")[:-1]:
            try:
                changes.append(decode_change(line))
            except ValueError as error:
                _log.debug("a change of Services is nonsense", error=str(error))
                break
            end += len(line) + 1
        tail = journal.content[max(0, end - journal.start - _TAIL_BYTES) : end - journal.start]
        return changes, _JournalPlace(journal.inode, end, tail)


def _readable(content: bytes) -> list[tuple[int, Item]]:
    """Items of the lines that say one, with the hashes of these."""
    found = []
    for line in content.split(b"\n"):
        with suppress(ValueError):
            found.append((hash(line), decode_item(line)))
    return found


class KeptHere:
    """What the agent said last that could be read: a file that is gone or not understood, such as a
    later agent's, changes nothing."""

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir / HERE_FILE
        self._said, self._at_s = Here(), 0.0

    def read(self) -> None:
        """Takes what is said now. Raises: StorageError; ValueError in words."""
        content = read_if_there(self.path)
        if content is not None:
            self._said, self._at_s = decode_here(content)

    def known(self, now_s: float) -> Here:
        """What still holds: who is dead is forgotten when nobody has said so for long."""
        return as_of(self._said, self._at_s, now_s)
