"""The other nodes of a cluster, all at once: `python -m bench.paths.peers_part FOLDER COUNT`.

Each has an address and a key of its own. They answer probes, and ask theirs as nodes do that have
as many peers; they speak WireGuard, and through it compare what they know. `FOLDER` holds a copy
of what the first node knows of the cluster. Serves questions as `bench.nodes.part` has it.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import struct
import sys
import time
from collections import Counter
from dataclasses import dataclass, replace
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidTag

from bench.nodes.member import FIRST_ADDRESS, TUNNEL_PORT, node_key
from bench.nodes.part import serve
from bench.paths.wireguard_end import DATA, INITIATION, Session, WireguardEnds
from limpet.base.addresses import Endpoint
from limpet.base.process.log import configure_log
from limpet.cluster.datagrams.peer_datagram import BodyKind, Codec, Datagram, DatagramError
from limpet.cluster.documents import Source
from limpet.cluster.exchange import messages as exchange
from limpet.cluster.exchange.digest import DocumentIndex, make_listings, make_pushes
from limpet.cluster.exchange.messages import NONCE_BYTES as EXCHANGE_NONCE_BYTES
from limpet.cluster.exchange.messages import Message, Push, Want
from limpet.cluster.identity import load_identity
from limpet.cluster.keys import public_key_of, uid_of
from limpet.cluster.kinds import GRANT, PRESENCE
from limpet.cluster.membership import Membership
from limpet.cluster.seal import seal
from limpet.cluster.snapshot.file import SnapshotFile
from limpet.cluster.topology import transports
from limpet.cluster.topology.paths import PeerPath
from limpet.cluster.topology.transports import ProbeKind
from limpet.datapath.tunnel.key import tunnel_key_of
from limpet.paths.ladder.candidates import CandidateFacts
from limpet.paths.ladder.ladder import Ladder
from limpet.paths.ladder.probe_scheduler import ProbeScheduler, stretch_for
from limpet.paths.ladder.probe_state import STANDBY_S, Question
from limpet.paths.probe.codec import (
    encode_answer,
    encode_probe,
    padding_for,
    parse_answer,
    parse_probe,
    udp_packet,
)
from limpet.paths.probe.messages import NONCE_BYTES, AnsweredBy, Candidate, Probe, ProbeAnswer

_COMPARE_S = (3.0, 5.0)
"""Between two comparisons that a node begins, so also between two that are begun with one."""
_PATH_BYTES = 1500
"""What each has found its way to carry."""
_UNREACHED = IPv4Address("203.0.113.9")
_IP_PKTINFO = 8
_PKTINFO = struct.Struct("=i4s4s")


@dataclass(slots=True)
class _Peer:
    number: int
    uid: str
    codec: Codec
    tunnel_key: bytes
    ladder: Ladder | None = None
    """From the first probe on that it was asked."""


class _Peers:
    def __init__(self, membership: Membership, count: int) -> None:
        self.counters: Counter[str] = Counter()
        self._membership = membership
        self._index = DocumentIndex(membership.replica.known)
        self._other = uid_of(public_key_of(node_key(0)))
        self._count = count
        pinned = membership.identity.pinned_key
        self._peers = {number: _peer(number, pinned) for number in range(1, count + 1)}
        self._scheduler = ProbeScheduler()
        self._by_uid = {peer.uid: peer for peer in self._peers.values()}
        self._ends = WireguardEnds()
        self._asked: dict[bytes, tuple[_Peer, Question, float]] = {}
        self._inner: dict[int, tuple[IPv4Address, IPv4Address, int, int]] = {}
        """Who has a session: own and other address in the tunnel, own and other port."""
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
        self._socket.bind(("0.0.0.0", TUNNEL_PORT))
        loop = asyncio.get_running_loop()
        loop.add_reader(self._socket.fileno(), self._read)
        loop.call_later(_COMPARE_S[1], self._compare)
        self._timer = loop.call_later(0.0, self._tick)

    @property
    def reached(self) -> int:
        """Those that were asked at least once."""
        return sum(peer.ladder is not None for peer in self._peers.values())

    # The wire

    def _send(self, number: int, end: Endpoint, data: bytes) -> None:
        info = _PKTINFO.pack(0, (FIRST_ADDRESS + number).packed, bytes(4))
        where = (str(end[0]), end[1])
        self._socket.sendmsg([data], [(socket.IPPROTO_IP, _IP_PKTINFO, info)], 0, where)

    def _read(self) -> None:
        while True:
            try:
                data, ancillary, _, where = self._socket.recvmsg(65536, 128)
            except BlockingIOError:
                return
            (packed,) = (_PKTINFO.unpack(v)[2] for _, kind, v in ancillary if kind == _IP_PKTINFO)
            number = int(IPv4Address(packed)) - int(FIRST_ADDRESS)
            end = (IPv4Address(where[0]), where[1])
            try:
                self._take(self._peers[number], end, data)
            except (DatagramError, InvalidTag, KeyError) as error:
                self.counters[f"refused: {error!r}"] += 1

    def _take(self, peer: _Peer, end: Endpoint, data: bytes) -> None:
        if data[:4] == INITIATION:
            self.counters["handshakes"] += 1
            self._send(peer.number, end, self._ends.respond(peer.number, peer.tunnel_key, data))
        elif data[:4] == DATA:
            found = self._ends.open(data)
            if found is not None and found[1]:
                self._take_packet(peer, end, *found)
        else:
            datagram = peer.codec.parse(data)
            datagram.check()
            self._take_probe(peer, end, datagram)

    # Probes

    def _take_probe(self, peer: _Peer, end: Endpoint, datagram: Datagram) -> None:
        if datagram.kind == BodyKind.PROBE:
            probe = parse_probe(datagram.body)
            self.counters["answered"] += 1
            self.counters["answered_of_size"] += probe.padding_bytes > 0
            way = PeerPath(transports.TUNNEL, _PATH_BYTES, endpoint=end)
            answer = ProbeAnswer(probe.nonce, 1, end[0], end[1], FIRST_ADDRESS + peer.number, way)
            self._say(peer, end, BodyKind.ANSWER, encode_answer(answer))
            if peer.ladder is None:
                self._begin(peer, way)
        elif datagram.kind == BodyKind.ANSWER:
            asked = self._asked.pop(parse_answer(datagram.body).nonce, None)
            if asked is not None and peer.ladder is not None:
                _, question, sent_s = asked
                self.counters["proven"] += 1
                now_s = time.monotonic()
                peer.ladder.answered(
                    question.candidate,
                    now_s,
                    rtt_s=now_s - sent_s,
                    via=AnsweredBy(),
                    stretch=self._stretch(),
                    packet_bytes=question.packet_bytes,
                )
                self._settle(peer)

    def _begin(self, peer: _Peer, way: PeerPath) -> None:
        """It has known the way for long; nodes do not ask in step with each other."""
        assert way.endpoint is not None
        facts = CandidateFacts(tunnel=True, endpoints=(way.endpoint,))
        peer.ladder = Ladder(way, leads=peer.uid < self._other)
        at_s = time.monotonic() + random.random() * STANDBY_S * self._stretch()
        peer.ladder.settle(facts, (), at_s=at_s, urgent=False)
        self._settle(peer)

    def _settle(self, peer: _Peer) -> None:
        assert peer.ladder is not None
        vital_s, other_s = (peer.ladder.due_s(vital=vital) for vital in (True, False))
        self._scheduler.put(peer.uid, vital_s=vital_s, other_s=other_s)
        self._timer.cancel()
        now_s = time.monotonic()
        delay_s = max(self._scheduler.next_s(now_s) - now_s, 0.001)
        self._timer = asyncio.get_running_loop().call_later(min(delay_s, 3600), self._tick)

    def _tick(self) -> None:
        now_s = time.monotonic()
        while (found := self._scheduler.take(now_s)) is not None:
            uid, vital = found
            peer = self._by_uid[uid]
            assert peer.ladder is not None
            questions = peer.ladder.take_due(now_s, vital=vital, stretch=self._stretch())
            for question in questions:
                self._ask(peer, question, now_s)
            self._scheduler.spend(len(questions), now_s, vital=vital)
            self._settle(peer)

    def _ask(self, peer: _Peer, question: Question, now_s: float) -> None:
        candidate: Candidate = question.candidate
        nonce = os.urandom(NONCE_BYTES)
        self._asked[nonce] = peer, question, now_s
        self.counters["asked"] += 1
        size = question.packet_bytes
        probe = Probe(
            nonce,
            ProbeKind.TUNNEL,
            1,
            punch=question.punch,
            in_use=question.in_use,
            padding_bytes=padding_for(size, 4) if size else 0,
        )
        self._say(peer, (candidate.address, candidate.port), BodyKind.PROBE, encode_probe(probe))

    def _say(self, peer: _Peer, end: Endpoint, kind: BodyKind, body: bytes) -> None:
        self._send(peer.number, end, peer.codec.encode(kind, body, to_uid=self._other))

    def _stretch(self) -> float:
        return stretch_for(self._count, random.random())

    # What is compared through the tunnel

    def _take_packet(self, peer: _Peer, end: Endpoint, session: Session, packet: bytes) -> None:
        answers: list[Message] = []
        if packet[0] >> 4 == 4 and packet[9] == socket.IPPROTO_UDP:
            theirs, ours = IPv4Address(packet[12:16]), IPv4Address(packet[16:20])
            at = (packet[0] & 15) * 4
            their_port, our_port, length = struct.unpack_from(">HHH", packet, at)
            self._inner[peer.number] = ours, theirs, our_port, their_port
            datagram = peer.codec.parse(packet[at + 8 : at + length])
            datagram.check()
            answers = self._compared(datagram)
        for answer in answers:
            self._tell(peer, end, session, answer)
        if not answers:
            self._send(peer.number, end, session.seal(b""))

    def _compared(self, datagram: Datagram) -> list[Message]:
        known = self._membership.replica.known
        nonce = os.urandom(EXCHANGE_NONCE_BYTES)
        match exchange.decode(datagram.body):
            case exchange.Digest() as digest:
                self.counters["digests_heard"] += 1
                return make_listings(
                    self._index, digest, nonce, room_bytes=None, below=random.randrange
                )
            case exchange.Listing() as listing:
                here, there = self._index.compare(listing)
                self.counters["differences"] += bool(there or here)
                answers = make_pushes(known, here[:64])
                if there:
                    answers.append(Want(listing.nonce, there[:64]))
                return answers
            case Want(marks=marks):
                return make_pushes(known, self._index.keys(marks))
            case Push(documents=documents):
                self._membership.offer(documents, source=Source.NEIGHBOUR)
                self._learn(self._other)
        return []

    def _tell(self, peer: _Peer, end: Endpoint, session: Session, message: Message) -> None:
        data = peer.codec.encode(BodyKind.EXCHANGE, exchange.encode(message), to_uid=self._other)
        ours, theirs, our_port, their_port = self._inner[peer.number]
        packet = udp_packet(ours, theirs, our_port, their_port, data)
        self._send(peer.number, end, session.seal(packet))

    def change(self, number: int) -> None:
        """The peer says that it is reached at one more place; the first to be told is the agent."""
        uid = self._peers[number].uid
        entry = self._membership.snapshot.nodes[uid]
        assert entry.presence is not None
        endpoints = ((_UNREACHED, 1024 + number),)
        presence = replace(
            entry.presence, sequence=entry.presence.sequence + 1, endpoints=endpoints
        )
        sealed = seal(PRESENCE, presence, node_key(number)).sealed
        self._membership.offer([sealed], source=Source.NEIGHBOUR)
        self._learn(uid)
        self._say_inside(Push((sealed,)))

    def _learn(self, uid: str) -> None:
        known = self._membership.replica.known
        self._index.update(known, [(kind.name, uid) for kind in (GRANT, PRESENCE)])

    def _say_inside(self, message: Message) -> None:
        """By one of those that have been spoken with of late."""
        usable = [
            (peer, session, peer.ladder.path.endpoint)
            for number, session in self._ends.latest.items()
            if session.usable and number in self._inner
            if (peer := self._peers[number]).ladder is not None and peer.ladder.path is not None
        ]
        if usable:
            peer, session, end = random.choice(usable)
            assert end is not None
            self._tell(peer, end, session, message)

    def _compare(self) -> None:
        asyncio.get_running_loop().call_later(random.uniform(*_COMPARE_S), self._compare)
        self.counters["digests_told"] += 1
        self._say_inside(self._index.digest(os.urandom(EXCHANGE_NONCE_BYTES)))


def _peer(number: int, pinned_key: bytes) -> _Peer:
    key = node_key(number)
    public_key = public_key_of(key)
    tunnel = tunnel_key_of(key, public_key)
    return _Peer(number, uid_of(public_key), Codec(key, pinned_key), tunnel.private_key)


async def _run(membership: Membership, count: int) -> None:
    peers = _Peers(membership, count)

    async def answer(question: dict[str, Any]) -> Any:
        if "change" in question:
            peers.change(question["change"])
        told = dict(peers.counters)
        return {**told, "reached": peers.reached, "cpu_s": time.process_time()}

    await serve(answer)


def main() -> None:
    configure_log("error")
    folder = Path(sys.argv[1])
    identity = load_identity(folder)
    assert identity is not None
    identity = replace(identity, private_key=node_key(1))
    file = SnapshotFile(folder / "snapshot.log", own_uid=identity.uid)
    membership = Membership(identity, file, boot_id="bench")
    asyncio.run(_run(membership, int(sys.argv[2])))
    membership.close()


if __name__ == "__main__":
    main()
