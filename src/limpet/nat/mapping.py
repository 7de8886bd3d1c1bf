"""How the gateway in front of this node maps its tunnel's port, by what others see. Pure.

Of each observer the last observation counts. A peer's does not count against those of relays: it
may lie, and what is believed is told to the whole cluster. Where two observations differ and are
seconds apart, the mapping has moved and the later one is right; where they are of one time, the
gateway gives each destination another port. Of peers that takes two that say the same for a while
and none that agree: one alone, whatever it says, does not make the node hide its endpoint. A peer
counts once, however many addresses it answers from, and what most see is told.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from enum import IntEnum

from limpet.base.addresses import Address, Endpoint
from limpet.base.bounds.members import NAT_OBSERVATIONS

FRESH_S = 400.0
"""An observation counts for so long; far relays are asked every three minutes."""
CLOSE_S = 5.0
"""Observations this close are of one mapping, unless each destination has its own."""
RELAYS_S = 45.0
"""An observation by a relay outweighs those by peers for so long; the nearest relays are asked
every 20 s."""
STEADY_S = 10.0
"""A peer proves something by what it says for so long. What it says instead of something younger
counts only from then on: one that always says something else is heard by nobody."""


class NatKind(IntEnum):
    """How the gateway in front of this node maps what leaves by the tunnel's port."""

    UNKNOWN = 0
    """No two public nodes have answered yet."""
    NONE = 1
    """The node's own address is seen."""
    SAME = 2
    """Everybody sees the same address and port: it can be punched."""
    SYMMETRIC = 3
    """Each destination sees another port."""
    BLOCKED = 4
    """No answer comes over UDP."""


Observer = Endpoint | tuple[str, int]
"""A relay's endpoint; a peer's uid and an IP version, since a peer may answer from many."""


@dataclass(frozen=True, slots=True)
class Observation:
    asked_at: Endpoint
    """The observer's endpoint, to which the NAT saw our packet go."""
    seen_as: Endpoint
    at_s: float
    peer: str = ""
    """uid of the peer that says so; empty: a relay does."""
    counts_from_s: float = -math.inf
    """Minus infinity: it is a relay's."""

    @property
    def observer(self) -> Observer:
        """The relay's endpoint, or the peer: the last observation of each counts."""
        return (self.peer, self.asked_at[0].version) if self.peer else self.asked_at

    def is_proof(self, now_s: float) -> bool:
        """Whether more than one such word is proof of what the gateway does."""
        return self.counts_from_s <= now_s - STEADY_S


@dataclass(slots=True)
class NatView:
    """What is known of the NATs in front of the node, for each IP version separately."""

    _seen: dict[Observer, Observation] = field(default_factory=dict)
    """The latest last."""
    _own: frozenset[Address] = frozenset()
    _settled: dict[int, NatKind] = field(default_factory=dict)
    """The last clear result by IP version, since the network changed."""
    _counting: dict[tuple[int, float], list[Observation]] = field(default_factory=dict)
    """Observations that count at a moment, by IP version: one answer asks for them many times."""

    def network_changed(self, own: Collection[Address]) -> None:
        """Forgets all observations; `own`: the addresses that the node's links have now."""
        self._own = frozenset(own)
        self._seen.clear()
        self._settled.clear()
        self._counting.clear()

    def see(self, asked_at: Endpoint, seen_as: Endpoint, now_s: float, *, peer: str = "") -> bool:
        """Takes an observation by that peer, or by a relay; True: the mapping has moved, as its
        observer saw another before."""
        sight = Observation(asked_at, seen_as, now_s, peer)
        before = self._seen.pop(sight.observer, None)
        if peer:
            sight = replace(sight, counts_from_s=_counts_from_s(before, seen_as, now_s))
        self._seen[sight.observer] = sight
        if len(self._seen) > NAT_OBSERVATIONS.most:
            del self._seen[next(iter(self._seen))]
        self._counting.clear()
        version = asked_at[0].version
        believed = sight in self._fresh(version, now_s)
        # What a peer's other address was seen as says nothing of whether this one has moved.
        was = before.seen_as if before is not None and before.asked_at == asked_at else seen_as
        moved = believed and was != seen_as
        settled = self._settled.get(version, NatKind.UNKNOWN)
        if moved and settled is not NatKind.SYMMETRIC:
            self._doubt_others(version, seen_as, now_s)
        found = self._judge(version, now_s)
        if found is not NatKind.UNKNOWN:
            self._settled[version] = found
        elif self._refutes(settled, version, now_s):
            del self._settled[version]
        return moved

    def is_doubtful(self, peer: str, asked_at: Endpoint, seen_as: Endpoint, now_s: float) -> bool:
        """Whether a peer reports an endpoint that is new and seen by no relay: ask relays again."""
        before = self._seen.get((peer, asked_at[0].version))
        relays = self._by_relays(asked_at[0].version, now_s)
        new = before is None or before.seen_as != seen_as
        return new and bool(relays) and seen_as not in relays

    def _by_relays(self, version: int, now_s: float) -> set[Endpoint]:
        """Endpoints that relays have seen the node as lately."""
        return {
            each.seen_as
            for each in self._seen.values()
            if not each.peer
            and each.asked_at[0].version == version
            and each.at_s > now_s - RELAYS_S
        }

    def _doubt_others(self, version: int, seen_as: Endpoint, now_s: float) -> None:
        """Ages observations of other endpoints: they may be of before the mapping moved."""
        for observer, each in self._seen.items():
            if each.asked_at[0].version == version and each.seen_as != seen_as:
                at_s = min(each.at_s, now_s - CLOSE_S)
                self._seen[observer] = replace(each, at_s=at_s)
        self._counting.clear()

    def _refutes(self, settled: NatKind, version: int, now_s: float) -> bool:
        """Whether observations that settle nothing contradict what was settled before."""
        translated = self._translated(version, now_s)
        if settled is NatKind.NONE:
            return bool(translated)  # only relays of this site had answered
        lately = [each for each in _current(translated) if each.at_s > now_s - CLOSE_S]
        of_one_mind = len(lately) > 1 and len({each.seen_as for each in lately}) == 1
        return settled is NatKind.SYMMETRIC and of_one_mind

    def kind(self, version: int, now_s: float) -> NatKind:
        """The last clear result; UNKNOWN: there was none, or nobody has answered lately."""
        if not self._fresh(version, now_s):
            return NatKind.UNKNOWN
        return self._settled.get(version, NatKind.UNKNOWN)

    def mapped(self, now_s: float) -> tuple[Endpoint, ...]:
        """Endpoints by which others may reach the tunnel, one for each IP version at most."""
        found = []
        for version in (4, 6):
            translated = self._translated(version, now_s)
            if translated and self.kind(version, now_s) is not NatKind.SYMMETRIC:
                found.append(_most_seen(_current(translated)))
        return tuple(found)

    def symmetric(self, now_s: float) -> tuple[int, ...]:
        """IP versions of which each destination sees another endpoint."""
        return tuple(each for each in (4, 6) if self.kind(each, now_s) is NatKind.SYMMETRIC)

    def is_unclear(self, askable: Collection[Endpoint], now_s: float) -> bool:
        """Whether one of `askable` has not confirmed the latest mapping: ask it again."""
        for version in (4, 6):
            translated = self._translated(version, now_s)
            if translated and self._settled.get(version) is not NatKind.SYMMETRIC:
                current = _current(translated)
                if any(each.asked_at in askable and each not in current for each in translated):
                    return True
        return False

    def _judge(self, version: int, now_s: float) -> NatKind:
        fresh = self._fresh(version, now_s)
        translated = self._translated(version, now_s)
        if not translated:
            return NatKind.NONE if fresh else NatKind.UNKNOWN
        current = _current(translated)
        if len({each.seen_as for each in current}) == 1:
            return NatKind.SAME if _places(current) > 1 else NatKind.UNKNOWN
        if len({each.seen_as for each in current if not each.peer}) > 1:
            return NatKind.SYMMETRIC
        words = {each.seen_as for each in current if each.is_proof(now_s)}
        for word in words:
            if _places(each for each in translated if each.seen_as == word) > 1:
                return NatKind.SAME
        return NatKind.SYMMETRIC if len(words) > 1 else NatKind.UNKNOWN

    def _fresh(self, version: int, now_s: float) -> list[Observation]:
        """Observations that count, the latest last."""
        at = version, now_s
        if at not in self._counting:
            relays = self._by_relays(version, now_s)
            self._counting = {held: was for held, was in self._counting.items() if held[1] == now_s}
            self._counting[at] = [
                each
                for each in self._seen.values()
                if each.asked_at[0].version == version
                and each.at_s > now_s - FRESH_S
                and (not each.peer or not relays or each.seen_as in relays)
                and each.counts_from_s <= now_s
            ]
        return self._counting[at]

    def _translated(self, version: int, now_s: float) -> list[Observation]:
        """Observations that count, but of a relay on the node's own link, which sees no NAT."""
        return [each for each in self._fresh(version, now_s) if each.seen_as[0] not in self._own]


def _current(translated: list[Observation]) -> list[Observation]:
    """Without those that a different, clearly later observation has made wrong."""
    return [
        each
        for latest in translated[-1:]
        for each in translated
        if each.seen_as == latest.seen_as or each.at_s > latest.at_s - CLOSE_S
    ]


def _places(observations: Iterable[Observation]) -> int:
    """How many addresses it was seen from. Two ports of one address do not do: some NATs keep one
    mapping for each address."""
    return len({each.asked_at[0] for each in observations})


def _most_seen(current: list[Observation]) -> Endpoint:
    """What most observers see; of as many, what the latest does."""
    votes = Counter(each.seen_as for each in current)
    latest = {each.seen_as: number for number, each in enumerate(current)}
    return max(votes, key=lambda seen_as: (votes[seen_as], latest[seen_as]))


def _counts_from_s(before: Observation | None, seen_as: Endpoint, now_s: float) -> float:
    """`before`: what the same peer has said last."""
    if before is None:
        return now_s
    if before.seen_as == seen_as:
        return before.counts_from_s
    return max(now_s, min(before.counts_from_s, now_s) + STEADY_S)
