"""Objects of one kind that the API server has, as told by a whole list. Pure."""

from __future__ import annotations

from collections.abc import Callable

from limpet.kubernetes.kinds.objects import AnyViewed
from limpet.kubernetes.reflector_state import ObjectChanges, ObjectKey, key_of


class Listed:
    """Also what cannot be read, or has no room, is there: what was known of it is not gone by that.

    Nothing is kept from one whole list to the next: what goes in between a mirror is told.
    """

    def __init__(self) -> None:
        self.some = False
        """Some objects of the last whole list could be read."""
        self._read: set[ObjectKey] = set()
        self._unread: set[ObjectKey] = set()

    def hear(
        self,
        changes: ObjectChanges[AnyViewed],
        is_kept: Callable[[ObjectKey], bool] = lambda _key: False,
    ) -> set[ObjectKey] | None:
        """All that are there, where a whole list was told; None: only what has changed was.
        `is_kept`: of what has no room, that which was kept before and goes on."""
        self._read.difference_update(changes.gone)
        self._unread.difference_update(changes.gone)
        self._read.update(map(key_of, changes.put))
        self._unread.update((x.namespace, x.name) for x in changes.unreadable if not x.is_gone)
        self._unread.update(key for key in changes.crowded if is_kept(key))
        if not changes.listed:
            return None
        self.some = bool(self._read)
        there = self._read | self._unread
        self._read, self._unread = set(), set()
        return there
