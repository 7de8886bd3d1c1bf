"""Ends of pairs that are TLS connections: when they are opened, and where. Pure."""

from __future__ import annotations

import hashlib
import math

from limpet.base.rate_limit import TokenBucket
from limpet.relay.client.contact import Contacts
from limpet.relay.client.effects import CloseStreams, Effect, OpenStream
from limpet.relay.client.peer import ENDLESS_S, STREAM_KEPT_S, RelayPeer, Stream

_OPENINGS_PER_S, _OPENINGS_BURST = 10.0, 128.0
"""Each may take its time to fail."""
_LATER_S = 5.0


class StreamPlan:
    def __init__(self, own_uid: str, contacts: Contacts) -> None:
        self._own = own_uid
        self._contacts = contacts
        self._openings = TokenBucket(_OPENINGS_PER_S, _OPENINGS_BURST)

    def plan(self, peer: RelayPeer, count: int, now_s: float) -> list[Effect]:
        """Opens what the peer lacks, up to `count`, and closes what it needs no more."""
        bound_s = min((end.port.bound_s for end in peer.bound), default=math.inf)
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
