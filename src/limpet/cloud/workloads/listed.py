"""Objects of one kind that the API server has, as far as it has told. Pure."""

from __future__ import annotations

from limpet.kubernetes.objects import AnyViewed
from limpet.kubernetes.reflector_state import ObjectChanges, ObjectKey, key_of


class Listed:
    """Also what cannot be read is there: what was known of it goes on."""

    def __init__(self) -> None:
        self.read: set[ObjectKey] = set()
        """Those that can be read."""
        self._unread: set[ObjectKey] = set()
        """Those that cannot, since the last whole list, which tells all of them again."""

    def hear(self, changes: ObjectChanges[AnyViewed]) -> set[ObjectKey] | None:
        """All that are there, where a whole list was told; None: only what has changed was."""
        self.read.difference_update(changes.gone)
        self.read.update(map(key_of, changes.put))
        self._unread.update((x.namespace, x.name) for x in changes.unreadable if not x.is_gone)
        if not changes.listed:
            return None
        there = self.read | self._unread
        self._unread.clear()
        return there
