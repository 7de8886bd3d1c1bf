"""Peers that send to this node through tunnels only: nothing of theirs is let in in clear. Pure.

A peer turns to a way in clear only after this node has answered it there. So it is enough to answer
only whom the kernel lets in already: a peer that asks is let in first, and answered then; until
then it goes on through the tunnel, and nothing is lost.
"""

from __future__ import annotations

import math

from limpet.cluster.topology.paths import PeerPath

UNANSWERED_S = 30.0
"""Without an answer in clear for so long, what a peer says of its way is of later than the last."""


class TunnelOnly:
    """Peers of one node that send through tunnels only, time passed in."""

    def __init__(self) -> None:
        self.uids: frozenset[str] = frozenset()
        self._waiting: set[str] = set()
        """Uids that will be among them with the next `seal`."""
        self._asked_s: dict[str, float] = {}

    def told(self, uid: str, way: PeerPath | None, now_s: float) -> None:
        """The peer has said by which way it sends to us."""
        tunnelled = way is not None and way.rung.encrypted
        if tunnelled and self._asked_s.get(uid, -math.inf) + UNANSWERED_S <= now_s:
            if uid not in self.uids:
                self._waiting.add(uid)
        else:
            self._waiting.discard(uid)

    def asked(self, uid: str, now_s: float) -> bool:
        """The peer asks in clear; whether `uids` are others by that."""
        self._asked_s[uid] = now_s
        self._waiting.discard(uid)
        if uid not in self.uids:
            return False
        self.uids -= {uid}
        return True

    def drop(self, uid: str) -> None:
        """It is no peer any more."""
        if uid in self.uids:
            self.uids -= {uid}
        self._waiting.discard(uid)
        self._asked_s.pop(uid, None)

    @property
    def waits(self) -> bool:
        """There is something to `seal`."""
        return bool(self._waiting)

    def seal(self) -> None:
        """Whoever was told of is among `uids` now: many at once, since each time costs a round."""
        self.uids |= self._waiting
        self._waiting.clear()
