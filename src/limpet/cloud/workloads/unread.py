"""Objects that cannot be read at all, or that no room is left for, in words. Pure."""

from __future__ import annotations

from limpet.base.bounds.servers import UNREAD_CAUSE
from limpet.base.bounds.words import NAME, UNREAD
from limpet.base.text.escaping import shortened
from limpet.kubernetes.kinds.objects import AnyViewed
from limpet.kubernetes.reflector_state import ObjectChanges, ObjectKey, key_of


class UnreadObjects:
    """Cause for each object that cannot be read, as long as the API server has it so."""

    def __init__(self, becomes: str = "what was known of it before goes on") -> None:
        """`becomes`: what is done with such an object, in words."""
        self._becomes = becomes
        self._causes: dict[tuple[str, ObjectKey], str] = {}
        """By kind and name: `cannot be read: …`."""
        self._since_list: dict[str, set[ObjectKey]] = {}
        """By kind, those that were told since the last whole list: a list tells all of them."""

    def __len__(self) -> int:
        return len(self._causes)

    def hear(self, kind: str, changes: ObjectChanges[AnyViewed]) -> None:
        since = self._since_list.setdefault(kind, set())
        for key in (*changes.gone, *map(key_of, changes.put)) if self._causes else ():
            self._forget(kind, key)
        for each in changes.unreadable:
            key = (shortened(each.namespace, NAME.most), shortened(each.name, NAME.most))
            if each.is_gone:
                self._forget(kind, key)
            else:
                self._note(kind, key, "cannot be read", each.cause)
        if changes.listed:
            for key in [key for found, key in self._causes if found == kind and key not in since]:
                self._forget(kind, key)
            since.clear()

    def refuse(self, kind: str, key: ObjectKey, cause: str) -> None:
        """It could be read, and is not kept."""
        self._note(kind, key, "cannot be kept", cause)

    def _note(self, kind: str, key: ObjectKey, what: str, cause: str) -> None:
        if (kind, key) in self._causes or len(self._causes) < UNREAD.most:
            self._causes[kind, key] = f"{what}: {shortened(cause, UNREAD_CAUSE.most)}"
            self._since_list.setdefault(kind, set()).add(key)

    def _forget(self, kind: str, key: ObjectKey) -> None:
        self._causes.pop((kind, key), None)
        self._since_list[kind].discard(key)

    def cause(self, kind: str, key: ObjectKey) -> str:
        """Why it cannot be read, or kept; empty: it can, or there is none."""
        return self._causes.get((kind, key), "")

    def in_words(self) -> list[str]:
        return [words for each in sorted(self._causes) for words in self.words_of(*each)]

    def words_of(self, kind: str, key: ObjectKey) -> list[str]:
        """None where it is kept, or is not there."""
        cause = self.cause(kind, key)
        name = "/".join(filter(None, key))
        return [f"{kind} {name} {cause}; {self._becomes}"] if cause else []
