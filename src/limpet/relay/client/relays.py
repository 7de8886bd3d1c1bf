"""A node's use of relays: hellos, ends of pairs, and what they see of its NAT, put together."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable

from limpet.base.addresses import (
    Address,
    Endpoint,
    UnderlayLink,
    endpoint_text,
    is_public,
    may_be_anothers,
)
from limpet.base.faults import noted
from limpet.base.settings import PeerSettings
from limpet.base.timer import Timer
from limpet.cluster.datagrams.peer_datagram import BodyKind
from limpet.cluster.datagrams.peer_socket import PeerSocket, Received
from limpet.cluster.kinds.presence import Presence
from limpet.cluster.membership import Membership, News
from limpet.datapath.event import EndpointsChanged, RelayEndsChanged, Tell
from limpet.nat.mapping import NatKind, NatView
from limpet.nat.public_endpoints import PublicEndpoints
from limpet.relay.client.choice import Effect, RelayChoice, SeenAs, Send
from limpet.relay.client.contact import Contacts, RelaySite
from limpet.relay.client.peer import CloseStreams, OpenStream, RelayPeer, StreamEvent, StreamWanted
from limpet.relay.client.tls_client import TlsRelays
from limpet.relay.messages import KIND_OF, NONCE_BYTES, Check, Pair, encode, parse
from limpet.relay.status import RelayedPair, RelaysStatus, RelayStatus

_VERSIONS = (4, 6)


class Relays:
    """Runs on the event loop's thread."""

    def __init__(
        self,
        membership: Membership,
        courier: PeerSocket,
        settings: PeerSettings,
        *,
        tell: Tell,
        tunnel_port: int,
    ) -> None:
        """Tells RelayEndsChanged and EndpointsChanged. `tunnel_port`: of the node's tunnel."""
        self.counters: Counter[str] = Counter()
        """Messages by kind and direction, and `unasked`: of no relay, or of strangers' pairs."""
        self._membership = membership
        self._courier = courier
        self._tell = tell
        self.streams = TlsRelays(membership, tunnel_port=tunnel_port, tell=self._stream_changed)
        self._settings = settings
        self._choice = self._new_choice()
        self._nat = NatView()
        self._candidates = PublicEndpoints(settings.endpoints, self._publish)
        self._links: tuple[UnderlayLink, ...] = ()
        self._alarm = Timer("relays", self._tick)
        self._running = False

    # Life

    def start(self) -> None:
        """The courier listens, and shares the tunnel's port; this node's presence names that."""
        self._running = True
        for kind in (
            BodyKind.RELAY_SEEN,
            BodyKind.RELAY_PAIR,
            BodyKind.RELAY_TOKEN,
            BodyKind.RELAY_BOUND,
        ):
            self._courier.on(kind, self._received)
        self._candidates.start()
        self._look()
        self._map_port()

    async def stop(self) -> None:
        """Ends of pairs are left as they are: the node may be back in a moment."""
        self._running = False
        self._alarm.stop()
        await self._candidates.stop()
        await self.streams.stop()

    # What is known

    def set_links(self, links: tuple[UnderlayLink, ...]) -> None:
        """The links that lead out; a change makes all relays and ends be checked."""
        if links == self._links:
            return
        self._links = links
        self._nat.network_changed([address.ip for link in links for address in link.addresses])
        if not self._running:
            return
        self._candidates.doubt()
        self._look()
        self._do(self._choice.network_changed(time.monotonic()))

    def _map_port(self) -> None:
        presence = self._membership.presence
        port = presence.tunnel_port if presence is not None else 0
        if port and self._settings.port_mapping:
            self._candidates.map_port(port, self._membership.identity.private_key)

    def hear(self, news: News) -> None:
        if not self._running:
            return
        self._map_port()
        known, is_relay = self._choice.contacts.sites, self._membership.is_relay
        own = self._membership.uid in news.uids
        if own or news.network or any(uid in known or is_relay(uid) for uid in news.uids):
            self._look()
        for uid in list(self._choice.peers) if own or news.network else news.uids:
            if uid in self._choice.peers and not self._membership.may_talk(uid):
                self._do(self._choice.drop(uid, time.monotonic()))

    def _look(self) -> None:
        """Tells the choice which relays there are, if that has changed."""
        known = self._membership
        nodes = {} if known.removed else known.snapshot.nodes
        sites = {
            uid: _site(entry.presence, self._is_elsewhere)
            for uid, entry in nodes.items()
            if known.is_relay(uid) and entry.presence and entry.presence.tunnel_port
        }
        if sites != self._choice.contacts.sites:
            self._do(self._choice.set_sites(sites, time.monotonic()))

    def _is_elsewhere(self, address: Address) -> bool:
        """Whether a relay may be there, as far as this node knows: it is none of ours, no pod's
        and no Service's, whatever the relay says."""
        network = self._membership.network
        ours = any(
            address in link.everybody or address in {own.ip for own in link.addresses}
            for link in self._links
        )
        held = network is not None and network.holds(address)
        return may_be_anothers(address) and not ours and not held

    # What is wanted

    def need(self, uid: str, wanted: bool) -> None:
        """Whether relays have to lead to the peer; said again, its ends are checked at once."""
        if self._running and (not wanted or self._membership.may_talk(uid)):
            self._do(self._choice.need(uid, wanted, time.monotonic()))

    def answer_seen(self, uid: str, asked_at: Endpoint, seen_as: Endpoint) -> None:
        """A peer that was probed directly, by the tunnel's port, has said where that came from."""
        if self._running and is_public(asked_at[0]):
            is_relay = uid in self._choice.contacts.sites
            self._see(asked_at, seen_as, peer="" if is_relay else uid)
            self._do(self._choice.met(uid, time.monotonic()))

    # Hearing

    def _received(self, received: Received) -> None:
        """Raises: DatagramError."""
        message = parse(received.kind, received.body)
        is_relay = received.uid in self._choice.contacts.sites
        strange = isinstance(message, Pair) and not self._membership.may_talk(
            self._membership.uid, message.peer
        )
        if not self._running or not received.by_tunnel or not is_relay or strange:
            self.counters["unasked"] += 1
            return
        self.counters[f"heard_{type(message).__name__.lower()}"] += 1
        source = (received.address, received.port)
        self._do(self._choice.heard(received.uid, message, source, time.monotonic()))

    def _see(self, asked_at: Endpoint, seen_as: Endpoint, *, peer: str = "") -> None:
        """`peer`: who says so; empty: a relay."""
        now_s = time.monotonic()
        doubtful = bool(peer) and self._nat.is_doubtful(peer, asked_at, seen_as, now_s)
        moved = self._nat.see(asked_at, seen_as, now_s, peer=peer)
        self._candidates.confirm(self._nat.mapped(now_s), symmetric=self._nat.symmetric(now_s))
        if moved:
            self._do(self._choice.mapping_moved(now_s))
            self._candidates.ask_gateway()
        elif doubtful or self._nat.is_unclear(self._choice.contacts.near_endpoints, now_s):
            self._do(self._choice.look_again(now_s))

    # Doing

    def _do(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            with noted("relays"):
                self._do_one(effect)
        self._alarm.set(self._choice.wake_at_s if self._running else math.inf)

    def _do_one(self, effect: Effect) -> None:
        match effect:
            case Send():
                self._send(effect)
            case RelayEndsChanged():
                self._tell(effect)
            case OpenStream():
                site = self._choice.contacts.sites.get(effect.relay, RelaySite())
                self.streams.open(effect, site.tls)
            case SeenAs():
                self._see(effect.asked_at, effect.seen_as)
            case CloseStreams():
                self.streams.release(effect.peer)

    def _send(self, effect: Send) -> None:
        self.counters[f"sent_{type(effect.message).__name__.lower()}"] += 1
        self._courier.send(
            KIND_OF[type(effect.message)],
            encode(effect.message),
            to_uid=effect.relay,
            address=effect.endpoint[0],
            port=effect.endpoint[1],
            by_tunnel=True,
            to_relay=isinstance(effect.message, Check),
        )

    def _tick(self) -> None:
        try:
            self._do(self._choice.tick(time.monotonic()))
        except Exception:
            self._start_over(time.monotonic())
            raise

    def _start_over(self, now_s: float) -> None:
        """What was in the making may be lost for ever: as after a restart of the agent. Of the
        ends that are bound relays give the same ones."""
        needed = [uid for uid, peer in self._choice.peers.items() if peer.needed]
        sites = self._choice.contacts.sites
        self._choice = self._new_choice()
        self._do(self._choice.set_sites(sites, now_s))
        for uid in needed:
            self._do(self._choice.need(uid, True, now_s))

    def _new_choice(self) -> RelayChoice:
        contacts = Contacts(
            lambda: os.urandom(NONCE_BYTES),
            self._courier.unproven,
            nat_timeout_s=self._settings.nat_timeout_s,
        )
        return RelayChoice(self._membership.uid, contacts)

    def _stream_changed(self, event: StreamEvent) -> None:
        if self._running and (
            not isinstance(event, StreamWanted) or self._membership.may_talk(event.peer)
        ):
            self._do(self._choice.stream_changed(event, time.monotonic()))

    # For a person

    def kind(self, version: int) -> NatKind:
        """How NATs in front of this node map its tunnel's port."""
        now_s = time.monotonic()
        found = self._nat.kind(version, now_s)
        ours = any(address.version == version for link in self._links for address in link.addresses)
        silent = ours and self._choice.contacts.is_blocked(version, now_s)
        if found is NatKind.UNKNOWN and silent:
            return NatKind.BLOCKED
        return found

    def report(self) -> RelaysStatus:
        """NATs, endpoints, relays and pairs; of what is in trouble why."""
        mapping = self._candidates.mapping
        return RelaysStatus(
            nat={f"ipv{v}": self.kind(v).name.lower() for v in _VERSIONS},
            endpoints=[endpoint_text(endpoint) for endpoint in self._candidates.endpoints],
            mapped=[endpoint_text(endpoint) for endpoint in self._nat.mapped(time.monotonic())],
            port_mapping=mapping.report() if mapping is not None else None,
            relays=[self._relay_report(uid) for uid in self._choice.contacts.sites],
            pairs=[
                pair for peer in self._choice.peers.values() for pair in self._pair_reports(peer)
            ],
        )

    def _publish(self, endpoints: tuple[Endpoint, ...]) -> None:
        self._tell(EndpointsChanged(endpoints))

    def _relay_report(self, uid: str) -> RelayStatus:
        line = self._choice.contacts.best_line(uid)
        return RelayStatus(
            name=self._membership.name_of(uid),
            uid=uid,
            answers=line is not None,
            endpoint=endpoint_text(line.at) if line and line.at else None,
            rtt_ms=round(line.rtt_s * 1e3, 1) if line else None,
        )

    def _pair_reports(self, peer: RelayPeer) -> list[RelayedPair]:
        ends = [
            *((end.relay, "udp", end.endpoint, end.problem) for end in peer.ends.values()),
            *(
                (relay, "tls", stream.end.endpoint if stream.end else None, stream.problem)
                for relay, stream in peer.streams.items()
            ),
        ]
        return [
            RelayedPair(
                peer=self._membership.name_of(peer.uid),
                relay=self._membership.name_of(relay),
                over=over,
                endpoint=endpoint_text(at) if at else None,
                problem=problem,
            )
            for relay, over, at, problem in ends
        ]


def _site(presence: Presence, is_elsewhere: Callable[[Address], bool]) -> RelaySite:
    """Where a relay may be reached: what it names as seen from outside first."""
    own = [(each, presence.tunnel_port) for each in presence.addresses if is_elsewhere(each)]
    seen = (each for each in presence.endpoints if is_elsewhere(each[0]))
    first = (*seen, *(each for each in own if is_public(each[0])))
    then = tuple(each for each in own if not is_public(each[0]))
    tls: tuple[Endpoint, ...] = ()
    if presence.relay_tls_port:
        addresses = dict.fromkeys(address for address, _port in (*first, *then))
        tls = tuple((address, presence.relay_tls_port) for address in addresses)
    return RelaySite(tuple(dict.fromkeys(first)), then, tls)
