"""Questions for upstreams as a state machine: who is asked when, what is remembered, who is told.

A question is asked once however many wait for it. Each asking has a number of its own: from its
own port, with its own random id, and with one upstream that may answer it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from limpet.base.bounds.servers import DNS_GUESSES
from limpet.base.bounds.strangers import DNS_FORWARDED, DNS_FORWARDED_OF_ONE
from limpet.base.rate_limit import DueQueue
from limpet.dns import wire
from limpet.dns.forward.askers import Askers
from limpet.dns.forward.cache import STALE_TTL_S, Cache, CachedAnswer, Key
from limpet.dns.forward.effects import AskUpstream, CloseAttempt, Deliver, Effect
from limpet.dns.forward.health import Health, Upstream, in_order
from limpet.dns.wire import DnsAnswer, Query

ANSWER_WITHIN_S = 0.8
"""Then the next upstream is asked too; an answer that still comes is taken."""
STALE_AFTER_S = 0.5
"""Who could have a stale answer waits no longer for a fresh one. RFC 8767 allows 1.8 s."""
GIVE_UP_S = 4.5
"""Resolvers of C libraries ask again after 5 s."""
GIVE_UP_SOON_S = 1.5
"""Where nobody at all has answered lately: who waits has better things to ask for. It is longer
than the way to a satellite and back."""
FAILED_S = 1.0
"""What nobody has answered is not asked again before. Source: RFC 9520, section 3.2."""
RECHECK_S = 5.0
"""What could not be refreshed is not tried again before."""
MOST_ATTEMPTS = 6
_LOOP_TYPE = wire.HINFO

W = TypeVar("W", bound=Hashable)


@dataclass(slots=True)
class _Attempt:
    key: Key
    upstream: int
    number: int
    edns: bool = True
    by_tcp: bool = False
    guesses: int = 0
    """Answers that were none to this question."""


@dataclass(slots=True)
class _Asked(Generic[W]):
    """A question that is under way."""

    question: bytes
    flags: int
    dnssec: bool
    begun_s: float
    patience_s: float = GIVE_UP_S
    """How long anybody waits; what comes later, until `GIVE_UP_S`, is kept."""
    who: str = ""
    """The client that was the first to ask; empty: we ourselves."""
    waiting: Askers[W] = field(default_factory=Askers)
    attempts: set[int] = field(default_factory=set)
    tried: list[int] = field(default_factory=list)
    """Upstreams, one after the other."""
    next_s: float = 0.0
    worst: DnsAnswer | None = None
    """What an upstream refused with."""


class Forwarder(Generic[W]):
    """What its methods return is to be carried out, in order; `due` is called at `next_s`."""

    def __init__(self, cache: Cache, random_number: Callable[[], int]) -> None:
        """`random_number`: 16 bits that nobody can guess."""
        self.cache = cache
        self._random = random_number
        self.upstreams: tuple[Upstream, ...] = ()
        self._last = frozenset[Upstream]()
        self.healths: list[Health] = []
        self._asked: dict[Key, _Asked[W]] = {}
        self._attempts: dict[int, _Attempt] = {}
        self._due: DueQueue[Key] = DueQueue()
        self._recheck: dict[Key, float] = {}
        """Questions that nobody has answered, and when they are asked again."""
        self._loops: dict[bytes, int] = {}
        """Names that nobody but us asks for, and the upstream that was asked."""
        self._begun: Counter[str] = Counter()
        """Questions under way, by who was the first to ask."""
        self._count = 0

    @property
    def next_s(self) -> float:
        """When `due` has something to do; infinity: never."""
        return self._due.first_s

    @property
    def under_way(self) -> int:
        """Questions."""
        return len(self._asked)

    @property
    def with_health(self) -> list[tuple[Upstream, Health]]:
        return list(zip(self.upstreams, self.healths, strict=True))

    def explain(self, question: bytes, now_s: float) -> str:
        """From where the answer to a plain question comes now, in words."""
        kept = self.cache.get((wire.folded(question), 0), now_s)
        if kept is not None and now_s < kept.until_s:
            return f"kept for {kept.until_s - now_s:.0f} s more, of {kept.age_s(now_s)} s ago"
        order = in_order(self.healths, now_s)
        if not order:
            return "there is no upstream to ask (dns_upstreams, or the node's resolv.conf)"
        words = f"asked of {self.upstreams[order[0]]}"
        if kept is not None:
            return f"{words}; without an answer a stale one of {kept.age_s(now_s)} s ago is told"
        return words

    def use(self, upstreams: Sequence[Upstream], now_s: float) -> list[Effect[W]]:
        """These from now on. Each is asked for a name of our own, which must not come back. What
        others said is forgotten if none of them is left: the node may be in another network. These
        are asked for what is under way."""
        if tuple(upstreams) == self.upstreams:
            return []
        if upstreams and self._last.isdisjoint(upstreams):
            self.cache.clear()
        self._recheck.clear()
        self._last = frozenset(upstreams) or self._last
        known = dict(zip(self.upstreams, self.healths, strict=True))
        effects = self._give_up_attempts(now_s)
        self.upstreams = tuple(upstreams)
        self.healths = [known.get(each) or Health() for each in self.upstreams]
        self._loops = {}
        for key, asked in list(self._asked.items()):
            effects += self._next(key, asked, now_s)
        for number in range(len(self.upstreams)):
            effects += self.look_for_loop(number, now_s)
        return effects

    def look_for_loop(self, upstream: int, now_s: float) -> list[Effect[W]]:
        """Asks it for a name that was never asked before: who asks us for it was sent by it."""
        labels = tuple(f"{self._random():04x}{self._random():04x}".encode() for _ in range(2))
        question = wire.join_name(labels) + _LOOP_TYPE.to_bytes(2, "big") + b"\0\1"
        self._loops[question] = upstream
        key = (question, 0)
        asked: _Asked[W] = _Asked(question, 0, dnssec=False, begun_s=now_s)
        asked.tried = [upstream] * MOST_ATTEMPTS  # nobody else
        self.healths[upstream].probed(now_s)
        return self._begin(key, asked, upstream, now_s)

    def _suspect(self, key: Key, upstream: int, now_s: float) -> list[Effect[W]]:
        """It has failed, as one does that has begun to send our questions back to us."""
        if key[0] in self._loops or now_s < self.healths[upstream].probed_until_s:
            return []
        return self.look_for_loop(upstream, now_s)

    # Asking

    def ask(self, query: Query, waiter: W, now_s: float, who: str) -> list[Effect[W]]:
        """The waiter is told now or later, once. `who`: its address, and that of all its others."""
        question = wire.folded(query.question)
        upstream = self._loops.get(question)
        if upstream is not None:
            self.healths[upstream].looped(now_s)
            return [Deliver(waiter, DnsAnswer(wire.REFUSED))]
        flags = query.flags & wire.CD
        key = (question, flags | int(query.wants_dnssec))
        kept = self.cache.get(key, now_s)
        if kept is not None and now_s < kept.until_s:
            return [Deliver(waiter, kept.answer, kept.age_s(now_s))]
        asked = self._asked.get(key)
        if asked is not None and kept is None and now_s >= asked.begun_s + asked.patience_s:
            return [_failed(waiter)]
        if asked is not None:
            return self._join(key, asked, (who, waiter), kept, now_s)
        if now_s < self._recheck.get(key, 0.0):
            return [_stale(waiter, kept) if kept is not None else _failed(waiter)]
        order = in_order(self.healths, now_s)
        is_crowded = (
            len(self._asked) >= DNS_FORWARDED.most or self._begun[who] >= DNS_FORWARDED_OF_ONE.most
        )
        if is_crowded or not order:
            return [_stale(waiter, kept) if kept is not None else _failed(waiter)]
        is_dead = all(self.healths[each].failures > 1 for each in order)
        patience_s = GIVE_UP_SOON_S if is_dead else GIVE_UP_S
        asked = _Asked(query.question, flags, query.wants_dnssec, now_s, patience_s, who)
        effects = self._begin(key, asked, order[0], now_s)
        if kept is not None and self.healths[order[0]].failures:
            return [_stale(waiter, kept), *effects]  # nobody has answered lately
        return effects + self._join(key, asked, (who, waiter), kept, now_s)

    def _begin(self, key: Key, asked: _Asked[W], upstream: int, now_s: float) -> list[Effect[W]]:
        self._asked[key] = asked
        self._begun[asked.who] += 1
        return self._attempt(key, asked, upstream, now_s)

    def _join(
        self,
        key: Key,
        asked: _Asked[W],
        asker: tuple[str, W],
        kept: CachedAnswer | None,
        now_s: float,
    ) -> list[Effect[W]]:
        if kept is not None and now_s >= asked.begun_s + STALE_AFTER_S:
            return [_stale(asker[1], kept)]
        refused = asked.waiting.put(*asker)
        self._due.put(key, self._due_s(key, asked, now_s))
        return [] if refused is None else [_failed(refused)]

    def _due_s(self, key: Key, asked: _Asked[W], now_s: float) -> float:
        due_s = min(asked.next_s, asked.begun_s + GIVE_UP_S)
        if asked.waiting:
            due_s = min(due_s, asked.begun_s + asked.patience_s)
        if asked.waiting and self.cache.get(key, now_s) is not None:
            due_s = min(due_s, asked.begun_s + STALE_AFTER_S)
        return due_s

    def _attempt(
        self,
        key: Key,
        asked: _Asked[W],
        upstream: int,
        now_s: float,
        *,
        edns: bool = True,
        by_tcp: bool = False,
    ) -> list[Effect[W]]:
        self._count += 1
        number = self._random() & 0xFFFF
        self._attempts[self._count] = _Attempt(key, upstream, number, edns, by_tcp)
        asked.attempts.add(self._count)
        asked.tried.append(upstream)
        asked.next_s = now_s + ANSWER_WITHIN_S
        self._due.put(key, self._due_s(key, asked, now_s))
        message = wire.write_query(
            number, asked.question, asked.flags, dnssec=asked.dnssec, edns=edns
        )
        return [AskUpstream(self._count, upstream, message, by_tcp)]

    def _next(self, key: Key, asked: _Asked[W], now_s: float) -> list[Effect[W]]:
        """Whoever has been asked least; nothing once all were asked often enough."""
        if len(asked.tried) >= MOST_ATTEMPTS:
            asked.next_s = math.inf
            self._due.put(key, self._due_s(key, asked, now_s))
            return []
        order = in_order(self.healths, now_s)
        if not order:
            return self._end(key, asked, now_s)
        return self._attempt(key, asked, min(order, key=asked.tried.count), now_s)

    # Hearing

    def heard(self, attempt: int, message: bytes, now_s: float) -> list[Effect[W]]:
        """Something came for an attempt, from its upstream's address."""
        tried = self._attempts.get(attempt)
        if tried is None:
            return []
        asked = self._asked[tried.key]
        try:
            answer = wire.parse_response(message, tried.number, asked.question)
        except ValueError:
            return self.failed(attempt, now_s)
        if answer is None:
            # Somebody guesses; the upstream's own may still come.
            tried.guesses += 1
            return self._by_tcp(attempt, asked, now_s) if tried.guesses > DNS_GUESSES.most else []
        self.healths[tried.upstream].answered()
        if answer.flags & wire.TC:
            return self._by_tcp(attempt, asked, now_s)
        if answer.code in (wire.NOERROR, wire.NXDOMAIN):
            self.cache.put(tried.key, answer, now_s)
            self._recheck.pop(tried.key, None)
            return self._finish(tried.key, asked, answer)
        if answer.code in (wire.FORMERR, wire.NOTIMP) and tried.edns:
            # Of old servers, which know no EDNS. Source: RFC 6891 section 6.2.2.
            effects = self._over(attempt, asked)
            return effects + self._attempt(
                tried.key, asked, tried.upstream, now_s, edns=False, by_tcp=tried.by_tcp
            )
        asked.worst = answer
        effects = self._suspect(tried.key, tried.upstream, now_s)
        return effects + self._without(attempt, tried, asked, now_s)

    def _by_tcp(self, attempt: int, asked: _Asked[W], now_s: float) -> list[Effect[W]]:
        """The same upstream is asked once more; who was asked by TCP already has no answer."""
        tried = self._attempts[attempt]
        if tried.by_tcp:
            return self.failed(attempt, now_s)
        effects = self._over(attempt, asked)
        asked.tried.remove(tried.upstream)
        return effects + self._attempt(
            tried.key, asked, tried.upstream, now_s, edns=tried.edns, by_tcp=True
        )

    def failed(self, attempt: int, now_s: float) -> list[Effect[W]]:
        """The upstream cannot be reached, or has answered nonsense."""
        tried = self._attempts.get(attempt)
        if tried is None:
            return []
        self.healths[tried.upstream].failed(now_s)
        effects = self._suspect(tried.key, tried.upstream, now_s)
        return effects + self._without(attempt, tried, self._asked[tried.key], now_s)

    def _without(
        self, attempt: int, tried: _Attempt, asked: _Asked[W], now_s: float
    ) -> list[Effect[W]]:
        effects = self._over(attempt, asked)
        if set(range(len(self.upstreams))) <= set(asked.tried) and not asked.attempts:
            return effects + self._end(tried.key, asked, now_s)
        if asked.attempts:
            return effects
        return effects + self._next(tried.key, asked, now_s)

    def due(self, now_s: float) -> list[Effect[W]]:
        """What time has brought about."""
        effects: list[Effect[W]] = []
        while (key := self._due.take(now_s)) is not None:
            asked = self._asked[key]
            if now_s >= asked.begun_s + GIVE_UP_S:
                effects += self._blame(key, asked, now_s)
                effects += self._end(key, asked, now_s)
                continue
            kept = self.cache.get(key, now_s)
            if kept is not None and now_s >= asked.begun_s + STALE_AFTER_S:
                effects += [_stale(waiter, kept) for waiter in asked.waiting.take_all()]
            elif now_s >= asked.begun_s + asked.patience_s:
                effects += map(_failed, asked.waiting.take_all())
            if now_s >= asked.next_s:
                effects += self._blame(key, asked, now_s)
                effects += self._next(key, asked, now_s)
            else:
                self._due.put(key, self._due_s(key, asked, now_s))
        return effects

    def _blame(self, key: Key, asked: _Asked[W], now_s: float) -> list[Effect[W]]:
        effects: list[Effect[W]] = []
        for upstream in [self._attempts[attempt].upstream for attempt in asked.attempts]:
            self.healths[upstream].failed(now_s)
            effects += self._suspect(key, upstream, now_s)
        return effects

    # Ending

    def _end(self, key: Key, asked: _Asked[W], now_s: float) -> list[Effect[W]]:
        """Nobody knows it."""
        kept = self.cache.get(key, now_s)
        if kept is None and asked.worst is not None:
            return self._finish(key, asked, asked.worst)
        if len(self._recheck) >= DNS_FORWARDED.most:
            self._recheck = {k: until for k, until in self._recheck.items() if until > now_s}
        if asked.who:
            self._recheck[key] = now_s + (FAILED_S if kept is None else RECHECK_S)
        if kept is None:
            return self._finish(key, asked, DnsAnswer(wire.SERVFAIL))
        told: list[Effect[W]] = [_stale(each, kept) for each in asked.waiting.take_all()]
        return told + self._finish(key, asked, kept.answer)

    def _finish(self, key: Key, asked: _Asked[W], answer: DnsAnswer) -> list[Effect[W]]:
        effects: list[Effect[W]] = [Deliver(each, answer) for each in asked.waiting.take_all()]
        for attempt in sorted(asked.attempts):
            effects += self._over(attempt, asked)
        del self._asked[key]
        self._begun[asked.who] -= 1
        if not self._begun[asked.who]:
            del self._begun[asked.who]
        self._due.drop(key)
        self._loops.pop(key[0], None)
        return effects

    def _over(self, attempt: int, asked: _Asked[W]) -> list[Effect[W]]:
        del self._attempts[attempt]
        asked.attempts.discard(attempt)
        return [CloseAttempt(attempt)]

    def _give_up_attempts(self, now_s: float) -> list[Effect[W]]:
        """Questions are as if nobody had been asked; those that look for loops are over."""
        effects: list[Effect[W]] = []
        for key, asked in list(self._asked.items()):
            if key[0] in self._loops:
                effects += self._end(key, asked, now_s)
                continue
            for attempt in list(asked.attempts):
                effects += self._over(attempt, asked)
            asked.tried.clear()
            asked.worst = None
        return effects


def _stale(waiter: W, kept: CachedAnswer) -> Deliver[W]:
    return Deliver(waiter, kept.answer, ttl_s=STALE_TTL_S)


def _failed(waiter: W) -> Deliver[W]:
    return Deliver(waiter, DnsAnswer(wire.SERVFAIL))
