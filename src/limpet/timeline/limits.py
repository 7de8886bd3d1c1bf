"""How much is recorded: what flaps is counted, not told each time, and what many do at once is told
in one. Pure, time passed in."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from msgspec.structs import replace

from limpet.base.bounds.words import (
    EVENT_SUBJECTS,
    EVENTS,
    EVENTS_OF_ONE,
    EVENTS_OF_ONE_PER_HOUR,
    EVENTS_PER_HOUR,
)
from limpet.base.rate_limit import TokenBucket
from limpet.base.text.few import few
from limpet.picture.timeline import Happening

EACH_AT_ONCE, EACH_PER_HOUR = EVENTS_OF_ONE.most, EVENTS_OF_ONE_PER_HOUR.most
"""Most of one kind about one pair, or one node; of the same act of a person."""
ALL_AT_ONCE, ALL_PER_HOUR = EVENTS.most, EVENTS_PER_HOUR.most
"""Most of all together: in two weeks 40,000 entries at worst, of which the file has the last."""
_TOGETHER = 8
"""So many of one kind in one moment are told one by one."""
_NAMED = 12
"""So many of those that are told in one are told by name ..."""
_FOUND = 200
"""... and so many find the entry by theirs: what is told last of a node is true of it then."""

UNPROVEN = "join-refused"
"""Kind of what came of somebody's word who has shown nothing for it: whatever names they take, all
of these have the room of one, so that what people did is never crowded out."""

Subject = tuple[str, str, str]
"""Kind, node by its uid, or name where that is all there is, and peer."""


@dataclass(slots=True)
class _Held:
    """What was not told of one subject, but counted."""

    first: Happening
    last: Happening
    count: int = 1


class Limits:
    """Lets through what is told one by one; the rest comes later, in one for each subject."""

    def __init__(self, now_s: float) -> None:
        self._all = TokenBucket(ALL_PER_HOUR / 3600, ALL_AT_ONCE, now_s)
        self._each: OrderedDict[Subject, TokenBucket] = OrderedDict()
        self._held: OrderedDict[Subject, _Held] = OrderedDict()
        self.lost = 0
        """Subjects of which nothing was told, since there were too many at one time."""

    def take(self, happenings: Iterable[Happening], now_s: float) -> list[Happening]:
        """What is recorded now, in order; what was held back and may be told by now is among it."""
        told = self._due(now_s)
        for each in together(list(happenings)):
            subject = _subject(each)
            held = self._held.get(subject)
            if held is not None:
                held.last, held.count = each, held.count + 1
            elif self._has_room(subject, now_s):
                told.append(each)
            else:
                self._hold(subject, each)
        return told

    @property
    def holds(self) -> bool:
        """Whether something waits to be told."""
        return bool(self._held)

    def _due(self, now_s: float) -> list[Happening]:
        told: list[Happening] = []
        if not self._all.has_room(now_s):
            return told  # thousands may wait, and are not gone through for each that comes
        for subject, held in list(self._held.items()):
            if not self._all.has_room(now_s):
                break
            if self._has_room(subject, now_s):
                del self._held[subject]
                told.append(_summed(held))
        return told

    def _has_room(self, subject: Subject, now_s: float) -> bool:
        bucket = self._each.get(subject)
        if bucket is None:
            bucket = self._each[subject] = TokenBucket(EACH_PER_HOUR / 3600, EACH_AT_ONCE, now_s)
            if len(self._each) > EVENT_SUBJECTS.most:
                self._each.popitem(last=False)
        self._each.move_to_end(subject)
        return bucket.has_room(now_s) and self._all.take(now_s) and bucket.take(now_s)

    def _hold(self, subject: Subject, happening: Happening) -> None:
        self._held[subject] = _Held(happening, happening)
        if len(self._held) > EVENT_SUBJECTS.most:
            self._held.popitem(last=False)
            self.lost += 1


def _subject(happening: Happening) -> Subject:
    """What a person did is one by its words: two different acts are both told."""
    if happening.kind == UNPROVEN:
        return UNPROVEN, "", ""
    if happening.who:
        return happening.kind, happening.words, ""
    return happening.kind, happening.node or "".join(happening.names[:1]), happening.peer


def _summed(held: _Held) -> Happening:
    if held.count == 1:
        return held.last
    words = f"{held.last.words} (the last of {held.count} changes since the entry before)"
    return replace(held.last, words=words, was=held.first.was)


def together(happenings: list[Happening]) -> list[Happening]:
    """Those of one moment, in which many peers may have changed alike: then they are one."""
    if len(happenings) <= _TOGETHER:
        return happenings
    groups: dict[tuple[str, ...], list[Happening]] = {}
    for each in happenings:
        alike = (each.kind, each.node, each.was, each.became, each.level.value, each.who)
        groups.setdefault(alike if each.peer else (*alike, each.words), []).append(each)
    return [
        one
        for group in groups.values()
        for one in (group if len(group) <= _TOGETHER else [_of_many(group)])
    ]


def _of_many(group: list[Happening]) -> Happening:
    first, node = group[0], group[0].names[:1]
    peers = [each.names[-1] for each in group if each.names]
    named = few(peers, _NAMED)
    words = f"{len(group)} peers: {first.became or 'none'}, was {first.was or 'none'} ({named})"
    return replace(first, words=words, peer="", names=(*node, *peers[:_FOUND]))
