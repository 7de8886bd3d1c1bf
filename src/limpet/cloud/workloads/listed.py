"""Objects of one kind that the API server has, as told by a whole list. Pure."""

from __future__ import annotations

from limpet.kubernetes.objects import AnyViewed
from limpet.kubernetes.reflector_state import ObjectChanges, ObjectKey, key_of


class Listed:
    """Also what cannot be read is there: what was known of it goes on.

    Nothing is kept from one whole list to the next: what goes in between a mirror is told.
    """

    def __init__(self) -> None:
        self.some = False
        """Some objects of the last whole list could be read."""
        self._read: set[ObjectKey] = set()
        self._unread: set[ObjectKey] = set()

    def hear(self, changes: ObjectChanges[AnyViewed]) -> set[ObjectKey] | None:
        """All that are there, where a whole list was told; None: only what has changed was."""
        self._read.difference_update(changes.gone)
        self._read.update(map(key_of, changes.put))
        self._unread.update((x.namespace, x.name) for x in changes.unreadable if not x.is_gone)
        if not changes.listed:
            return None
        self.some = bool(self._read)
        there = self._read | self._unread
        self._read, self._unread = set(), set()
        return there
