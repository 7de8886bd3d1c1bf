"""The catalog as the agent keeps it on disk: read without the agent, by what has changed."""

from __future__ import annotations

import os
from pathlib import Path

from limpet.base.disk import read_if_there, refusals
from limpet.base.errors import StorageError
from limpet.services.catalog import Catalog
from limpet.services.kept import KEPT_FILE, decode_item, split_items
from limpet.services.values import Service, ServiceName

_Stat = tuple[int, int, int]


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
        stat = self._look()
        if stat is None or stat == self._stat:
            return None
        content = read_if_there(self.path)
        if content is None:
            return None
        try:
            lines = {hash(line): line for line in split_items(content)}
            new = [
                (key, decode_item(line)) for key, line in lines.items() if key not in self._lines
            ]
        except ValueError as error:
            raise StorageError(
                "read", str(self.path), str(error), hint="the agent writes it anew at its start"
            ) from error
        self._stat = stat
        changed: set[ServiceName] = set()
        before = {self._lines.pop(key) for key in self._lines.keys() - lines.keys()}
        for key, item in new:
            changed.update(self.catalog.put(item))
            self._lines[key] = (type(item), item.key)
        for kind, name in before - {(type(item), item.key) for _, item in new}:
            remove = self.catalog.remove_service if kind is Service else self.catalog.remove_slice
            changed.update(remove(*name))
        return changed

    def _look(self) -> _Stat | None:
        with refusals("read", self.path):
            try:
                found = os.stat(self.path)
            except FileNotFoundError:
                return None
        return found.st_mtime_ns, found.st_ino, found.st_size
