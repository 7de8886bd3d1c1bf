"""Pairs that a node has not asked for: it is told of them, since another waits."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable

from limpet.base.bounds.members import RELAY_TELLS, RELAY_TELLS_PER_S, RELAY_TOLD_ENDS
from limpet.base.rate_limit import TokenBuckets
from limpet.cluster.datagrams.peer_datagram import BodyKind
from limpet.cluster.datagrams.peer_socket import PeerSocket
from limpet.datapath.event import NodeAwaited, Tell
from limpet.relay.messages import (
    Pair,
    encode,
)
from limpet.relay.server.pairs import LIFETIME_S, PairEnd, UdpFlow

_UNASKED = bytes(8)
_MOST_TOLD = 8
"""Pairs told in answer to one hello; the next hello brings more."""


def tell_rates() -> TokenBuckets:
    """How often one end that is waited for is told, however often it is asked for."""
    return TokenBuckets(RELAY_TELLS_PER_S.most, RELAY_TELLS.most, most=RELAY_TOLD_ENDS.most)


class UnaskedPairs:
    """Tells nodes, with no question of theirs, of pairs that others have asked for."""

    def __init__(self, courier: PeerSocket, tell: Tell) -> None:
        self.places: dict[str, UdpFlow] = {}
        """Where a node said hello from, by uid."""
        self._courier = courier
        self._tell = tell
        self._rate = tell_rates()
        self._serial = int.from_bytes(os.urandom(3))
        self._told_s: dict[int, float] = {}
        """When a node was told of its end last, by the end's port."""

    def tell_some(self, ends: Iterable[PairEnd]) -> None:
        """One node's: those first that it was told of longest ago."""
        longest_ago = sorted(ends, key=lambda end: self._told_s.get(end.port, -math.inf))
        for end in longest_ago[:_MOST_TOLD]:
            self.tell(end)

    def tell(self, end: PairEnd) -> None:
        """Tells NodeAwaited too. A node that has never said hello is told when it does."""
        if not self._rate.take(end.port, time.monotonic()):
            return
        self._tell(NodeAwaited(end.uid, end.peer))
        place = self.places.get(end.uid)
        if place is None:
            return
        self._told_s[end.port] = time.monotonic()
        self._serial = (self._serial + 1) % (1 << 32)
        pair = Pair(_UNASKED, end.peer, end.port, lifetime_s=LIFETIME_S, serial=self._serial)
        self._courier.send(
            BodyKind.RELAY_PAIR,
            encode(pair),
            to_uid=end.uid,
            address=place.remote[0],
            port=place.remote[1],
            by_tunnel=True,
            source=place.local,
        )
