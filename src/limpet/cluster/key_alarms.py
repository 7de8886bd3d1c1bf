"""Who has told this node what a revoked key of the cluster signed: somebody has that key."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace

from limpet.base.bounds.signers import KEY_ALARMS
from limpet.cluster.documents import Document, Source


@dataclass(frozen=True, slots=True)
class KeyAlarm:
    """Something that was refused, the last of its kind from its teller."""

    source: Source
    teller: str
    """Uid of the neighbour; empty: the controller or the API server."""
    kind: str
    name: str
    at_s: float
    """When it was told last, on the monotonic clock."""
    count: int = 1


class KeyAlarms:
    """Kept until the agent ends; whoever goes on telling it is heard again."""

    def __init__(self) -> None:
        self._alarms: OrderedDict[tuple[str, str], KeyAlarm] = OrderedDict()

    def note(self, document: Document, source: Source, teller: str, now_s: float) -> bool:
        """Whether this teller has told nothing of the kind before."""
        key = (teller, document.kind)
        before = self._alarms.pop(key, None)
        alarm = KeyAlarm(source, teller, document.kind, document.name, now_s)
        self._alarms[key] = replace(alarm, count=before.count + 1) if before else alarm
        if len(self._alarms) > KEY_ALARMS.most:
            self._alarms.popitem(last=False)
        return before is None

    def all(self) -> list[KeyAlarm]:
        """The latest first."""
        return list(reversed(self._alarms.values()))
