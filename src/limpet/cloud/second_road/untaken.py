"""Documents that an API server has told, and that are not taken yet."""

from __future__ import annotations

import asyncio

from limpet.base.bounds.servers import EARLY_DOCUMENTS
from limpet.cluster.documents import Document, Key, Sealed
from limpet.cluster.exchange.change_rates import ChangeRates
from limpet.cluster.kinds import KINDS
from limpet.cluster.seal import is_of_a_later_key

ObjectName = tuple[str, str]
"""Kind and name of the object."""
_AGAIN_S = 2.0


class Untaken:
    """As they were told last."""

    def __init__(self) -> None:
        self._rates = ChangeRates(KINDS)
        self.early: dict[ObjectName, Sealed] = {}
        """Nobody is known yet who may have signed it."""
        self.late: dict[ObjectName, Sealed] = {}
        """A node says it of itself, and changes it too often."""
        self._has_late = asyncio.Event()
        self._crowded: set[str] = set()
        """Kinds of which something had no room in `early`."""
        self._untold: set[str] = set()
        """Those of them that are to be told again."""

    def has_room(self, now_s: float, document: Document) -> bool:
        """Whether what one node says of itself may change once more."""
        return self._rates.has_room(document.key, now_s)

    def note_change(self, key: Key, now_s: float) -> None:
        """It was taken."""
        self._rates.note(key, now_s)

    def put_early(self, name: ObjectName, document: Sealed, *, era: int) -> None:
        """Where there is room, what may be good once more is known. `era`: of the cluster's last
        key that is known here; the network with the next one comes by another watch."""
        if not _may_be_good(document, era):
            return
        if len(self.early) < EARLY_DOCUMENTS.most:
            self.early[name] = document
        else:
            self._crowded.add(document.kind)

    def look_at_early(self) -> None:
        """Somebody else has told what they may stand under."""
        for name, document in self.early.items():
            self.put_late(name, document)
        self._tell_again()

    def note_taken(self, name: ObjectName) -> None:
        """Where it was early, what had no room beside it may count now, too."""
        if name in self.early:
            self._tell_again()

    def take_untold(self) -> list[str]:
        """Kinds that are to be told again, since something of them had no room."""
        untold, self._untold = self._untold, set()
        return sorted(untold)

    def _tell_again(self) -> None:
        if self._crowded:
            self._untold |= self._crowded
            self._crowded.clear()
            self._has_late.set()

    def put_late(self, name: ObjectName, document: Sealed) -> None:
        """Where there is room."""
        if len(self.late) < EARLY_DOCUMENTS.most:
            self.late[name] = document
            self._has_late.set()

    def forget(self, name: ObjectName) -> None:
        """It was looked at."""
        self.early.pop(name, None)
        self.late.pop(name, None)

    async def some_late(self) -> dict[ObjectName, Sealed]:
        """What changes too often, a little after there is something of it, or of `take_untold`."""
        await self._has_late.wait()
        await asyncio.sleep(_AGAIN_S)
        self._has_late.clear()
        return dict(self.late)


def _may_be_good(document: Sealed, era: int) -> bool:
    kind = KINDS[document.kind]
    if len(document.body) > kind.most_bytes:
        return False
    return bool(kind.under) or is_of_a_later_key(document, KINDS, era)
