"""Ends of pairs that are TLS connections: when they are opened, and where. Pure."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from limpet.base.rate_limit import TokenBucket
from limpet.cluster.topology.paths import RelayEnd
from limpet.relay.client.contact import Contacts
from limpet.relay.client.effects import CloseStreams, Effect, OpenStream

if TYPE_CHECKING:
    from limpet.relay.client.peer import RelayPeer

ENDLESS_S = 3.0
"""Without an end over UDP although relays answer, then streams are tried."""
STREAM_KEPT_S = 30.0
"""After UDP works again."""
_FAILED_S, _SLOWEST_FAILED_S = 2.0, 15.0
_OPENINGS_PER_S, _OPENINGS_BURST = 10.0, 128.0
"""Each may take its time to fail."""
_LATER_S = 5.0


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
    """A check by UDP has turned what is for this node to there, until it is opened again."""

    def hurry(self, now_s: float) -> None:
        """If it has failed it is opened again now."""
        if self.retry_s < math.inf:
            self.retry_s = min(self.retry_s, now_s)

    def opened(self, end: RelayEnd) -> None:
        self.end, self.retry_s, self.failures, self.problem = end, math.inf, 0, ""

    def failed(self, problem: str, now_s: float) -> None:
        """A connection that had worked is tried again at once."""
        delay_s = min(_FAILED_S * 2.0**self.failures, _SLOWEST_FAILED_S)
        self.retry_s = now_s if self.end is not None else now_s + delay_s
        self.end, self.problem = None, problem
        self.failures = min(self.failures + 1, 10)


class StreamPlan:
    def __init__(self, own_uid: str, contacts: Contacts) -> None:
        self._own = own_uid
        self._contacts = contacts
        self._openings = TokenBucket(_OPENINGS_PER_S, _OPENINGS_BURST)

    def plan(self, peer: RelayPeer, count: int, now_s: float) -> list[Effect]:
        """Opens what the peer lacks, up to `count`, and closes what it needs no more."""
        bound_s = min((end.bound_s for end in peer.bound), default=math.inf)
        if peer.streams and (not peer.needed or bound_s <= now_s - STREAM_KEPT_S):
            peer.streams.clear()
            return [CloseStreams(peer.uid)]
        late = peer.endless_s <= now_s - ENDLESS_S
        if peer.endless_s == math.inf or not (late or self._contacts.is_silent(now_s)):
            return []
        effects: list[Effect] = []
        for relay in self._wanted(peer, now_s)[:count]:
            stream = peer.streams.get(relay)
            if stream is None:
                peer.streams[relay] = stream = Stream(retry_s=now_s)
            if stream.retry_s > now_s and not stream.displaced:
                continue
            if self._openings.take(now_s):
                stream.retry_s, stream.displaced = math.inf, False
                effects.append(OpenStream(relay, peer.uid))
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
