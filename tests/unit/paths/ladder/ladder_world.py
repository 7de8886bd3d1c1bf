"""Two nodes' ladders against each other: NATs, relays, loss, and time that passes at once."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from ipaddress import ip_address, ip_interface

from limpet.base.addresses import Endpoint, UnderlayLink
from limpet.cluster.datagrams.unproven_budget import UnprovenBudget
from limpet.cluster.topology import transports
from limpet.cluster.topology.paths import PeerPath, RelayEnd
from limpet.cluster.topology.transports import ProbeKind
from limpet.paths.ladder.candidates import CandidateFacts
from limpet.paths.ladder.ladder import Ladder
from limpet.paths.ladder.probe_state import Question
from limpet.paths.probe.messages import AnsweredBy

PORT, TUNNEL_PORT = 7471, 51820
RELAYS = ("relay-one", "relay-two", "relay-tls")
DIRECT_S, RELAY_S = 0.02, 0.035
TIMEOUT_S = 30.0
STEP_S = 0.1
PRESENCE_S = 3.0
"""Until a peer has heard of another mapping; relays and neighbours bring it."""


class Nat(Enum):
    """How a gateway maps, and what it lets in."""

    NONE = "none"
    CONE = "cone"
    """One port for all destinations, open to anybody."""
    RESTRICTED = "restricted"
    """One port for all destinations, open to address and port that were sent to."""
    SYMMETRIC = "symmetric"
    """A port for each destination, open to that one only."""


PUNCHABLE = {
    frozenset({one, two})
    for one, two in itertools.combinations_with_replacement(Nat, 2)
    if {Nat.NONE, Nat.CONE} & {one, two} or {one, two} == {Nat.RESTRICTED}
}


@dataclass
class Gateway:
    kind: Nat
    address: str
    private: Endpoint
    first_port: int = 1024
    ports: dict[Endpoint | None, int] = field(default_factory=dict)
    open_until: dict[tuple[int, Endpoint], float] = field(default_factory=dict)

    def out(self, to: Endpoint, now_s: float) -> Endpoint:
        """Where a packet seems to come from."""
        if self.kind is Nat.NONE:
            return self.private
        key = to if self.kind is Nat.SYMMETRIC else None
        port = self.ports.setdefault(key, self.first_port + len(self.ports))
        self.open_until[port, to] = now_s + TIMEOUT_S
        return ip_address(self.address), port

    def lets_in(self, port: int, source: Endpoint, now_s: float) -> bool:
        if self.kind is Nat.NONE:
            return port == TUNNEL_PORT
        if port not in self.ports.values():
            return False
        return self.kind is Nat.CONE or self.open_until.get((port, source), -1) >= now_s

    def seen(self) -> Endpoint:
        """What public nodes see."""
        if self.kind is Nat.NONE:
            return self.private
        return self.out((ip_address("198.51.100.1"), 1), 0)

    def reboot(self) -> None:
        self.first_port += 1000
        self.ports.clear()
        self.open_until.clear()


class End:
    """One node."""

    def __init__(self, world: World, number: int, kind: Nat, *, leads: bool) -> None:
        self.world, self.number = world, number
        public = f"203.0.113.{number}"
        own = ip_address(public if kind is Nat.NONE else f"10.{number}.0.2")
        self.gateway = Gateway(kind, public, (own, TUNNEL_PORT))
        self.mtu_bytes = 1500
        """Of what it sends."""
        self.link = UnderlayLink("eth0", 2, "02:00:00:00:00:01", 1500, (ip_interface(own),))
        self.ladder = Ladder(leads=leads, active=True)
        self.strangers = UnprovenBudget()
        self.heard: tuple[Endpoint, ...] = ()
        self.needs_relay = False
        self.ends: tuple[RelayEnd, ...] = ()
        self.changes: list[tuple[float, PeerPath | None]] = []
        self.sent: list[tuple[float, Question]] = []

    @property
    def other(self) -> End:
        return self.world.ends[2 - self.number]

    @property
    def path(self) -> PeerPath | None:
        return self.ladder.path

    @property
    def rung(self) -> transports.Transport | None:
        return self.path.rung if self.path is not None else None

    def relay_end(self, relay: str) -> Endpoint:
        """Where this end sends what the relay is to bring to the other."""
        if relay == "relay-tls":
            return ip_address("127.0.0.1"), 40000 + self.number
        return ip_address(f"198.51.100.{10 + RELAYS.index(relay)}"), 21000 + self.number

    def settle(self, *, reprobe: bool = False, in_s: float = 0.0) -> None:
        """`in_s`: when it is this peer's turn, where there are many."""
        peer = self.other
        private, seen = peer.gateway.private, peer.gateway.seen()
        facts = CandidateFacts(
            (private[0],),
            PORT,
            devices=frozenset({("vxlan", 4)}),
            tunnel=True,
            endpoints=tuple(dict.fromkeys((private, seen, *self.heard))),
            relay_ends=self.ends,
        )
        at_s = self.world.now_s + in_s
        self.ladder.settle(facts, (self.link,), at_s=at_s, urgent=not in_s, reprobe=reprobe)
        self.note()

    def settle_again(self) -> None:
        """The peer's presence is another one."""
        self.settle(reprobe=True)

    def note(self) -> None:
        if not self.changes or self.changes[-1][1] != self.path:
            self.changes.append((self.world.now_s, self.path))
        need = self.ladder.relay_need(self.world.now_s)
        if need is not None and need is not self.needs_relay:
            self.needs_relay = need
            self.world.later(0.1, self.world.give_relays)

    def tick(self) -> None:
        for vital in (True, False):
            for question in self.ladder.take_due(self.world.now_s, vital=vital):
                if self._may_ask(question):
                    self.sent.append((self.world.now_s, question))
                    self.world.carry(self, question)
        self.note()

    def _may_ask(self, question: Question) -> bool:
        """As the agent bounds it."""
        candidate = question.candidate
        if candidate.relay:
            return True
        return self.strangers.may_ask("peer", candidate.address, self.world.now_s)

    def probed(self, source: Endpoint, question: Question, answer: Callable[[], None]) -> None:
        candidate = question.candidate
        now_s = self.world.now_s
        if candidate.kind is ProbeKind.TUNNEL:
            relayed = bool(candidate.relay)
            known = (self.other.gateway.private, self.other.gateway.seen(), *self.heard)
            if not relayed and source not in known:
                self.heard = (source, *self.heard)[:3]
                self.settle()
            if not question.packet_bytes:
                self.ladder.heard(
                    source, now_s, relayed=relayed, in_use=question.in_use, punch=question.punch
                )
        else:
            self.ladder.nudge(source[0], now_s)
        self.note()
        answer()

    def answered(self, question: Question, sent_s: float) -> None:
        now_s = self.world.now_s
        if not question.candidate.relay:
            self.strangers.answered("peer", question.candidate.address, now_s)
        self.ladder.answered(
            question.candidate,
            now_s,
            rtt_s=now_s - sent_s,
            via=AnsweredBy("eth0"),
            packet_bytes=question.packet_bytes,
        )
        self.ladder.told(self.other.path)
        self.note()


class World:
    """`run` lets time pass; `dark` holds how long each end's packets got lost at a stretch."""

    def __init__(self, one: Nat, two: Nat, *, loss: float = 0.0, seed: int = 0) -> None:
        self.now_s = 0.0
        self.chance = random.Random(seed)
        self.loss = loss
        """Of a question with its answer."""
        self.relays = set(RELAYS)
        """Those that work."""
        self.direct, self.clear = True, False
        self.mtu_bytes = 1500
        self.direct_s, self.relay_s = DIRECT_S, RELAY_S
        """There, and the same back."""
        self.farther_s: dict[str, float] = {}
        """That a relay's way takes longer than others'."""
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.ends = (End(self, 1, one, leads=True), End(self, 2, two, leads=False))
        self.dark = [0.0, 0.0]
        self.longest_dark_s = [0.0, 0.0]
        for end in self.ends:
            end.settle()

    def later(self, delay_s: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_s + delay_s, next(self._numbers), what))

    def run(self, seconds: float) -> World:
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self._advance(min(self.now_s + STEP_S, end_s))
            for end in self.ends:
                works = end.path is not None and self.gets_through(end)
                at = end.number - 1
                self.dark[at] = 0.0 if works else self.dark[at] + STEP_S
                self.longest_dark_s[at] = max(self.longest_dark_s[at], self.dark[at])
        return self

    def _advance(self, until_s: float) -> None:
        while True:
            due_s = min(
                (
                    max(end.ladder.due_s(vital=vital), self.now_s)
                    for end in self.ends
                    for vital in (True, False)
                ),
            )
            event_s = self._events[0][0] if self._events else float("inf")
            if min(due_s, event_s) > until_s:
                self.now_s = until_s
                return
            if event_s <= due_s:
                self.now_s, _number, what = heapq.heappop(self._events)
                what()
            else:
                self.now_s = due_s
                for end in self.ends:
                    end.tick()

    def reboot_gateway(self, end: End) -> None:
        end.gateway.reboot()
        self.later(PRESENCE_S, end.other.settle_again)

    def give_relays(self) -> None:
        """A pair of ports serves both ends, as soon as one wants it."""
        wanted = any(end.needs_relay for end in self.ends)
        for end in self.ends:
            ends = tuple(
                RelayEnd(
                    relay,
                    end.relay_end(relay),
                    transports.RELAY_TLS if relay == "relay-tls" else transports.RELAY,
                )
                for relay in RELAYS
                if wanted
            )
            if ends != end.ends:
                end.ends = ends
                end.settle()

    # What gets where

    def source_at_peer(self, end: End, question: Question) -> Endpoint | None:
        """Where a packet seems to the other end to come from; None: it does not get there."""
        candidate, peer = question.candidate, end.other
        if question.packet_bytes > min(self.mtu_bytes, end.mtu_bytes):
            return None
        if candidate.kind is not ProbeKind.TUNNEL:
            return (end.gateway.private[0], PORT) if self.clear else None
        if candidate.relay:
            given = candidate in {
                (ProbeKind.TUNNEL, *each.endpoint, "", 0, each.relay) for each in end.ends
            }
            works = candidate.relay in self.relays and given
            return peer.relay_end(candidate.relay) if works else None
        to = (candidate.address, candidate.port)
        source = end.gateway.out(to, self.now_s)
        gateway = peer.gateway
        outside = ip_address(gateway.address)
        if not self.direct or candidate.address != outside:
            return None
        return source if gateway.lets_in(candidate.port, source, self.now_s) else None

    def carry(self, end: End, question: Question) -> None:
        source = self.source_at_peer(end, question)
        if source is None or self.chance.random() < self.loss:
            return
        sent_s = self.now_s
        relay = question.candidate.relay
        delay_s = self.relay_s + self.farther_s.get(relay, 0.0) if relay else self.direct_s

        def arrive() -> None:
            peer = end.other
            # The answer goes back through the peer's gateway, and opens it.
            if not question.candidate.relay and question.candidate.kind is ProbeKind.TUNNEL:
                peer.gateway.out(source, self.now_s)
            peer.probed(
                source,
                question,
                lambda: self.later(delay_s, lambda: end.answered(question, sent_s)),
            )

        self.later(delay_s, arrive)

    def gets_through(self, end: End) -> bool:
        """Whether packets by the end's path do; they keep NATs open."""
        path = end.path
        if path is None:
            return False
        if path.rung is transports.VXLAN:
            return self.clear
        found = [each for each in end.ladder.candidates if each.kind is ProbeKind.TUNNEL]
        now = next((t for t in found if (t.address, t.port) == path.endpoint), None)
        return now is not None and self.source_at_peer(end, Question(now)) is not None


def rungs(world: World) -> list[transports.Transport | None]:
    return [end.rung for end in world.ends]
