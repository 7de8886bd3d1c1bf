"""Merging what is known of the cluster: a join-semilattice, so order and repetition do not matter.

Of documents with one kind and name that of the later key of the cluster counts, then a tombstone
before all else, then the higher version, then the higher digest. What stands under another document
is gone with that. What came from the cloud, from the node's own disk or from a neighbour is merged
alike: it was checked before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from limpet.cluster.documents import Document, Key, Known, value_of


def merge(known: Known, news: Iterable[Document]) -> tuple[Known, list[Key]]:
    """What is known then, and of what; what stands under nothing that is known is left out."""
    changes = Changes(known)
    for document in sorted(news, key=lambda each: known.kinds.order(each.kind)):
        changes.take(document)
    return changes.finish()


class Changes:
    """What becomes of something known while news come, those first that others stand under."""

    def __init__(self, known: Known) -> None:
        self.kinds, self.pinned = known.kinds, known.pinned
        self._before = known
        self._changed: dict[str, dict[str, Document | None]] = {}
        self._buried: dict[str, set[str]] = {}

    def find(self, key: Key) -> Document | None:
        kind, name = key
        changed = self._changed.get(kind, {})
        return changed[name] if name in changed else self._before.find(key)

    def value(self, kind: str, name: str) -> Any:
        return value_of(self.find((kind, name)))

    def is_news(self, document: Document) -> bool:
        """It is newer than what is known, and does not stand under what was removed."""
        parent = self.kinds[document.kind].parent(document.name)
        above = self.find(parent) if parent is not None else None
        if above is not None and above.tombstone:
            return False
        return document.is_newer(self.find(document.key))

    def take(self, document: Document) -> None:
        """It was checked, or comes from where only we write."""
        kind, name = document.key
        under = self.kinds[kind].under
        if not self.is_news(document) or (
            under and self.find((under, name.partition("/")[0])) is None
        ):
            return
        self._changed.setdefault(kind, {})[name] = document
        buried = self._buried.setdefault(kind, set())
        if document.tombstone:
            buried.add(name)
        else:
            buried.discard(name)  # a tombstone of a stolen key: it does not count any more

    def _silence(self) -> None:
        """Takes away what stands under what is gone."""
        for kind in self.kinds if any(self._buried.values()) else ():
            buried = self._buried.get(kind.under, set())
            names = (*self._before.of(kind.name), *self._changed.get(kind.name, {}))
            gone = {name for name in names if name.partition("/")[0] in buried} if buried else ()
            if gone:
                self._changed.setdefault(kind.name, {}).update(dict.fromkeys(gone))
                self._buried.setdefault(kind.name, set()).update(gone)
        self._buried.clear()

    def finish(self) -> tuple[Known, list[Key]]:
        """What is known with all that was taken, and of what that is; once."""
        self._silence()
        keys = [(kind, name) for kind, changed in self._changed.items() for name in changed]
        return self._before.with_changes(self._changed) if keys else self._before, keys
