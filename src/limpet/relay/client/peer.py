"""A peer that is reached through relays: at which it should have ends, by UDP or TLS. Pure."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from limpet.base.rate_limit import TokenBucket
from limpet.cluster.topology.paths import RelayEnd
from limpet.relay.client.contact import Contacts
from limpet.relay.client.end import End, Phase

SETTLED_S = 10.0
"""Once the wanted ends have been bound for so long, others are given up."""
_LOOK_S, _SHORT_LOOK_S = 60.0, 10.0
"""Between looks at a peer, and at one that has fewer ends than it should."""
_STICKY, _STICKY_S = 0.5, 0.02
"""Another relay takes an end's place when its round trip is shorter by more than that."""
_TOLD_RTT, _TOLD_RTT_S = 0.5, 0.01
"""A round trip is told again when it has changed by more than that."""
ENDLESS_S = 3.0
"""After so long without a UDP end, although relays answer, streams are tried."""
STREAM_KEPT_S = 30.0
"""How long a stream stays open after UDP works again."""
_FAILED_S, SLOWEST_FAILED_S = 2.0, 15.0
"""Until a stream that has failed is opened again: at first, and at the latest."""
_OPENINGS_PER_S, _OPENINGS_BURST = 10.0, 128.0
"""Rate limit of openings: each may take seconds to fail."""
_LATER_S = 5.0


@dataclass(frozen=True, slots=True)
class OpenStream:
    """Is to be done: answered by `StreamOpened` or `StreamFailed`."""

    peer: str
    relay: str


@dataclass(frozen=True, slots=True)
class CloseStreams:
    """Is to be done: none of the peer's streams is needed any more."""

    peer: str


@dataclass(frozen=True, slots=True)
class StreamOpened:
    peer: str
    end: RelayEnd


@dataclass(frozen=True, slots=True)
class StreamFailed:
    """It was not opened, or was open and is not any more."""

    peer: str
    relay: str
    problem: str


@dataclass(frozen=True, slots=True)
class StreamWanted:
    """The peer has an end at the relay, and waits there for this node's."""

    peer: str
    relay: str


StreamEvent = StreamOpened | StreamFailed | StreamWanted


@dataclass(slots=True, eq=False)
class Stream:
    """An end that is a TLS connection."""

    end: RelayEnd | None = None
    """None: it is being opened, or has failed."""
    retry_s: float = math.inf
    """It has failed, and is opened again then."""
    failures: int = 0
    problem: str = ""
    displaced: bool = False
    """Packets for this node go by UDP since a check; opening the stream again turns them back."""

    def hurry(self, now_s: float) -> None:
        """If it has failed it is opened again now."""
        if self.retry_s < math.inf:
            self.retry_s = min(self.retry_s, now_s)

    def opened(self, end: RelayEnd) -> None:
        self.end, self.retry_s, self.failures, self.problem = end, math.inf, 0, ""

    def failed(self, problem: str, now_s: float) -> None:
        """Schedules the next try: at once if the connection had worked, else with back-off."""
        delay_s = min(_FAILED_S * 2.0**self.failures, SLOWEST_FAILED_S)
        self.retry_s = now_s if self.end is not None else now_s + delay_s
        self.end, self.problem = None, problem
        self.failures = min(self.failures + 1, 10)


@dataclass(slots=True, eq=False)
class RelayPeer:
    uid: str
    needed: bool = False
    endless_s: float = math.inf
    """Since when it is needed and has no end over UDP."""
    nudge_s: float = math.inf
    """When all its ends are checked at once, next."""
    nudged_s: float = -math.inf
    ends: dict[str, End] = field(default_factory=dict)
    """By the relay's uid, like the streams."""
    streams: dict[str, Stream] = field(default_factory=dict)
    told: tuple[RelayEnd, ...] = ()
    """The ends that lead to it, as they were told last."""

    @property
    def bound(self) -> list[End]:
        return [end for end in self.ends.values() if end.port.bound is not None]

    def ends_now(self, contacts: Contacts) -> tuple[RelayEnd, ...]:
        """The ends that lead to it, the nearest first and streams last."""
        before = {(end.relay, end.endpoint): end for end in self.told}
        found = []
        for end in self.ends.values():
            if (endpoint := end.endpoint) is not None:
                rtt_s = contacts.rtt_s(end.relay)
                known = before.get((end.relay, endpoint))
                if known is None or abs(rtt_s - known.rtt_s) > _TOLD_RTT * rtt_s + _TOLD_RTT_S:
                    known = RelayEnd(end.relay, endpoint, rtt_s=rtt_s if rtt_s < math.inf else 0.0)
                found.append(known)
        found.sort(key=lambda end: (end.rtt_s, end.relay))
        streams = (stream.end for stream in self.streams.values())
        return (*found, *(end for end in streams if end is not None))

    def wanted_relays(
        self, contacts: Contacts, full: Mapping[str, float], now_s: float, *, follows: bool
    ) -> tuple[str, ...]:
        """Relays that it should have ends at, the best first.

        `full`: until when a relay has no room. `follows`: what the peer has asked for comes first.
        """

        def weight(uid: str) -> tuple[bool, float, str]:
            end, rtt_s = self.ends.get(uid), contacts.rtt_s(uid)
            invited = end is not None and end.interest.is_invited(now_s)
            if end is not None:
                rtt_s = rtt_s * _STICKY - _STICKY_S
            return (follows and not invited, rtt_s, uid)

        def is_open(uid: str) -> bool:
            end = self.ends.get(uid)
            if end is not None and end.phase is not Phase.FAILED:
                return True
            waits_s = end.next_s if end is not None else -math.inf
            return max(waits_s, full.get(uid, -math.inf)) <= now_s

        alive = (uid for uid in contacts.alive if uid != self.uid)
        return tuple(sorted(filter(is_open, alive), key=weight))

    def next_look_s(self, now_s: float, *, short: bool) -> float:
        """When something may have to be done for it. `short`: it has fewer ends than it should."""
        moments = [
            now_s + (_SHORT_LOOK_S if short else _LOOK_S),
            self.nudge_s,
            self.endless_s + ENDLESS_S,
            *(end.port.bound_s + SETTLED_S for end in self.bound),
            *(stream.retry_s for stream in self.streams.values()),
        ]
        if self.streams:
            moments.extend(end.port.bound_s + STREAM_KEPT_S for end in self.bound)
        return min(moment for moment in moments if moment > now_s)


@dataclass(slots=True)
class Needs:
    """Peers by their uid."""

    needed: set[str] = field(default_factory=set)
    """Peers that a relay has to lead to."""
    short: set[str] = field(default_factory=set)
    """Peers that have fewer ends than they should."""
    in_silence: bool = False
    """All relays are silent over UDP, and the short peers were planned for that."""


class StreamPlan:
    def __init__(self, own_uid: str, contacts: Contacts) -> None:
        self._own = own_uid
        self._contacts = contacts
        self._openings = TokenBucket(_OPENINGS_PER_S, _OPENINGS_BURST)

    def plan(self, peer: RelayPeer, count: int, now_s: float) -> list[OpenStream | CloseStreams]:
        """Opens what the peer lacks, up to `count`, and closes what it needs no more."""
        bound_s = min((end.port.bound_s for end in peer.bound), default=math.inf)
        if peer.streams and (not peer.needed or bound_s <= now_s - STREAM_KEPT_S):
            peer.streams.clear()
            return [CloseStreams(peer.uid)]
        late = peer.endless_s <= now_s - ENDLESS_S
        if peer.endless_s == math.inf or not (late or self._contacts.is_silent(now_s)):
            return []
        effects: list[OpenStream | CloseStreams] = []
        for relay in self._wanted(peer, now_s)[:count]:
            stream = peer.streams.get(relay)
            if stream is None:
                peer.streams[relay] = stream = Stream(retry_s=now_s)
            if stream.retry_s > now_s and not stream.displaced:
                continue
            if self._openings.take(now_s):
                stream.retry_s, stream.displaced = math.inf, False
                effects.append(OpenStream(peer.uid, relay))
            else:
                stream.retry_s = now_s + _LATER_S
        return effects

    def _wanted(self, peer: RelayPeer, now_s: float) -> list[str]:
        """Relays that streams may be open to now, the best first.

        Both ends find the same, although neither knows which relays the other gets to: by a rank
        that is made of all three. A peer that is a relay comes first: it is its own other end.
        """
        names = "\0".join(sorted((self._own, peer.uid)))

        def rank(uid: str) -> tuple[bool, bytes]:
            digest = hashlib.blake2s(f"{names}\0{uid}".encode(), digest_size=8).digest()
            return (uid != peer.uid, digest)

        def is_open(uid: str) -> bool:
            stream = peer.streams.get(uid)
            return stream is None or stream.retry_s == math.inf or stream.retry_s <= now_s

        relays = (uid for uid, site in self._contacts.sites.items() if site.tls)
        return sorted(filter(is_open, relays), key=rank)
