"""Probes through the node's UDP ports: asked, answered, and told what the answers prove.

TUNNEL goes by the tunnel's own port and counts only by that; everything else goes by the agents'.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import structlog

from limpet.base.addresses import Address, UnderlayLink
from limpet.base.errors import KernelError
from limpet.cluster.datagrams.peer_datagram import BodyKind, Codec
from limpet.cluster.datagrams.peer_socket import PeerSocket, Received
from limpet.cluster.membership import Membership
from limpet.cluster.nodes import NodeEntry, Snapshot
from limpet.cluster.topology.paths import OwnSide, PeerPath
from limpet.cluster.topology.reach import may_talk
from limpet.cluster.topology.transports import ProbeKind
from limpet.cluster.topology.view import view_of
from limpet.linux.packets.raw_frames import RawFrames
from limpet.paths.ladder.probe_state import Question
from limpet.paths.probe.codec import (
    encode_answer,
    encode_probe,
    padding_for,
    parse_answer,
    parse_probe,
    udp_packet,
)
from limpet.paths.probe.messages import NONCE_BYTES, AnsweredBy, Candidate, Probe, ProbeAnswer

_log = structlog.get_logger("probing")

_LATE_S = 0.1
"""After which a peer that has to be let in first is answered; if it is not in by then, it gets its
answer when it asks again."""
_ANSWER_WITHIN_S = 3.0
"""An answer that comes later is none: it has been asked again since."""


@dataclass(frozen=True, slots=True)
class SentProbe:
    """A probe that was sent, and was not answered yet."""

    uid: str
    question: Question
    sent_s: float
    waiter: asyncio.Future[float] | None
    """Gets the round trip in seconds."""


@dataclass(frozen=True, slots=True)
class Proof:
    """An answer that came by the way that was asked for."""

    asked: SentProbe
    answer: ProbeAnswer
    rtt_s: float
    via: AnsweredBy


@dataclass(frozen=True, slots=True)
class _OwnLinks:
    by_name: Mapping[str, UnderlayLink] = field(default_factory=dict)
    names: Mapping[int, str] = field(default_factory=dict)
    """By index."""
    addresses: frozenset[Address] = frozenset()


@dataclass(frozen=True, slots=True)
class KnownOfPeers:
    """What others than the port know of a peer, by its uid."""

    way_to: Callable[[str], PeerPath | None]
    """By which it is reached."""
    lets_in: Callable[[str], bool]
    """Whether what it sends in clear is let in; called when it asks for it."""
    is_at: Callable[[str, Address, int], bool]
    """Whether it was heard from that address and port, or has answered there."""


class ProbePort:
    """Runs on the event loop's thread."""

    def __init__(
        self,
        membership: Membership,
        courier: PeerSocket,
        *,
        on_proof: Callable[[Proof], None],
        on_heard: Callable[[Received, Probe], None],
        known: KnownOfPeers,
    ) -> None:
        """`on_heard`: called for what a peer asked and was answered, unless it tells a size."""
        self.counters: Counter[str] = Counter()
        """Probes by `asked_`, `answered_`, `refused_` and what was asked for, and `unproven`."""
        self._membership = membership
        self._courier = courier
        self._on_proof = on_proof
        self._on_heard = on_heard
        self._known = known
        identity = membership.identity
        self._codec = Codec(identity.private_key, identity.pinned_key)
        self.view = view_of(Snapshot(), membership.uid, {}, OwnSide())
        """What is known of the cluster, as `look` has found it last."""
        self._links = _OwnLinks()
        self._asked: OrderedDict[bytes, SentProbe] = OrderedDict()
        self._frames: RawFrames | None = None

    def open(self) -> None:
        """In the network namespace of the calling thread; the courier listens."""
        try:
            self._frames = RawFrames()
        except KernelError as error:
            _log.warning("no plain routes to peers can be proven, VXLAN serves", error=str(error))
        self._courier.on(BodyKind.PROBE, self._probed)
        self._courier.on(BodyKind.ANSWER, self._answered)

    def close(self) -> None:
        if self._frames is not None:
            self._frames.close()

    def look(self) -> None:
        """Takes up what is known of the cluster now."""
        known = self._membership
        self.view = view_of(known.snapshot, known.uid, {}, OwnSide(), before=self.view)

    def set_links(self, links: tuple[UnderlayLink, ...]) -> None:
        self._links = _OwnLinks(
            {link.ifname: link for link in links},
            {link.ifindex: link.ifname for link in links},
            frozenset(address.ip for link in links for address in link.addresses),
        )

    def may_talk(self, entry: NodeEntry) -> bool:
        """Whether the node is one that is asked, and answered."""
        network, grant = self.view.network, self.view.grant
        return network is not None and grant is not None and may_talk(network, grant, entry.grant)

    # Asking

    def ask(
        self, uid: str, question: Question, answer: asyncio.Future[float] | None = None
    ) -> None:
        """Sends a probe; `answer` gets the round trip in seconds."""
        candidate = question.candidate
        now_s = time.monotonic()
        self._forget(now_s)
        nonce = os.urandom(NONCE_BYTES)
        self._asked[nonce] = SentProbe(uid, question, now_s, answer)
        self.counters[f"asked_{candidate.kind.name.lower()}"] += 1
        if candidate.kind is ProbeKind.OVERLAY:
            self._ask_over_link(uid, candidate, nonce)
            return
        if candidate.kind is ProbeKind.TUNNEL:
            self._ask_by_tunnel(uid, question, nonce)
            return
        link = self._links.by_name.get(candidate.device)
        self._courier.send(
            BodyKind.PROBE,
            encode_probe(Probe(nonce, candidate.kind, self._sequence)),
            to_uid=uid,
            address=candidate.address,
            port=candidate.port,
            hop_limit=1 if link is not None else None,
            ifindex=link.ifindex if link is not None else None,
        )

    def _ask_by_tunnel(self, uid: str, question: Question, nonce: bytes) -> None:
        candidate, size = question.candidate, question.packet_bytes
        probe = Probe(
            nonce,
            candidate.kind,
            self._sequence,
            punch=question.punch,
            relayed=bool(candidate.relay),
            in_use=question.in_use,
            padding_bytes=padding_for(size, candidate.address.version) if size else 0,
        )
        self._courier.send(
            BodyKind.PROBE,
            encode_probe(probe),
            to_uid=uid,
            address=candidate.address,
            port=candidate.port,
            by_tunnel=True,
        )

    def _ask_over_link(self, uid: str, candidate: Candidate, nonce: bytes) -> None:
        """Past the node's routes, which do not lead there yet."""
        link, own = (
            self._links.by_name.get(candidate.device),
            self.view.sources.get(candidate.version),
        )
        theirs = self._overlay_address(uid, candidate.version)
        if link is None or own is None or theirs is None or self._frames is None:
            return
        ours = [a for a in link.addresses if a.version == candidate.address.version]
        # The one that the peer has seen our link's probe come from: it answers nowhere else.
        ours.sort(key=lambda a: candidate.address not in a.network)
        answer_at = ours[0].ip if ours else None
        probe = Probe(nonce, candidate.kind, self._sequence, answer_at=answer_at)
        data = self._codec.encode(BodyKind.PROBE, encode_probe(probe), to_uid=uid)
        packet = udp_packet(own, theirs, self._courier.port, candidate.port, data)
        try:
            self._frames.send(link, candidate.address, packet)
        except KernelError as error:  # it counts as not answered
            _log.debug("an overlay probe was not sent", error=str(error))

    def _forget(self, now_s: float) -> None:
        while self._asked:
            nonce, oldest = next(iter(self._asked.items()))
            if oldest.sent_s > now_s - _ANSWER_WITHIN_S:
                break
            del self._asked[nonce]

    @property
    def _sequence(self) -> int:
        presence = self._membership.presence
        return presence.sequence if presence is not None else 0

    def _overlay_address(self, uid: str, version: int) -> Address | None:
        segments = self.view.segments.get(uid, ())
        return next((prefix[1] for prefix in segments if prefix.version == version), None)

    # Answering

    def _probed(self, received: Received, late: bool = False) -> None:
        """Raises: DatagramError."""
        probe = parse_probe(received.body)
        name = probe.kind.name.lower()
        answered = self._is_answered(probe, received)
        if (
            answered
            and probe.kind is not ProbeKind.TUNNEL
            and not self._known.lets_in(received.uid)
        ):
            answered = False
            if not late:
                # Once for each probe, with its words; bounded as datagrams of a peer are.
                asyncio.get_running_loop().call_later(_LATE_S, self._probed, received, True)
        if not answered:
            self.counters[f"refused_{name}"] += 1
            return
        self.counters[f"answered_{name}"] += 1
        address, hop_limit, ifindex = received.address, None, None
        if probe.kind is ProbeKind.LINK:
            hop_limit, ifindex = 1, received.ifindex
        elif probe.kind is ProbeKind.OVERLAY:
            address = probe.answer_at or address
        answer = ProbeAnswer(
            probe.nonce,
            self._sequence,
            received.address,
            received.port,
            received.to_address,
            self._known.way_to(received.uid),
        )
        if probe.kind is ProbeKind.TUNNEL:
            self._courier.answer(received, BodyKind.ANSWER, encode_answer(answer))
        else:
            self._courier.send(
                BodyKind.ANSWER,
                encode_answer(answer),
                to_uid=received.uid,
                address=address,
                port=received.port,
                hop_limit=hop_limit,
                ifindex=ifindex,
            )
        if not probe.padding_bytes:
            self._on_heard(received, probe)

    def _is_answered(self, probe: Probe, received: Received) -> bool:
        entry = self.view.snapshot.nodes.get(received.uid)
        if entry is None or not self.may_talk(entry) or received.to_anybody:
            return False
        in_clear = probe.kind is not ProbeKind.TUNNEL
        if received.by_tunnel is in_clear:
            return False
        if probe.kind is ProbeKind.OVERLAY:
            version = received.address.version
            return (
                self._is_on_its_link(probe.answer_at, received)
                and received.address == self._overlay_address(received.uid, version)
                and received.to_address == self.view.sources.get(version)
            )
        if received.address.is_link_local:
            return False
        network = self.view.network
        if in_clear and network is not None and network.is_of_pods(received.address):
            return False  # it came through a gateway's tunnel, and proves no way in clear
        return probe.kind is not ProbeKind.LINK or received.hop_limit == 1

    def _is_on_its_link(self, answer_at: Address | None, received: Received) -> bool:
        """Whether the answer goes to the peer that asks, on the link that it asks over: what it
        names could be anybody's."""
        link = self._links.by_name.get(self._links.names.get(received.ifindex, ""))
        if answer_at is None or link is None or answer_at in self._links.addresses:
            return False
        return any(
            answer_at.version == own.version and answer_at in own.network for own in link.addresses
        ) and self._known.is_at(received.uid, answer_at, received.port)

    # Hearing

    def _answered(self, received: Received) -> None:
        """Raises: DatagramError."""
        answer = parse_answer(received.body)
        asked = self._asked.get(answer.nonce)
        if asked is None or asked.uid != received.uid or not self._proves(asked, answer, received):
            self.counters["unproven"] += 1
            return
        del self._asked[answer.nonce]
        rtt_s = time.monotonic() - asked.sent_s
        if asked.waiter is not None and not asked.waiter.done():
            asked.waiter.set_result(rtt_s)
        via = AnsweredBy(self._links.names.get(received.ifindex, ""), answer.seen_from)
        self._on_proof(Proof(asked, answer, rtt_s, via))

    def _proves(self, asked: SentProbe, answer: ProbeAnswer, received: Received) -> bool:
        """Whether it came by the way that was asked for.

        Nothing may have translated an address, but for those that the tunnel uses.
        """
        candidate = asked.question.candidate
        if candidate.kind is ProbeKind.TUNNEL:
            came_from = received.address, received.port
            return received.by_tunnel and came_from == (candidate.address, candidate.port)
        if received.by_tunnel:
            return False
        if candidate.kind is ProbeKind.OVERLAY:
            theirs = self._overlay_address(asked.uid, candidate.version)
            ours = self.view.sources.get(candidate.version)
            return (answer.seen_from, answer.arrived_at) == (ours, theirs)
        if answer.seen_from not in self._links.addresses or answer.arrived_at != candidate.address:
            return False
        if candidate.kind is ProbeKind.SITE:
            return True
        return (
            received.hop_limit == 1 and self._links.names.get(received.ifindex) == candidate.device
        )
