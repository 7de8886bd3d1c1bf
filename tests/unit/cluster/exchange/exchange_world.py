"""A world of gossiping nodes without clocks or sockets: what is sent is delivered, late or not."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from ipaddress import ip_address

from limpet.cluster.documents import Document, Key, Known, Sealed, Source
from limpet.cluster.exchange.gossip import Gossip
from limpet.cluster.exchange.messages import Message, Push, datagram_bytes, decode, encode
from limpet.cluster.exchange.neighbours import Broadcast, Contact, Destination, Effect
from limpet.cluster.kinds import GRANT, NETWORK, PRESENCE
from limpet.cluster.merge import merge
from limpet.cluster.seal import seal
from tests.unit.cluster_values import CLUSTER_KEY, NOTHING, grant, network, node_key, presence

PORT = 7471
LINK = 7
_DELAY_S = 0.001


def place_of(number: int) -> Destination:
    return Destination(ip_address(f"192.0.2.{number}"), PORT)


@cache
def node(
    number: int, sequence: int | None = 1, *, generation: int = 1, tombstone: bool = False
) -> tuple[Document, ...]:
    """Signed documents; the same each time."""
    given = grant(number, generation=generation, tombstone=tombstone)
    found = [seal(GRANT, given, CLUSTER_KEY)]
    if sequence is not None and not tombstone:
        found.append(seal(PRESENCE, presence(number, sequence, port=PORT), node_key(number)))
    return tuple(map(remember, found))


@cache
def network_of(generation: int) -> Document:
    return remember(seal(NETWORK, network(generation), CLUSTER_KEY))


_OPENED: dict[Sealed, Document] = {}


def remember(document: Document) -> Document:
    """It is signed: hosts believe it when they see it."""
    return _OPENED.setdefault(document.sealed, document)


def known_of(nodes: Iterable[Iterable[Document]], generation: int = 0) -> Known:
    base = [network_of(generation)] if generation else []
    return merge(NOTHING, [*base, *(document for each in nodes for document in each)])[0]


def key_of(number: int, kind: str = "presence") -> Key:
    return kind, grant(number).uid


class Members:
    """Who the members are, as far as a test's node knows."""

    def __init__(self, number: int, known: Known) -> None:
        self.uid = grant(number).uid
        self.known = known

    @property
    def introduction(self) -> Key:
        return PRESENCE.name, self.uid

    @property
    def removed(self) -> bool:
        own = self.known.find((GRANT.name, self.uid))
        return own is not None and own.tombstone

    def is_member(self, uid: str) -> bool:
        return self.known.value(GRANT.name, uid) is not None

    def contact(self, uid: str) -> Contact | None:
        said = self.known.value(PRESENCE.name, uid)
        return None if said is None else Contact(said.addresses, said.port)


@dataclass
class Weather:
    """What becomes of a message: chances of being lost and doubled, and the longest delay."""

    loss: float = 0.0
    repeat: float = 0.0
    delay_s: float = _DELAY_S


class Host:
    """A node that believes what is signed."""

    def __init__(self, world: World, number: int, known: Known) -> None:
        self.number = number
        self.members = Members(number, known)
        self.reads: Callable[[Sealed], bool] = lambda _sealed: True
        """Not what only a later version can."""
        self.gossip = Gossip(
            self.members,
            known,
            below=world.random.randrange,
            nonce=lambda: world.random.randbytes(8),
            now_s=world.now_s,
        )

    @property
    def known(self) -> Known:
        return self.members.known

    def learn(
        self,
        news: Iterable[Document],
        now_s: float,
        origin: Source,
        from_uid: str = "",
        link: int | None = None,
    ) -> list[Effect]:
        self.members.known, changed = merge(self.known, news)
        if not changed:
            return []
        return self.gossip.learn(
            self.known, frozenset(changed), origin, now_s, from_uid=from_uid, from_link=link
        )

    def take(self, push: Push, from_uid: str, link: int | None, now_s: float) -> list[Effect]:
        unreadable = [sealed for sealed in push.documents if not self.reads(sealed)]
        news, before = [_OPENED[each] for each in push.documents if self.reads(each)], self.known
        effects = self.learn(news, now_s, Source.NEIGHBOUR, from_uid, link)
        again = [each.key for each in news if before.find(each.key) == each]
        self.gossip.heard_again(again, from_uid, link)
        fresh = [each.key for each in news if self.known.find(each.key) != before.find(each.key)]
        self.gossip.note_told(from_uid, fresh=fresh, unreadable=unreadable)
        return effects


class World:
    """All nodes are on one link; `weather` may change at any time."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_s = 1000.0
        self.weather = Weather()
        self.hosts: dict[int, Host] = {}
        self.sent: list[tuple[float, int, Message]] = []
        """When, by whom, what."""
        self._flight: list[tuple[float, int, int, int, bool, Message]] = []
        self._numbers = itertools.count()

    def add(self, number: int, known: Known) -> Host:
        host = self.hosts[number] = Host(self, number, known)
        self.post(host, host.gossip.set_links([LINK], [LINK], self.now_s))
        return host

    def change(self, number: int, news: Iterable[Document], origin: Source) -> None:
        """The node hears of it otherwise, or says it of itself."""
        host = self.hosts[number]
        self.post(host, host.learn(news, self.now_s, origin))

    def post(self, host: Host, effects: Iterable[Effect]) -> None:
        for effect in effects:
            self.sent.append((self.now_s, host.number, effect.message))
            for_all = isinstance(effect, Broadcast)
            for other in self.hosts.values():
                if other is host:
                    continue
                if isinstance(effect, Broadcast) or (
                    effect.place == place_of(other.number) and effect.uid in ("", other.members.uid)
                ):
                    self._deliver(host, other, for_all, effect.message)

    def _deliver(self, host: Host, other: Host, for_all: bool, message: Message) -> None:
        parsed = decode(encode(message))
        for _ in range(1 + (self.random.random() < self.weather.repeat)):
            if self.random.random() >= self.weather.loss:
                at_s = self.now_s + self.random.uniform(0, self.weather.delay_s)
                order = next(self._numbers)
                heapq.heappush(
                    self._flight, (at_s, order, other.number, host.number, for_all, parsed)
                )

    def run(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while True:
            waking = min(self.hosts.values(), key=lambda host: host.gossip.wake_at_s)
            at_s = waking.gossip.wake_at_s
            if self._flight and self._flight[0][0] <= at_s:
                at_s, _order, to, of, for_all, message = self._flight[0]
                if at_s > end_s:
                    break
                heapq.heappop(self._flight)
                self.now_s = max(self.now_s, at_s)
                self._receive(self.hosts[to], of, for_all, message)
            elif at_s > end_s:
                break
            else:
                self.now_s = max(self.now_s, at_s)
                self.post(waking, waking.gossip.tick(self.now_s))
        self.now_s = end_s

    def _receive(self, host: Host, of: int, for_all: bool, message: Message) -> None:
        uid = grant(of).uid
        if isinstance(message, Push):
            self.post(host, host.take(message, uid, LINK if for_all else None, self.now_s))
        self.post(host, host.gossip.receive(uid, place_of(of), LINK, message, self.now_s))

    def is_settled(self) -> bool:
        first, *others = (host.known for host in self.hosts.values())
        return all(other == first for other in others)

    def bytes_since(self, since_s: float) -> int:
        return sum(datagram_bytes(message) for at_s, _, message in self.sent if at_s >= since_s)
