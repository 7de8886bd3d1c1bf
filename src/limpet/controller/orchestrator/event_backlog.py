"""Events to be written, and when: equal ones are counted, and nobody can flood. Pure."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

from limpet.base.bounds.words import KUBE_EVENTS, KUBE_EVENTS_OF_ONE, KUBE_EVENTS_OF_ONE_PER_MINUTE
from limpet.base.rate_limit import DueQueue, TokenBuckets

EventType = Literal["Normal", "Warning"]
REPEAT_S = 60.0
"""Time between two writes of one Event whose count grows."""
MOST = KUBE_EVENTS.most
_PER_S, _BURST = KUBE_EVENTS_OF_ONE_PER_MINUTE.most / 60, KUBE_EVENTS_OF_ONE.most
"""Different Events about one object."""


@dataclass(frozen=True, slots=True)
class About:
    """The object that an Event is about."""

    kind: str
    name: str
    uid: str
    api_version: str = "v1"
    namespace: str = ""


def node(name: str, uid: str = "") -> About:
    """A Node. `kubectl describe node` looks for its uid and, as kubelets write it, for its name in
    the uid's place, so the uid need not be known."""
    return About("Node", name, uid or name)


Key = tuple[About, EventType, str, str]
"""About what, of which type, the reason, the message."""


@dataclass(slots=True)
class PendingEvent:
    """One Event, as it is to be written."""

    key: Key
    first_at_s: float
    """Wall clock, for people."""
    last_at_s: float
    count: int = 0
    object_name: str = ""
    is_made: bool = False


class Backlog:
    """Times that decide are monotonic; those of the wall clock are handed through."""

    def __init__(self) -> None:
        self.dropped = 0
        """Events that were one too many, of one object or of all."""
        self._entries: OrderedDict[Key, PendingEvent] = OrderedDict()
        self._due: DueQueue[Key] = DueQueue()
        self._waiting: set[Key] = set()
        self._written_s: dict[Key, float] = {}
        self._rates = TokenBuckets(_PER_S, _BURST, most=MOST)

    def add(self, key: Key, now_s: float, at_s: float) -> None:
        """It has happened, once more."""
        entry = self._entries.get(key)
        if entry is None:
            if not self._make_room() or not self._rates.take(key[0], now_s):
                self.dropped += 1
                return
            entry = self._entries[key] = PendingEvent(key, at_s, at_s)
        self._entries.move_to_end(key)
        entry.count += 1
        entry.last_at_s = at_s
        if key not in self._waiting:
            self._waiting.add(key)
            self._due.put(key, self._written_s.get(key, now_s - REPEAT_S) + REPEAT_S)

    def _make_room(self) -> bool:
        if len(self._entries) < MOST:
            return True
        for key in self._entries:
            if key not in self._waiting:
                del self._entries[key]
                self._written_s.pop(key, None)
                return True
        return False

    @property
    def first_s(self) -> float:
        """When something is to be written; infinity: nothing is."""
        return self._due.first_s

    def take(self, now_s: float) -> PendingEvent | None:
        """What is to be written now; `written` or `again` has to follow."""
        key = self._due.take(now_s)
        return None if key is None else self._entries[key]

    def written(self, entry: PendingEvent, count: int, now_s: float) -> None:
        """`count`: as of the writing; more may have come meanwhile."""
        self._waiting.discard(entry.key)
        self._written_s[entry.key] = now_s
        if entry.count > count:
            self._waiting.add(entry.key)
            self._due.put(entry.key, now_s + REPEAT_S)

    def again(self, entry: PendingEvent, due_s: float) -> None:
        """It could not be written."""
        self._due.put(entry.key, due_s)

    def give_up(self, entry: PendingEvent) -> None:
        """Nobody will take it."""
        self.dropped += 1
        self._waiting.discard(entry.key)
        self._entries.pop(entry.key, None)
        self._written_s.pop(entry.key, None)
