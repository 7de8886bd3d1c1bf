"""A world of gossiping nodes without clocks or sockets: what is sent is delivered, late or not."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from ipaddress import ip_address

from limpet.cluster.documents import NodeEntry, Snapshot
from limpet.cluster.exchange import codec as wire
from limpet.cluster.exchange.digest import pair_of
from limpet.cluster.exchange.gossip import Gossip, Origin
from limpet.cluster.exchange.messages import (
    Digest,
    Listing,
    Message,
    Pair,
    Push,
    Want,
    datagram_bytes,
)
from limpet.cluster.exchange.neighbours import Broadcast, Effect, Place
from limpet.cluster.merge import merge_snapshots
from limpet.cluster.seal import make_entry, seal_grant, seal_network, seal_presence
from tests.unit.cluster_values import CLUSTER_KEY, TRUSTED, grant, network, node_key, presence

PORT = 7471
LINK = 7
_DELAY_S = 0.001
_PARSERS: dict[type[Message], Callable[[bytes], Message]] = {
    Digest: wire.parse_digest,
    Listing: wire.parse_listing,
    Want: wire.parse_want,
    Push: wire.parse_push,
}


def place_of(number: int) -> Place:
    return Place(ip_address(f"192.0.2.{number}"), PORT)


@cache
def node_entry(
    number: int, sequence: int | None = 1, *, generation: int = 1, tombstone: bool = False
) -> NodeEntry:
    """A signed pair; the same each time."""
    given = grant(number, generation=generation, tombstone=tombstone)
    if sequence is None or tombstone:
        return make_entry(seal_grant(given, CLUSTER_KEY), None, TRUSTED)
    said = presence(number, sequence, port=PORT)
    sealed = seal_presence(said, node_key(number))
    made = make_entry(seal_grant(given, CLUSTER_KEY), sealed, TRUSTED)
    _OPENED[pair_of(made)] = made
    return made


@cache
def network_snapshot(generation: int) -> Snapshot:
    made = network(generation)
    sealed = seal_network(made, CLUSTER_KEY)
    _NETWORKS[sealed.body] = snapshot = Snapshot(made, sealed)
    return snapshot


_OPENED: dict[Pair, NodeEntry] = {}
_NETWORKS: dict[bytes, Snapshot] = {}


def snapshot_of(entries: Iterable[NodeEntry], generation: int = 0) -> Snapshot:
    base = network_snapshot(generation) if generation else Snapshot()
    return replace(base, nodes={entry.grant.uid: entry for entry in entries})


@dataclass
class Weather:
    """What becomes of a message: chances of being lost and doubled, and the longest delay."""

    loss: float = 0.0
    repeat: float = 0.0
    delay_s: float = _DELAY_S


class Host:
    """A node that believes what is signed."""

    def __init__(self, world: World, number: int, snapshot: Snapshot) -> None:
        self.number = number
        self.uid = grant(number).uid
        self.snapshot = snapshot
        self.gossip = Gossip(
            self.uid,
            snapshot,
            below=world.random.randrange,
            nonce=lambda: world.random.randbytes(8),
            now_s=world.now_s,
        )

    def learn(
        self,
        news: Snapshot,
        now_s: float,
        origin: Origin,
        from_uid: str = "",
        link: int | None = None,
    ) -> list[Effect]:
        before, self.snapshot = self.snapshot, merge_snapshots(self.snapshot, news)
        changed = frozenset(
            uid for uid in news.nodes if self.snapshot.nodes[uid] != before.nodes.get(uid)
        )
        if not changed and self.snapshot.network == before.network:
            return []
        return self.gossip.learn(
            self.snapshot, changed, origin, now_s, from_uid=from_uid, from_link=link
        )

    def take(self, push: Push, from_uid: str, link: int | None, now_s: float) -> list[Effect]:
        entries = [_open(pair) for pair in push.pairs]
        news = _NETWORKS[push.network.body] if push.network is not None else Snapshot()
        news = replace(news, nodes={entry.grant.uid: entry for entry in entries})
        before = self.snapshot
        effects = self.learn(news, now_s, Origin.NEIGHBOUR, from_uid, link)
        known = [
            (entry.grant.uid, pair_of(entry))
            for entry in entries
            if before.nodes.get(entry.grant.uid) == entry
        ]
        self.gossip.known(known, from_uid, link)
        return effects


def _open(pair: Pair) -> NodeEntry:
    entry = _OPENED.get(pair)
    if entry is None:
        entry = _OPENED[pair] = make_entry(*pair, TRUSTED)
    return entry


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

    def add(self, number: int, snapshot: Snapshot) -> Host:
        host = self.hosts[number] = Host(self, number, snapshot)
        self.post(host, host.gossip.set_links([LINK], [LINK], self.now_s))
        return host

    def change(self, number: int, entry: NodeEntry, origin: Origin) -> None:
        """The node hears of it otherwise, or says it of itself."""
        host = self.hosts[number]
        self.post(host, host.learn(snapshot_of([entry]), self.now_s, origin))

    def post(self, host: Host, effects: Iterable[Effect]) -> None:
        for effect in effects:
            self.sent.append((self.now_s, host.number, effect.message))
            for_all = isinstance(effect, Broadcast)
            for other in self.hosts.values():
                if other is host:
                    continue
                if isinstance(effect, Broadcast) or (
                    effect.place == place_of(other.number) and effect.uid in ("", other.uid)
                ):
                    self._deliver(host, other, for_all, effect.message)

    def _deliver(self, host: Host, other: Host, for_all: bool, message: Message) -> None:
        parsed = _PARSERS[type(message)](wire.encode(message))
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
        first, *others = (host.snapshot for host in self.hosts.values())
        return all(
            other.nodes == first.nodes and other.network == first.network for other in others
        )

    def bytes_since(self, since_s: float) -> int:
        return sum(datagram_bytes(message) for at_s, _, message in self.sent if at_s >= since_s)
