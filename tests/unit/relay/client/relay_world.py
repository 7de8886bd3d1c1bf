"""Relays, nodes and NATs that exist in memory, with the time that messages take between them."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from ipaddress import ip_address

from limpet.base.addresses import Endpoint
from limpet.base.settings import NAT_TIMEOUT_S
from limpet.cluster.datagrams.unproven_budget import UnprovenBudget
from limpet.cluster.topology import transports
from limpet.cluster.topology.paths import RelayEnd
from limpet.datapath.event import RelayEndsChanged
from limpet.relay.client.choice import Effect, RelayChoice, SeenAs, Send
from limpet.relay.client.contact import Contacts, RelaySite
from limpet.relay.client.peer import CloseStreams, OpenStream, StreamFailed, StreamOpened
from limpet.relay.messages import (
    AskPair,
    Bound,
    Check,
    FreePair,
    Hello,
    Pair,
    Refusal,
    RelayMessage,
    Seen,
    Token,
)

TUNNEL_PORT = 51820
LIFETIME_S = 120


@dataclass
class SimRelay:
    """What a relay does, as far as nodes see it."""

    uid: str
    number: int
    rtt_s: float = 0.02
    quota: int = 64
    up: bool = True
    ports_open: bool = True
    """The ports of pairs are reached."""
    private: bool = False
    """It has an endpoint within its site too, by which alone nodes there reach it."""
    pairs: dict[frozenset[str], dict[str, int]] = field(default_factory=dict)
    bound: dict[int, Endpoint] = field(default_factory=dict)
    asked: dict[frozenset[str], set[str]] = field(default_factory=dict)
    """Who has asked for the pair: without any it is gone."""
    streams: set[tuple[str, str]] = field(default_factory=set)
    """Who has one, and for which peer."""
    places: dict[str, Endpoint] = field(default_factory=dict)
    _ports: itertools.count[int] = field(default_factory=lambda: itertools.count(21000))
    _serials: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def endpoint(self) -> Endpoint:
        return (ip_address(f"203.0.113.{self.number}"), TUNNEL_PORT)

    @property
    def fallback(self) -> Endpoint:
        return (ip_address(f"10.0.0.{self.number}"), TUNNEL_PORT)

    @property
    def site(self) -> RelaySite:
        fallbacks = (self.fallback,) if self.private else ()
        return RelaySite((self.endpoint,), fallbacks, tls=((self.endpoint[0], 443),))

    def reached_at(self, node: SimNode) -> Endpoint:
        return self.fallback if self.private and node.at_home else self.endpoint

    def count(self, uid: str) -> int:
        return sum(uid in askers for askers in self.asked.values())

    def hear(
        self, uid: str, source: Endpoint, message: RelayMessage
    ) -> list[tuple[str, RelayMessage]]:
        """What it says then, and to whom."""
        match message:
            case Hello():
                self.places[uid] = source
                seen = Seen(message.nonce, source, max(0, self.quota - self.count(uid)))
                waiting = [
                    peer for peer, its in self.streams if its == uid and self._is_pair(uid, peer)
                ]
                return [(uid, seen), *((uid, self._told(uid, peer)) for peer in waiting)]
            case AskPair():
                return self._pair(uid, message)
            case Check():
                if message.port not in {ports.get(uid) for ports in self.pairs.values()}:
                    return []
                token = f"{uid}{message.port}{source}".encode()[-16:].rjust(16)
                if message.token != token:
                    return [(uid, Token(message.nonce, message.port, token))]
                self.bound[message.port] = source
                return [(uid, Bound(message.nonce, message.port, source))]
            case FreePair():
                key = frozenset({uid, message.peer})
                askers = self.asked.get(key, set())
                askers.discard(uid)
                if not askers:
                    self.asked.pop(key, None)
                    for port in self.pairs.pop(key, {}).values():
                        self.bound.pop(port, None)
        return []

    def _pair(self, uid: str, ask: AskPair) -> list[tuple[str, RelayMessage]]:
        key = frozenset({uid, ask.peer})
        if uid not in self.asked.get(key, ()) and self.count(uid) >= self.quota:
            return [(uid, Pair(ask.nonce, ask.peer, 0, Refusal.QUOTA))]
        if key not in self.pairs:
            self.pairs[key] = {uid: next(self._ports), ask.peer: next(self._ports)}
        self.asked.setdefault(key, set()).add(uid)
        port = self.pairs[key][uid]
        return [
            (uid, Pair(ask.nonce, ask.peer, port, Refusal.NONE, LIFETIME_S)),
            (ask.peer, self._told(ask.peer, uid)),
        ]

    def _is_pair(self, uid: str, peer: str) -> bool:
        return frozenset({uid, peer}) in self.pairs

    def _told(self, uid: str, peer: str) -> Pair:
        """What the node hears of a pair that the peer has asked for."""
        port = self.pairs[frozenset({uid, peer})][uid]
        return Pair(bytes(8), peer, port, Refusal.NONE, LIFETIME_S, next(self._serials))


class SimNode:
    def __init__(
        self, world: RelayWorld, uid: str, number: int, nat_timeout_s: float = NAT_TIMEOUT_S
    ) -> None:
        self.world = world
        self.uid = uid
        self.address = ip_address(f"198.51.100.{number}")
        self.mapping = 40000
        """Port that its NAT gives it."""
        self.udp = True
        self.at_home = False
        """In the site of those relays that are private."""
        self.reaches: frozenset[str] | None = None
        """Relays; None: all."""
        nonces = (f"{n:08d}".encode() for n in itertools.count(1))
        contacts = Contacts(lambda: next(nonces), UnprovenBudget(), nat_timeout_s=nat_timeout_s)
        self.choice = RelayChoice(uid, contacts)
        self.ends: dict[str, tuple[RelayEnd, ...]] = {}
        self.changes: list[tuple[float, str, tuple[RelayEnd, ...]]] = []
        self.sent: list[tuple[float, Send]] = []
        self.opened: list[tuple[float, OpenStream]] = []

    @property
    def source(self) -> Endpoint:
        return (self.address, self.mapping)

    def gets_to(self, relay: SimRelay) -> bool:
        return self.udp and relay.up and (self.reaches is None or relay.uid in self.reaches)

    def do(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send():
                    self.sent.append((self.world.now_s, effect))
                    self.world.carry(self, effect)
                case RelayEndsChanged(uid, ends):
                    self.ends[uid] = ends
                    self.changes.append((self.world.now_s, uid, ends))
                case OpenStream():
                    self.opened.append((self.world.now_s, effect))
                    self.world.open_stream(self, effect)
                case CloseStreams(uid):
                    for relay in self.world.relays.values():
                        relay.streams.discard((self.uid, uid))
                case SeenAs():
                    pass

    def need(self, peer: str, wanted: bool = True) -> None:
        self.do(self.choice.need(peer, wanted, self.world.now_s))

    def working(self, peer: str) -> list[RelayEnd]:
        """Ends by which packets of this node get to the relay and count there as its own."""
        found = []
        for end in self.ends.get(peer, ()):
            relay = self.world.relays[end.relay]
            if end.rung is transports.RELAY_TLS:
                works = relay.up
            else:
                works = (
                    self.gets_to(relay)
                    and end.endpoint[0] == relay.reached_at(self)[0]
                    and relay.ports_open
                    and relay.bound.get(end.endpoint[1]) == self.source
                )
            if works:
                found.append(end)
        return found


class RelayWorld:
    def __init__(self, *relays: SimRelay) -> None:
        self.now_s = 0.0
        self.relays = {relay.uid: relay for relay in relays}
        self.nodes: dict[str, SimNode] = {}
        self._events: list[tuple[float, int, str, str, RelayMessage | RelayEnd, str]] = []
        self._order = itertools.count()

    def node(self, uid: str, nat_timeout_s: float = NAT_TIMEOUT_S) -> SimNode:
        made = self.nodes[uid] = SimNode(self, uid, len(self.nodes) + 1, nat_timeout_s)
        self.tell_sites()
        return made

    def tell_sites(self) -> None:
        sites = {uid: relay.site for uid, relay in self.relays.items()}
        for node in self.nodes.values():
            node.do(node.choice.set_sites(sites, self.now_s))

    def toggle(self, relay: SimRelay) -> None:
        """It dies, or is back; who has streams to it notices the one at once."""
        relay.up = not relay.up
        for node in self.nodes.values():
            for peer in list(node.choice.peers.values()) if not relay.up else []:
                if relay.uid in peer.streams and peer.streams[relay.uid].end is not None:
                    lost = StreamFailed(peer.uid, relay.uid, "the connection was lost")
                    node.do(node.choice.stream_changed(lost, self.now_s))

    def carry(self, node: SimNode, send: Send) -> None:
        relay = self.relays[send.relay]
        if not node.gets_to(relay) or (isinstance(send.message, Check) and not relay.ports_open):
            return
        if send.endpoint[0] != relay.reached_at(node)[0]:
            return
        for uid, message in relay.hear(node.uid, node.source, send.message):
            if uid == node.uid:
                self._later(relay.rtt_s, uid, relay.uid, message)
            else:
                self._tell(relay, uid, message)

    def _tell(self, relay: SimRelay, uid: str, message: RelayMessage) -> None:
        """It goes to where the node's last hello came from."""
        other = self.nodes.get(uid)
        if other is not None and relay.places.get(uid) == other.source:
            self._later(relay.rtt_s, uid, relay.uid, message)

    def open_stream(self, node: SimNode, effect: OpenStream) -> None:
        endpoint = (ip_address("127.0.0.1"), 30000)
        end = RelayEnd(
            effect.relay, endpoint, transports.RELAY_TLS, rtt_s=self.relays[effect.relay].rtt_s
        )
        self._later(0.1, node.uid, effect.relay, end, effect.peer)

    def _later(
        self, delay_s: float, uid: str, relay: str, what: RelayMessage | RelayEnd, peer: str = ""
    ) -> None:
        event = (self.now_s + delay_s, next(self._order), uid, relay, what, peer)
        heapq.heappush(self._events, event)

    def run(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while True:
            wake_s, first = min(
                ((node.choice.wake_at_s, node.uid) for node in self.nodes.values()),
                default=(math.inf, ""),
            )
            event_s = self._events[0][0] if self._events else math.inf
            next_s = max(min(wake_s, event_s), self.now_s)
            if next_s > end_s:
                self.now_s = end_s
                return
            self.now_s = next_s
            if event_s <= next_s:
                self._deliver(*heapq.heappop(self._events)[2:])
            else:
                node = self.nodes[first]
                node.do(node.choice.tick(self.now_s))
                assert node.choice.wake_at_s > self.now_s, "it would spin"

    def _deliver(self, uid: str, relay: str, what: RelayMessage | RelayEnd, peer: str) -> None:
        node, its = self.nodes[uid], self.relays[relay]
        if isinstance(what, RelayEnd):
            answers = its.hear(uid, what.endpoint, AskPair(b"\1" * 8, peer)) if its.up else []
            if answers and answers[0][1].port:  # type: ignore[union-attr]
                its.streams.add((uid, peer))
                for other, message in answers[1:]:
                    self._tell(its, other, message)
                node.do(node.choice.stream_changed(StreamOpened(peer, what), self.now_s))
            else:
                failed = StreamFailed(peer, relay, "no answer")
                node.do(node.choice.stream_changed(failed, self.now_s))
        elif node.gets_to(its):
            at = its.reached_at(node)
            source = (at[0], what.port) if isinstance(what, Token | Bound) else at
            node.do(node.choice.heard(relay, what, source, self.now_s))
