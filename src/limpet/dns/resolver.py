"""One message in, one answer out, now or later: names of the cluster here, others by upstreams."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle, repeat
from typing import Generic, TypeVar

from limpet.base.bounds.strangers import (
    DNS_FOUND,
    DNS_FOUND_RECORDS,
    DNS_READY,
    DNS_READY_ANSWER,
    DNS_READY_BYTES,
    DNS_READY_QUESTION,
)
from limpet.dns import wire
from limpet.dns.forward.effects import AskUpstream, CloseAttempt, Deliver, Effect
from limpet.dns.forward.forwarder import Forwarder
from limpet.dns.forward.health import Upstream
from limpet.dns.names import ClusterNames, Found, Labels
from limpet.dns.render import render, render_alias, render_no, take_turns
from limpet.dns.wire import DnsAnswer, Query, QueryRefused
from limpet.services.rotation import Here
from limpet.services.values import ServiceName

_ReadyKey = bytes | tuple[bytes]
"""A message behind its number; in a tuple where it came by TCP, by which nothing is cut. No message
by UDP can be like one."""

C = TypeVar("C", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Reply(Generic[C]):
    """What goes out to somebody who has waited."""

    client: C
    message: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Asker(Generic[C]):
    """Who waits for an upstream's answer, and what became of the question."""

    client: C
    query: Query
    size: int
    alias: tuple[Found, bytes] | None = None
    """A name of the cluster that leads to the one that is asked for, and that question."""


@dataclass(slots=True)
class Counts:
    """Counts since the process began."""

    cluster: int = 0
    """Questions for the cluster's names."""
    ready: int = 0
    """Questions for the cluster's names that were answered with bytes that were there."""
    forwarded: int = 0
    """Questions for other names."""
    refused: int = 0
    """Messages that were no question."""
    dropped: int = 0
    """Questions of clients that had too many waiting already."""
    sent_to_tcp: int = 0
    """Questions by UDP from beyond this node, which are answered by TCP alone."""
    stale: int = 0
    """Questions that got an answer which has ended, since nobody could be asked."""
    failed: int = 0
    """Questions that got SERVFAIL for an answer."""


@dataclass(slots=True)
class _Ready:
    """Answers behind the number of the message that they answer, for a message just like the last
    one."""

    answers: dict[_ReadyKey, Iterator[bytes]] = field(default_factory=dict)
    of: dict[ServiceName | None, list[_ReadyKey]] = field(default_factory=dict)
    sizes: dict[_ReadyKey, int] = field(default_factory=dict)
    size_bytes: int = 0
    """Size of all answers, in all their orders."""

    def put(self, key: _ReadyKey, responses: Sequence[bytes], of: ServiceName | None) -> None:
        """One after the other is told, and then the first again."""
        told = [each[2:] for each in responses]
        size = sum(map(len, told))
        asked = key[0] if isinstance(key, tuple) else key
        if len(asked) > DNS_READY_QUESTION.most or size > DNS_READY_ANSWER.most:
            return
        if len(self.answers) >= DNS_READY.most or self.size_bytes + size > DNS_READY_BYTES.most:
            self.clear()
        self.answers[key] = cycle(told) if len(told) > 1 else repeat(told[0])
        self.of.setdefault(of, []).append(key)
        self.sizes[key] = size
        self.size_bytes += size

    def drop(self, of: ServiceName | None) -> None:
        for key in self.of.pop(of, ()):
            self.answers.pop(key, None)
            self.size_bytes -= self.sizes.pop(key, 0)

    def clear(self) -> None:
        self.answers.clear()
        self.of.clear()
        self.sizes.clear()
        self.size_bytes = 0


@dataclass(slots=True)
class _Looked:
    """What there is under names that were asked for: with other capitals it is the same."""

    found: dict[tuple[Labels, int], Found] = field(default_factory=dict)
    rendered: dict[tuple[Labels, int], DnsAnswer] = field(default_factory=dict)
    """Answers of those, whose names point into the question, whatever capitals that has."""
    turns: dict[tuple[Labels, int], int] = field(default_factory=dict)
    """How many messages asked for those, each unlike all before."""
    of: dict[ServiceName | None, list[tuple[Labels, int]]] = field(default_factory=dict)
    records: int = 0

    def put(self, key: tuple[Labels, int], found: Found) -> None:
        count = len(found.records) + len(found.further)
        if not found.records or count > DNS_FOUND_RECORDS.most:
            return
        if len(self.found) >= DNS_FOUND.most or self.records + count > DNS_FOUND_RECORDS.most:
            self.clear()
        self.found[key] = found
        self.of.setdefault(found.of, []).append(key)
        self.records += count

    def drop(self, of: ServiceName | None) -> None:
        for key in self.of.pop(of, ()):
            if (found := self.found.pop(key, None)) is not None:
                self.records -= len(found.records) + len(found.further)
                self.rendered.pop(key, None)
                self.turns.pop(key, None)

    def answer(self, key: tuple[Labels, int], question: bytes, no: DnsAnswer) -> DnsAnswer:
        """As `render`, of what there is. Raises: ValueError."""
        if (answer := self.rendered.get(key)) is None:
            answer = render(question, self.found[key], no)
            self.rendered[key] = answer
        return answer

    def next_turn(self, key: tuple[Labels, int]) -> int:
        """Turns that others had before a message like none before it: there are clients of which
        no two messages are alike, since each has a cookie."""
        if key not in self.found:
            return 0
        turn = self.turns.get(key, 0)
        self.turns[key] = turn + 1
        return turn

    def clear(self) -> None:
        self.found.clear()
        self.rendered.clear()
        self.turns.clear()
        self.of.clear()
        self.records = 0


class Resolver(Generic[C]):
    """Pure: time is passed in, and what is to be done is left in `effects`, in order."""

    def __init__(self, forwarder: Forwarder[Asker[C]]) -> None:
        self.forwarder = forwarder
        self._names: ClusterNames | None = None
        self._zone: Labels = ()
        self._no = DnsAnswer(wire.SERVFAIL)
        self._ready = _Ready()
        self._looked = _Looked()
        self.counts = Counts()
        self.here = Here()
        self.effects: list[AskUpstream | CloseAttempt | Reply[C]] = []

    @property
    def next_s(self) -> float:
        return self.forwarder.next_s

    @property
    def services(self) -> int | None:
        """How many are known; None: none was ever heard of."""
        return None if self._names is None else len(self._names)

    # What is known

    @property
    def names(self) -> ClusterNames | None:
        """None: no Service was ever heard of."""
        return self._names

    def know(self, names: ClusterNames) -> None:
        """The cluster's names, from now on these."""
        self._names = names
        self._no = render_no(names.soa())
        self._ready.clear()
        self._looked.clear()

    def serve(self, domain: str) -> None:
        """Names below are the cluster's, also while nothing of it is known."""
        self._zone = tuple(domain.encode().split(b"."))

    def changed(self, services: Iterable[ServiceName]) -> None:
        """Their names may lead elsewhere."""
        services = list(services)
        if self._names is not None and services:
            self._names.changed(services)
            for key in (None, *services):
                self._forget(key)

    def set_here(self, here: Here) -> None:
        """Takes which endpoints are near, and which are known to be dead."""
        self.here = here
        if self._names is not None:
            for key in self._names.set_here(here):
                self._forget(key)
            self._forget(None)

    def _forget(self, of: ServiceName | None) -> None:
        self._ready.drop(of)
        self._looked.drop(of)

    def use(self, upstreams: Sequence[Upstream], now_s: float) -> None:
        self._do(self.forwarder.use(upstreams, now_s))

    # Messages

    def take(
        self, message: bytes, client: C, now_s: float, *, by_tcp: bool = False, who: str = ""
    ) -> bytes | None:
        """The answer; None: none, or it comes as an effect. `who`: the client's address."""
        key: _ReadyKey = (message[2:],) if by_tcp else message[2:]
        if (ready := self._ready.answers.get(key)) is not None:
            self.counts.cluster += 1
            self.counts.ready += 1
            return message[:2] + next(ready)
        try:
            query = wire.parse_query(message)
        except QueryRefused as refused:
            self.counts.refused += 1
            return refused.response
        size = wire.LARGEST_TCP if by_tcp else query.size
        if not query.is_internet:
            self.counts.refused += 1
            return wire.write_response(query, DnsAnswer(wire.REFUSED), size=size)
        found = self.find(query.name, query.type)
        try:
            if found is None or found.target is not None:
                self._forward(query, client, size, found, now_s, who)
                return None
            key_of_found = (query.name, query.type)
            if self._looked.found.get(key_of_found) is found:
                answer = self._looked.answer(key_of_found, query.question, self._no)
            else:
                answer = render(query.question, found, self._no)
        except ValueError:  # an object names what is no name
            found, answer = Found(wire.SERVFAIL), DnsAnswer(wire.SERVFAIL)
        self.counts.cluster += 1
        if answer.code == wire.SERVFAIL:
            self.counts.failed += 1
            return wire.write_response(query, DnsAnswer(wire.SERVFAIL), size=size)
        responses = [
            wire.write_response(query, each, size=size) for each in take_turns(answer, found.turns)
        ]
        first = self._looked.next_turn(key_of_found) % len(responses)
        # From the next one on: this one goes out now.
        later = (*responses[first + 1 :], *responses[: first + 1])
        self._ready.put(key, later, found.of)
        return responses[first]

    def send_to_tcp(self, message: bytes) -> bytes | None:
        """An answer no longer than the question, which says to ask by TCP; None: it gets none."""
        try:
            query = wire.parse_query(message)
        except QueryRefused as refused:
            self.counts.refused += 1
            return refused.response
        self.counts.sent_to_tcp += 1
        return wire.write_response(query, DnsAnswer(wire.NOERROR | wire.TC), size=query.size)

    def find(self, name: Labels, kind: int) -> Found | None:
        """None: it is upstreams' to say."""
        if self._names is not None:
            if (known := self._looked.found.get((name, kind))) is not None:
                return known
            found = self._names.look_up(name, kind)
            if found is not None:
                self._looked.put((name, kind), found)
            return found
        if self._zone and name[-len(self._zone) :] == self._zone:
            return Found(wire.SERVFAIL, because="no Service was ever heard of on this node")
        return None

    def heard(self, attempt: int, message: bytes, now_s: float) -> None:
        self._do(self.forwarder.heard(attempt, message, now_s))

    def failed(self, attempt: int, now_s: float) -> None:
        self._do(self.forwarder.failed(attempt, now_s))

    def due(self, now_s: float) -> None:
        self._do(self.forwarder.due(now_s))

    # What comes of it

    def _forward(
        self, query: Query, client: C, size: int, alias: Found | None, now_s: float, who: str
    ) -> None:
        if alias is None or alias.target is None:
            asker = Asker(client, query, size)
        else:
            asker = Asker(client, query, size, (alias, query.question))
            question = wire.join_name(alias.target) + query.question[-4:]
            query = Query(
                query.number, query.flags, question, query.size, query.has_edns, wants_dnssec=False
            )
        self.counts.forwarded += 1
        self._do(self.forwarder.ask(query, asker, now_s, who))

    def _do(self, effects: Iterable[Effect[Asker[C]]]) -> None:
        for effect in effects:
            if isinstance(effect, Deliver):
                self.effects.append(self._reply(effect))
            else:
                self.effects.append(effect)

    def _reply(self, told: Deliver[Asker[C]]) -> Reply[C]:
        asker, answer = told.waiter, told.answer
        if asker.alias is not None:
            answer = self._behind_alias(answer, asker.alias)
        self.counts.failed += answer.code == wire.SERVFAIL
        self.counts.stale += told.ttl_s is not None
        message = wire.write_response(
            asker.query, answer, size=asker.size, age_s=told.age_s, ttl_s=told.ttl_s
        )
        return Reply(asker.client, message)

    def _behind_alias(self, target: DnsAnswer, alias: tuple[Found, bytes]) -> DnsAnswer:
        found, question = alias
        assert found.target is not None
        try:
            asked = wire.join_name(found.target) + question[-4:]
            return render_alias(question, found, target, asked)
        except ValueError:
            return DnsAnswer(wire.SERVFAIL)


def random_numbers(read: Callable[[int], bytes]) -> Callable[[], int]:
    """16 bits each time, of what `read` gives by the kilobyte (`os.urandom`)."""
    left: list[int] = []

    def number() -> int:
        if not left:
            block = read(1024)
            left.extend(int.from_bytes(block[at : at + 2], "big") for at in range(0, 1024, 2))
        return left.pop()

    return number
