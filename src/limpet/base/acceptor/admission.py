"""Who is let in next, of all who want to be looked at and have proven nothing yet. Pure, time
passed in.

    arrives ── waits ── has sent something ── its turn ── inside ── has asked ── leaves
                                                             └── has proven who it is ── is known

To wait costs a descriptor; to be inside costs what TLS and HTTP cost, and a handshake some
milliseconds of the processor. So many may wait and few are inside, of each source fewer than of
all, and what members have come from lately has places, turns and a wait of its own, which nobody
from elsewhere can take. Of a source the newest is let in first: who holds connections open to keep
others out has old ones.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from limpet.base.acceptor.places import Places, Source
from limpet.base.bounds.strangers import API_SOURCES
from limpet.base.rate_limit import Rate, TokenBucket, TokenBuckets

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, slots=True)
class SourceCapacity:
    """What there is for one kind of sources."""

    waiting: int
    waiting_of_one: int
    inside: int
    inside_of_one: int
    rate: Rate
    """Rate at which connections are let in."""
    rate_of_one: Rate


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds that one may take for each step."""

    first_s: float
    """To send something; and again, once inside, to ask."""
    turn_s: float
    """To wait for a turn: who waits longer has given up."""
    hurried_s: float
    """To ask, where others of its source, or of all, wait for its place."""
    longest_s: float
    """Inside, with all that it asks."""


@dataclass(slots=True)
class _Inside:
    source: Source
    since_s: float
    has_asked: bool = False


class _Hall(Generic[T]):
    """For those from elsewhere, or for those from where members have come from lately."""

    def __init__(self, room: SourceCapacity) -> None:
        self._room = room
        self._waiting: Places[T] = Places(room.waiting, room.waiting_of_one)
        self._arrived_s: dict[T, float] = {}
        self._ready: set[T] = set()
        self.ready: OrderedDict[Source, list[T]] = OrderedDict()
        """Those that wait for their turn; whose source had one last comes last."""
        self.inside: dict[T, _Inside] = {}
        """Who has been there longest comes first."""
        self._inside_of: Counter[Source] = Counter()
        self._rate = TokenBucket(*room.rate)
        self._rate_of_one = TokenBuckets(*room.rate_of_one, most=API_SOURCES.most)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def put(self, one: T, source: Source, now_s: float) -> T | None:
        leaves = self._waiting.put(one, source)
        self._arrived_s[one] = now_s
        if leaves is not None:
            self.drop(leaves)
        return leaves

    def make_ready(self, one: T, source: Source) -> None:
        if one in self._waiting and one not in self._ready:
            self._ready.add(one)
            is_first = source not in self.ready
            self.ready.setdefault(source, []).append(one)
            if is_first:
                self.ready.move_to_end(source, last=False)

    def take(self, now_s: float) -> T | None:
        if self.is_full or not self._rate.has_room(now_s):
            return None
        for source, ready in self.ready.items():
            if not self._has_place(source) or not self._rate_of_one.take(source, now_s):
                continue
            self._rate.take(now_s)
            one = ready.pop()
            self._forget(one)
            if ready:
                self.ready.move_to_end(source)
            else:
                del self.ready[source]
            self.inside[one] = _Inside(source, now_s)
            self._inside_of[source] += 1
            return one
        return None

    @property
    def is_full(self) -> bool:
        return len(self.inside) >= self._room.inside

    def _has_place(self, source: Source) -> bool:
        return self._inside_of[source] < self._room.inside_of_one

    def in_the_way(self, now_s: float, hurried_s: float) -> Iterator[T]:
        """Those inside that have not asked, and whose place others wait for."""
        if not self.ready:
            return
        for one, inside in self.inside.items():
            if now_s - inside.since_s < hurried_s:
                return
            of_its_source = inside.source in self.ready and not self._has_place(inside.source)
            if not inside.has_asked and (self.is_full or of_its_source):
                yield one

    def overdue(self, now_s: float, patience: Patience) -> Iterator[T]:
        for one, arrived_s in self._arrived_s.items():
            if now_s - arrived_s < patience.first_s:
                break
            if one not in self._ready or now_s - arrived_s >= patience.turn_s:
                yield one
        for one, inside in self.inside.items():
            most_s = patience.longest_s if inside.has_asked else patience.first_s
            if now_s - inside.since_s >= most_s:
                yield one

    def drop(self, one: T) -> None:
        """It has left, from wherever it was."""
        inside = self.inside.pop(one, None)
        if inside is not None:
            self._inside_of[inside.source] -= 1
            if not self._inside_of[inside.source]:
                del self._inside_of[inside.source]
        self._forget(one)

    def drop_ready(self, one: T, source: Source) -> None:
        ready = self.ready.get(source, [])
        if one in ready:
            ready.remove(one)
            if not ready:
                del self.ready[source]

    def _forget(self, one: T) -> None:
        self._waiting.drop(one)
        self._ready.discard(one)
        self._arrived_s.pop(one, None)


class Admission(Generic[T]):
    """Whoever is returned as one that leaves is to be closed, and is forgotten here."""

    def __init__(
        self, elsewhere: SourceCapacity, known: SourceCapacity, patience: Patience
    ) -> None:
        """`known`: for sources that members have come from lately."""
        self._patience = patience
        self._halls: tuple[_Hall[T], _Hall[T]] = (_Hall(elsewhere), _Hall(known))
        self._known: OrderedDict[Source, None] = OrderedDict()
        self._where: dict[T, tuple[_Hall[T], Source]] = {}

    @property
    def waiting(self) -> int:
        return sum(hall.waiting for hall in self._halls)

    @property
    def inside(self) -> int:
        return sum(len(hall.inside) for hall in self._halls)

    @property
    def has_ready(self) -> bool:
        """Somebody waits for a turn."""
        return any(hall.ready for hall in self._halls)

    @property
    def is_empty(self) -> bool:
        return not self._where

    def arrive(self, one: T, source: Source, now_s: float) -> T | None:
        """Who leaves for it, if anybody."""
        hall = self._halls[source in self._known]
        self._where[one] = (hall, source)
        leaves = hall.put(one, source, now_s)
        if leaves is not None:
            self.leave(leaves)
        return leaves

    def has_sent(self, one: T) -> None:
        """It waits for its turn from now on."""
        if one in self._where:
            hall, source = self._where[one]
            hall.make_ready(one, source)

    def take(self, now_s: float) -> T | None:
        """The one whose turn it is; None: nobody's, for now."""
        for hall in reversed(self._halls):
            if hall.ready and (one := hall.take(now_s)) is not None:
                return one
        return None

    def has_asked(self, one: T) -> None:
        if one in self._where:
            hall, _ = self._where[one]
            if one in hall.inside:
                hall.inside[one].has_asked = True

    def leave(self, one: T) -> bool:
        """It has ended, or has proven who it is. Whether it was there."""
        if one not in self._where:
            return False
        hall, source = self._where.pop(one)
        hall.drop_ready(one, source)
        hall.drop(one)
        return True

    def know(self, source: Source) -> None:
        """A member has come from there."""
        self._known[source] = None
        self._known.move_to_end(source)
        if len(self._known) > API_SOURCES.most:
            self._known.popitem(last=False)

    def overdue(self, now_s: float) -> list[T]:
        """Those who are to leave, since they have sent or asked nothing, or stay too long."""
        patience = self._patience
        found = [
            one
            for hall in self._halls
            for one in (*hall.overdue(now_s, patience), *hall.in_the_way(now_s, patience.hurried_s))
        ]
        return list(dict.fromkeys(found))

    def take_overdue(self, now_s: float) -> list[T]:
        """Those that are overdue, who have left with this."""
        found = self.overdue(now_s)
        for one in found:
            self.leave(one)
        return found
