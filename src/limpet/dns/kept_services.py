"""What the agent keeps in files for this process, which reads them without it: the catalog, by what
has changed, and what it knows at this moment of nodes and pods."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from limpet.base.disk import read_if_there, read_kept, refusals
from limpet.base.errors import StorageError
from limpet.services.catalog import Catalog, Item
from limpet.services.kept import KEPT_FILE, decode_item, split_items
from limpet.services.kept_here import HERE_FILE, as_of, decode_here
from limpet.services.rotation import Here
from limpet.services.values import Service, ServiceName

_Stat = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class CatalogNews:
    """What a file says that the catalog does not."""

    stat: _Stat
    items: list[tuple[int, Item]]
    """With the hashes of their lines."""
    gone: frozenset[int]
    """Lines that are no more."""


class KeptServices:
    """A catalog that follows its file; one that is gone, or cut, changes nothing."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / KEPT_FILE
        self.catalog = Catalog()
        self._lines: dict[int, tuple[type, ServiceName]] = {}
        """What each line is about, by the line's hash: the lines themselves are large."""
        self._stat: _Stat | None = None

    def read(self) -> set[ServiceName] | None:
        """Services that are others now; None: the file says nothing new.

        Raises: StorageError; then the catalog is as it was.
        """
        news = self.look()
        return None if news is None else self.apply(news)

    def look(self) -> CatalogNews | None:
        """What the file says that is new, in any thread: it takes 25 ms of 10,000 Services. Until
        that is applied nobody looks again. Raises: StorageError."""
        stat = self._stat_now()
        if stat is None or stat == self._stat:
            return None
        content = read_kept(self.path)
        if content is None:
            return None
        try:
            lines = {hash(line): line for line in split_items(content)}
            known = self._lines.keys()
            new = [(key, decode_item(line)) for key, line in lines.items() if key not in known]
        except ValueError as error:
            raise StorageError(
                "read", str(self.path), str(error), hint="the agent writes it anew at its start"
            ) from error
        return CatalogNews(stat, new, frozenset(known - lines.keys()))

    def apply(self, news: CatalogNews) -> set[ServiceName]:
        """Services that are others now."""
        self._stat = news.stat
        changed: set[ServiceName] = set()
        before = {self._lines.pop(key) for key in news.gone}
        for key, item in news.items:
            changed.update(self.catalog.put(item))
            self._lines[key] = (type(item), item.key)
        for kind, name in before - {(type(item), item.key) for _, item in news.items}:
            remove = self.catalog.remove_service if kind is Service else self.catalog.remove_slice
            changed.update(remove(*name))
        return changed

    def _stat_now(self) -> _Stat | None:
        with refusals("read", self.path):
            try:
                found = os.stat(self.path)
            except FileNotFoundError:
                return None
        return found.st_mtime_ns, found.st_ino, found.st_size


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
