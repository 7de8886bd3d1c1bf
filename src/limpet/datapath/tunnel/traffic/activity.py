"""Peers of a tunnel that have traffic, those sent to that never answer, and those with whom no
session begins. Pure: made of readings of the device that are seconds apart, and the time of each.

A device counts encrypted bytes, its own messages included: a keepalive has 32 bytes, the messages
of a handshake 148 and 92, and one with a packet a multiple of 16 from 64 on. What agents say to
each other through the tunnel is counted too, but is not traffic of pods: it is subtracted.
Source: WireGuard's paper, section 5.4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from limpet.base.addresses import Endpoint
from limpet.cluster.exchange.inner_traffic import InnerPackets
from limpet.datapath.tunnel.state import PeerReading

ACTIVE_S = 10.0
"""A peer is active for so long after its last packet."""
UNANSWERED_S = 1.0
"""A handshake is answered within a round trip; a peer that takes longer counts as unanswered."""
CROSSED_S = 1.0
"""So long after two initiations have crossed the one end begins anew; each time twice as long."""
CROSSED_FOLLOWS_S = 3.0
"""As CROSSED_S, at the end that lets the other one begin anew. Less than the five seconds until a
device tries again by itself: with traffic both ways the two would cross again at that moment.
Source: REKEY_TIMEOUT in section 6.4, from which packets that wait do not differ by any chance."""
_LONGEST_FACTOR = 16
"""Where an answer takes longer than all pauses, or goes one way only, resets must not add up."""
_ASK_AGAIN_S = 5.0
_PATIENCE_S = 30.0
"""A peer that is sent to in vain counts as active for so long, time to find another way."""
_SESSION_S = 150.0
"""A session that is used is renewed after 120 s, and unusable after 180.
Source: WireGuard's paper, section 6.1."""
_KEEPALIVE_BYTES = 32
_KEEPALIVE_S = 10.0
"""The shortest time between two that nobody has configured. Source: section 6.5."""
_INITIATION_BYTES, _RESPONSE_BYTES = 148, 92
_HANDSHAKES_BYTES = {0: 0, 4: 148, 8: 2 * 148, 12: 92}
"""Bytes of handshake messages in a sum, told by its remainder modulo 16."""
_NO_PACKETS = InnerPackets()
_NOTHING: Mapping[bytes, InnerPackets] = {}


def data_bytes(packets_bytes: Iterable[int]) -> int:
    """What the device counts for inner packets of these sizes."""
    return sum(32 + -(-each // 16) * 16 for each in packets_bytes)


def began_and_answered(sent_bytes: int) -> bool:
    """Whether what was sent without a session is initiations and responses, of both at least one.

    Up to 22 initiations no other sum is the same.
    """
    return any(
        sent_bytes > begun_bytes and (sent_bytes - begun_bytes) % _RESPONSE_BYTES == 0
        for begun_bytes in range(_INITIATION_BYTES, 23 * _INITIATION_BYTES, _INITIATION_BYTES)
    )


def _handshakes_bytes(moved_bytes: int) -> int:
    return _HANDSHAKES_BYTES.get(moved_bytes % 16, 0)


def has_payload(
    moved_bytes: int, *, within_s: float, handshaken: bool = False, agents_bytes: int = 0
) -> bool:
    """Whether bytes that went one way in `within_s` hold more than the device's own messages.

    `handshaken`: a handshake was completed in that time, begun by either end or by both.
    `agents_bytes`: how much of it agents may have said.
    """
    handshakes_bytes = _handshakes_bytes(moved_bytes)
    if handshaken and not handshakes_bytes:
        handshakes_bytes = 148 + 92
    # A handshake is confirmed by a keepalive, and a call during it causes another.
    keepalives = (2 if handshakes_bytes else 1) + int(within_s / _KEEPALIVE_S)
    return moved_bytes - handshakes_bytes - agents_bytes > keepalives * _KEEPALIVE_BYTES


@dataclass(slots=True)
class AgentsBytes:
    """Bytes that agents have said one way and the device has not counted yet: a message may wait
    for a handshake, or be counted in the next reading."""

    _bytes: int = 0
    _until_s: float = float("-inf")

    def add(self, added_bytes: int, now_s: float) -> None:
        if added_bytes:
            kept_bytes = self._bytes if now_s <= self._until_s else 0
            self._bytes, self._until_s = kept_bytes + added_bytes, now_s + ACTIVE_S

    def take(self, moved_bytes: int, now_s: float) -> int:
        """How much of it may be in the bytes that the device has counted just now."""
        if now_s > self._until_s:
            return 0
        taken_bytes = min(self._bytes, max(moved_bytes - _handshakes_bytes(moved_bytes), 0))
        self._bytes -= taken_bytes
        return taken_bytes


@dataclass(slots=True)
class _Seen:
    received_bytes: int = 0
    sent_bytes: int = 0
    handshake_ns: int = 0
    handshake_at_s: float = float("-inf")
    """When the present handshake was read first."""
    agents_received: AgentsBytes = field(default_factory=AgentsBytes)
    agents_sent: AgentsBytes = field(default_factory=AgentsBytes)


@dataclass(slots=True)
class _Asked:
    since_s: float
    """The first reading by which something was sent and not answered."""
    sent_at_s: float
    told_at_s: float = float("-inf")


@dataclass(slots=True)
class _Begun:
    """Handshakes with a peer that have led to no session yet."""

    sent_bytes: int = 0
    is_heard: bool = False
    """The peer has begun, too: it is not away altogether."""
    moved_at_s: float = float("-inf")
    crossed_at_s: float = float("inf")
    """The first reading by which this end had begun, and had answered the other's beginning."""
    factor: int = 1
    """On what is waited now."""


class TunnelActivity:
    """Activity of one device's peers, from its start."""

    def __init__(self, *, astray_after_s: float = 0.0) -> None:
        """`astray_after_s`: how long a device may have another endpoint than planned."""
        self._astray_after_s = astray_after_s
        self._seen: dict[bytes, _Seen] = {}
        self._payload_at_s: dict[bytes, float] = {}
        self._waiting: dict[bytes, _Asked] = {}
        self._begun: dict[bytes, _Begun] = {}
        self._astray: dict[bytes, tuple[Endpoint, float]] = {}
        """Planned endpoints that the last reading did not show, and since when."""
        self._read_at_s: float | None = None

    @property
    def waits(self) -> bool:
        """Something was sent that has led to no session yet, so peers have to be read."""
        return bool(self._waiting) or any(
            each.crossed_at_s < float("inf") for each in self._begun.values()
        )

    def begin(self, readings: Mapping[bytes, PeerReading], now_s: float) -> None:
        """Takes the first reading: what was counted before does not count as traffic."""
        self._read_at_s = now_s
        for key, reading in readings.items():
            self._seen[key] = _Seen(
                reading.received_bytes, reading.sent_bytes, reading.last_handshake_ns, now_s
            )

    def take(
        self,
        readings: Mapping[bytes, PeerReading],
        now_s: float,
        agents: Mapping[bytes, InnerPackets] = _NOTHING,
    ) -> None:
        """A peer that was not there the last time has counted from zero.

        `agents`: what this node's agent has said and heard through the tunnel since the last time.
        """
        within_s = now_s - self._read_at_s if self._read_at_s is not None else ACTIVE_S
        self._read_at_s = now_s
        for key in self._seen.keys() - readings.keys():
            del self._seen[key]
            self._payload_at_s.pop(key, None)
            self._waiting.pop(key, None)
            self._begun.pop(key, None)
        for key, reading in readings.items():
            self._take(key, reading, agents.get(key, _NO_PACKETS), within_s, now_s)

    def _take(
        self,
        key: bytes,
        reading: PeerReading,
        agents: InnerPackets,
        within_s: float,
        now_s: float,
    ) -> None:
        seen = self._seen.get(key)
        if seen is None or reading.sent_bytes < seen.sent_bytes:  # made anew meanwhile
            seen = self._seen[key] = _Seen()
            if key in self._begun:
                self._begun[key].sent_bytes, self._begun[key].is_heard = 0, False
        received_bytes = reading.received_bytes - seen.received_bytes
        sent_bytes = reading.sent_bytes - seen.sent_bytes
        seen.received_bytes, seen.sent_bytes = reading.received_bytes, reading.sent_bytes
        handshaken = reading.last_handshake_ns != seen.handshake_ns
        seen.agents_received.add(data_bytes(agents.received), now_s)
        seen.agents_sent.add(data_bytes(agents.sent), now_s)
        for moved_bytes, told in (
            (received_bytes, seen.agents_received),
            (sent_bytes, seen.agents_sent),
        ):
            said_bytes = told.take(moved_bytes, now_s)
            if has_payload(
                moved_bytes, within_s=within_s, handshaken=handshaken, agents_bytes=said_bytes
            ):
                self._payload_at_s[key] = now_s
        if handshaken:
            seen.handshake_ns, seen.handshake_at_s = reading.last_handshake_ns, now_s
        self._await(key, seen, received_bytes, sent_bytes, now_s)

    def _await(
        self, key: bytes, seen: _Seen, received_bytes: int, sent_bytes: int, now_s: float
    ) -> None:
        has_session = bool(seen.handshake_ns) and now_s - seen.handshake_at_s < _SESSION_S
        self._begin(key, received_bytes, sent_bytes, now_s, has_session=has_session)
        if has_session or received_bytes:
            self._waiting.pop(key, None)
            return
        waiting = self._waiting.get(key)
        if sent_bytes and waiting is None:
            self._waiting[key] = _Asked(now_s, now_s)
        elif sent_bytes and waiting is not None:
            waiting.sent_at_s = now_s
        elif waiting is not None and now_s - waiting.sent_at_s > ACTIVE_S:
            del self._waiting[key]

    def _begin(
        self, key: bytes, received_bytes: int, sent_bytes: int, now_s: float, *, has_session: bool
    ) -> None:
        begun = self._begun.get(key)
        if has_session or (begun is not None and now_s - begun.moved_at_s > _PATIENCE_S):
            self._begun.pop(key, None)
            begun = None
        if has_session or not (received_bytes or sent_bytes):
            return
        if begun is None:
            begun = self._begun[key] = _Begun()
        begun.sent_bytes += sent_bytes
        begun.is_heard |= bool(received_bytes)
        begun.moved_at_s = now_s
        if begun.is_heard and began_and_answered(begun.sent_bytes):
            begun.crossed_at_s = min(begun.crossed_at_s, now_s)

    def active(self, now_s: float) -> frozenset[bytes]:
        """Peers with payload in the last ten seconds, and for a while those whose handshakes are
        not answered, as payload waits for these."""
        old = [key for key, at_s in self._payload_at_s.items() if now_s - at_s > ACTIVE_S]
        for key in old:
            del self._payload_at_s[key]
        waiting = (k for k, asked in self._waiting.items() if now_s - asked.since_s <= _PATIENCE_S)
        return frozenset((*self._payload_at_s, *waiting))

    def unanswered(self, now_s: float) -> list[bytes]:
        """Peers that are sent to without an answer; each is returned again after a while only."""
        found = []
        for key, waiting in self._waiting.items():
            due = now_s - waiting.since_s >= UNANSWERED_S
            if due and now_s - waiting.told_at_s >= _ASK_AGAIN_S:
                waiting.told_at_s = now_s
                found.append(key)
        return found

    def crossed(self, now_s: float, *, own_key: bytes) -> list[bytes]:
        """Peers to be made anew: both ends have begun, and no session came of it.

        Two initiations that cross make a responder of each end, and both refuse the response.
        Whoever has the lower key is to begin anew; each peer is returned again after a while only.
        Source: wg_noise_handshake_consume_response in drivers/net/wireguard/noise.c.
        """
        found = []
        for key, begun in self._begun.items():
            wait_s = (CROSSED_S if own_key < key else CROSSED_FOLLOWS_S) * begun.factor
            if now_s - begun.crossed_at_s >= wait_s:
                begun.sent_bytes, begun.is_heard, begun.crossed_at_s = 0, False, float("inf")
                begun.factor = min(2 * begun.factor, _LONGEST_FACTOR)
                found.append(key)
        return found

    def astray(
        self, readings: Mapping[bytes, PeerReading], planned: Iterable[tuple[bytes, Endpoint]]
    ) -> list[bytes]:
        """Peers that had another endpoint than planned in the last two readings, and in all of the
        last `astray_after_s`."""
        found = []
        now_s = self._read_at_s or 0.0
        now: dict[bytes, tuple[Endpoint, float]] = {}
        for key, endpoint in planned:
            reading = readings.get(key)
            if reading is None or reading.peer.endpoint in (None, endpoint):
                continue
            known, since_s = self._astray.get(key, (None, now_s))
            if known != endpoint:
                now[key] = endpoint, now_s
            elif now_s - since_s < self._astray_after_s:
                now[key] = endpoint, since_s
            else:
                found.append(key)
        self._astray = now
        return found
