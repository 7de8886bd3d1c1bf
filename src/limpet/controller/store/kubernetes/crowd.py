"""Objects of one kind that are kept, where the accounts of nodes may create any number of them.
Pure."""

from __future__ import annotations

from collections import Counter

from limpet.base.bounds.members import PRESENCE_OBJECTS
from limpet.base.bounds.tenants import OBJECTS
from limpet.controller.store.kubernetes.items import ItemObject, Row


class Crowd:
    """Who was there first stays, as long as it is there."""

    def __init__(self, row: Row) -> None:
        self._row = row
        self._node_of: dict[str, str] = {}
        """By the object's uid."""
        self._of_node: Counter[str] = Counter()

    def admits(self, found: ItemObject) -> bool:
        uid = found.metadata.uid
        if uid in self._node_of:
            return True
        # Only the account of a node can make any number of objects of that node.
        node = self._row.place(found).node if self._row.is_others_too else ""
        if len(self._node_of) >= OBJECTS.most or (
            node and self._of_node[node] >= PRESENCE_OBJECTS.most
        ):
            return False
        self._node_of[uid] = node
        self._of_node[node] += 1
        return True

    def forget(self, uid: str) -> None:
        """The object is gone."""
        node = self._node_of.pop(uid, None)
        if node is not None:
            self._of_node[node] -= 1
            if not self._of_node[node]:
                del self._of_node[node]
