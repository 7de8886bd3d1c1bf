"""How often each node may have something written: one that floods wears out the disk of all."""

from __future__ import annotations

from limpet.base.rate_limit import TokenBuckets
from limpet.cluster.api import Code
from limpet.controller.state.refusal import RefusedError

AFTER_S = 1.0
"""When a node that was too quick asks again: what is new until then is told at once."""
_MOST_NODES = 65_536


class WriteRate:
    """Of one kind of request, for each node by itself; of time that is passed in."""

    def __init__(self, what: str, *, per_s: float, burst: int) -> None:
        """`what` is told, for a person: "presences"."""
        self._what = what
        self._per_s = per_s
        self._burst = burst
        self._buckets = TokenBuckets(per_s, burst, most=_MOST_NODES)

    def take(self, uid: str, now_s: float) -> None:
        """Raises: RefusedError; nothing is lost by it, since a node tells its newest then."""
        if not self._buckets.take(uid, now_s):
            raise RefusedError(
                Code.TRY_AGAIN,
                f"{self._what} come too often: {self._per_s:g} a second of one node are taken, and "
                f"{self._burst} at once (do its links or its NAT flap? its log says what changes)",
                after_s=AFTER_S,
            )
