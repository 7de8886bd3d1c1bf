"""Relays that are alive, how far away, at which of their addresses. Pure, time passed in.

A relay has a line for each IP version. A line that does not answer is asked three more times in
quick succession, then it is dead, and asked ever more rarely. It is alive with its next answer.

A relay is a member, and says itself where it is: where it has not answered lately it has the budget
of any other, and what is held back counts as not answered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from limpet.base.addresses import Endpoint
from limpet.base.bounds.members import RELAY_MOVES, RELAY_PLACES
from limpet.base.rate_limit import TokenBucket
from limpet.base.settings import NAT_TIMEOUT_S
from limpet.cluster.datagrams.unproven_budget import UnprovenBudget
from limpet.relay.messages import Hello

QUICK_S = 0.3
"""Between tries while an answer is missing; twice the round trip where that is longer."""
TRIES = 4
"""Hellos without an answer until a line counts as dead."""
NEAR_S, FAR_S = 20.0, 180.0
"""Between hellos to the nearest relays, which keep NATs open, and to all others."""
NEAREST = 3
SLOWEST_S, URGENT_S = 60.0, 10.0
"""Longest wait between hellos on a dead line: usually, and while peers need a relay."""
MOVED_S, MOVES = 10.0, RELAY_MOVES.most
"""A relay that does not answer may name other endpoints so many times and is asked there at once;
then so far apart."""
SILENT_S = 0.4
"""Seconds without an answer until other ways are tried too."""
_BLOCKED_AFTER_S = 1.0
_SMOOTHING = 0.25
_STICKY, _STICKY_S = 0.7, 0.005
"""A nearer relay takes the place of another when its round trip is shorter by more than that."""
_KEPT_NONCES = 32
RATE_PER_S, BURST = 100.0, 100.0
"""Rate limit of all messages to relays; the answer to a token comes on top."""
_LATEST_S = 5.0
"""A later answer is ignored: its round trip says nothing."""


@dataclass(frozen=True, slots=True)
class RelaySite:
    """Where a relay may be reached."""

    endpoints: tuple[Endpoint, ...] = ()
    """Endpoints of its tunnel's port, the most promising first."""
    fallbacks: tuple[Endpoint, ...] = ()
    """Endpoints that are tried only when the others do not answer."""
    tls: tuple[Endpoint, ...] = ()


@dataclass(slots=True, eq=False)
class Line:
    """The way to one relay by one IP version."""

    relay: str
    version: int
    at: Endpoint | None = None
    """The relay's endpoint that answered last."""
    alive: bool = False
    rtt_s: float = math.inf
    """Smoothed; infinite: never answered."""
    next_s: float = -math.inf
    """When it is asked again, or the answer is overdue."""
    misses: int = 0
    """Hellos in a row without an answer."""
    silent_s: float = math.inf
    """When the first unanswered hello was sent."""
    moves: TokenBucket = field(default_factory=lambda: TokenBucket(1 / MOVED_S, MOVES))
    """Other endpoints that are asked at once although the relay has not answered."""
    endpoints: tuple[Endpoint, ...] = ()
    fallbacks: tuple[Endpoint, ...] = ()
    asked: dict[bytes, tuple[Endpoint, float]] = field(default_factory=dict)
    """Where and when hellos were sent, by their nonces; the latest last."""

    @property
    def quick_s(self) -> float:
        return max(QUICK_S, 2 * self.rtt_s) if self.rtt_s < math.inf else QUICK_S

    @property
    def silent_from_s(self) -> float:
        """From when on it counts as silent, unless it answers; infinity: it is not waited for."""
        usual_s = 1.5 * self.rtt_s if self.rtt_s < math.inf else 0.0
        return self.silent_s + max(SILENT_S, usual_s)

    def rename(
        self, endpoints: tuple[Endpoint, ...], fallbacks: tuple[Endpoint, ...], now_s: float
    ) -> None:
        """Where the relay says that it is; asked soon if that is new."""
        if (self.endpoints, self.fallbacks) == (endpoints, fallbacks):
            return
        self.endpoints, self.fallbacks = endpoints, fallbacks
        waits_s = 0.0 if self.alive else self.moves.wait_s(now_s)
        self.next_s = min(self.next_s, now_s + waits_s)
        if not self.alive and not waits_s:
            self.moves.take(now_s)
        if self.at not in (*endpoints, *fallbacks):
            self.at, self.alive = None, False

    @property
    def seeks(self) -> bool:
        """Whether its endpoint is silent, so that all others are asked too."""
        return self.misses >= 2

    def targets(self) -> tuple[Endpoint, ...]:
        """Where the next hello goes: to where it answered, and once that is silent everywhere."""
        if self.at is not None and not self.seeks:
            return (self.at,)
        found = (*([self.at] if self.at is not None else []), *self.endpoints)
        if self.misses or not found:
            found = (*found, *self.fallbacks)
        return tuple(dict.fromkeys(found))[: RELAY_PLACES.most]


class Contacts:
    def __init__(
        self,
        make_nonce: Callable[[], bytes],
        unproven: UnprovenBudget,
        *,
        nat_timeout_s: float = NAT_TIMEOUT_S,
    ) -> None:
        """`make_nonce`: 8 random bytes. `unproven`: the node's. `nat_timeout_s`: of silence, then
        NATs forget the node."""
        self.make_nonce = make_nonce
        self.unproven = unproven
        self.haste = nat_timeout_s / NAT_TIMEOUT_S
        """By so much all that keeps NATs open is sooner than usual."""
        self.sites: Mapping[str, RelaySite] = {}
        """By the relay's uid."""
        self.lines: dict[tuple[str, int], Line] = {}
        """By uid and IP version."""
        self.nearest: tuple[str, ...] = ()
        """At most three that are alive, by round trip when they were chosen."""

    def set_sites(self, sites: Mapping[str, RelaySite], now_s: float) -> list[Line]:
        """All relays that there are; returns the lines that are none any more."""
        before, self.sites = self.lines, dict(sites)
        self.lines = {}
        for uid, site in sites.items():
            for version in (4, 6):
                endpoints = tuple(each for each in site.endpoints if each[0].version == version)
                fallbacks = tuple(each for each in site.fallbacks if each[0].version == version)
                if not endpoints and not fallbacks:
                    continue
                line = before.get((uid, version)) or Line(uid, version, next_s=math.inf)
                line.rename(endpoints, fallbacks, now_s)
                self.lines[uid, version] = line
        self._rank(now_s)
        return [line for key, line in before.items() if key not in self.lines]

    def lines_of(self, uid: str) -> Iterator[Line]:
        for version in (4, 6):
            line = self.lines.get((uid, version))
            if line is not None:
                yield line

    def best_line(self, uid: str) -> Line | None:
        """One that is alive, of IPv4 if there is one.

        Both ends of a pair should take the same IP version: the relay's kernel hands on within one.
        """
        return next((line for line in self.lines_of(uid) if line.alive), None)

    def place_of(self, uid: str) -> Endpoint | None:
        """Where the relay answers, by its best line; None: nowhere."""
        best = self.best_line(uid)
        return best.at if best is not None else None

    def rtt_s(self, uid: str) -> float:
        """Round trip of the relay's fastest line; infinite: it does not answer."""
        return min((line.rtt_s for line in self.lines_of(uid) if line.alive), default=math.inf)

    @property
    def alive(self) -> list[str]:
        return [uid for uid in self.sites if self.rtt_s(uid) < math.inf]

    @property
    def near_endpoints(self) -> frozenset[Endpoint]:
        """Endpoints by which the nearest relays answer."""
        lines = (line for uid in self.nearest for line in self.lines_of(uid))
        return frozenset(line.at for line in lines if line.at is not None)

    def is_silent(self, now_s: float) -> bool:
        """No relay has answered over UDP for a moment in which each should have."""
        return self.silent_from_s() <= now_s

    def silent_from_s(self) -> float:
        """When `is_silent` becomes true if nothing more is heard; infinity: not by waiting."""
        return max((line.silent_from_s for line in self.lines.values()), default=-math.inf)

    def is_blocked(self, version: int, now_s: float) -> bool:
        """There are relays of the IP version, and none answers."""
        lines = [line for line in self.lines.values() if line.version == version]
        return bool(lines) and not any(
            line.alive or line.silent_from_s > now_s - _BLOCKED_AFTER_S for line in lines
        )

    # Asking

    def hurry(self, now_s: float, uids: Iterable[str] | None = None) -> None:
        """Makes the lines of these relays, or all, due now, and forgets their misses if dead."""
        wanted = None if uids is None else frozenset(uids)
        for line in self.lines.values():
            lately = any(at_s > now_s - QUICK_S for _, at_s in line.asked.values())
            if (wanted is None or line.relay in wanted) and not lately:
                line.next_s = min(line.next_s, now_s)
                if not line.alive:
                    line.misses = 0

    def take_due(
        self, line: Line, now_s: float, *, urgent: bool = False
    ) -> list[tuple[Endpoint, Hello]]:
        """The hellos to send on a line that is due. `urgent`: peers wait for a relay."""
        if line.silent_s < math.inf:
            line.misses += 1
        found = [
            endpoint
            for endpoint in line.targets()
            if self.unproven.may_ask(line.relay, endpoint[0], now_s)
        ]
        if line.misses >= TRIES and line.alive:
            line.alive, line.at = False, None
            self._rank(now_s)
        if line.misses < TRIES:
            line.next_s = now_s + line.quick_s
        else:
            slowest_s = URGENT_S if urgent else SLOWEST_S
            line.next_s = now_s + min(2.0 ** min(line.misses - TRIES, 10), slowest_s)
        line.silent_s = min(line.silent_s, now_s)
        hellos = []
        for endpoint in found:
            hello = Hello(self.make_nonce())
            line.asked[hello.nonce] = endpoint, now_s
            hellos.append((endpoint, hello))
        while len(line.asked) > _KEPT_NONCES:
            del line.asked[next(iter(line.asked))]
        return hellos

    # Hearing

    def seen(self, uid: str, nonce: bytes, source: Endpoint, now_s: float) -> Line | None:
        """The relay has answered a hello from `source`; None: it was asked no such thing there.

        A relay may write its answer from any address that it forges; only who is there has heard
        what was asked there.
        """
        line = self.lines.get((uid, source[0].version))
        if line is None or source not in (*line.endpoints, *line.fallbacks):
            return None
        asked_at, sent_s = line.asked.get(nonce, (None, -math.inf))
        rtt_s = now_s - sent_s
        if asked_at != source or rtt_s > _LATEST_S:
            return None
        del line.asked[nonce]
        self.unproven.answered(uid, source[0], now_s)
        fresh = line.rtt_s == math.inf or not line.alive
        line.rtt_s = rtt_s if fresh else line.rtt_s + _SMOOTHING * (rtt_s - line.rtt_s)
        if line.at is None or not line.alive or line.seeks or self._is_better(line, source):
            line.at = source
        line.alive, line.misses, line.silent_s = True, 0, math.inf
        line.next_s = now_s + FAR_S
        self._rank(now_s)
        return line

    @staticmethod
    def _is_better(line: Line, source: Endpoint) -> bool:
        every = (*line.endpoints, *line.fallbacks)
        return line.at not in every or every.index(source) < every.index(line.at)

    def _rank(self, now_s: float) -> None:
        """Chooses the nearest relays anew; one stays among them until another is clearly nearer."""

        def weight(uid: str) -> tuple[float, str]:
            rtt_s = self.rtt_s(uid)
            return (rtt_s * _STICKY - _STICKY_S if uid in self.nearest else rtt_s, uid)

        self.nearest = tuple(sorted(self.alive, key=weight)[:NEAREST])
        for uid in self.nearest:
            for line in self.lines_of(uid):
                if line.alive:
                    line.next_s = min(line.next_s, now_s + NEAR_S * self.haste)


@dataclass(slots=True)
class SendLimits:
    """Rate limits of a node towards relays."""

    spent_s: float = -math.inf
    """Until when nothing is sent: each message takes 1 / RATE_PER_S of time."""
    hurried_s: float = -math.inf
    moved_s: float = -math.inf

    def spend(self, now_s: float) -> None:
        self.spent_s = max(self.spent_s, now_s - BURST / RATE_PER_S) + 1 / RATE_PER_S
