"""What the controller will not do, and why."""

from __future__ import annotations

from limpet.base.errors import LimpetError
from limpet.base.rate_limit import TokenBuckets
from limpet.cluster.api import Code, Refused
from limpet.cluster.documents import Sealed

AFTER_S = 1.0
"""When a node that was too quick asks again: what is new until then is told at once."""
_MOST_NODES = 65_536


class RefusedError(LimpetError):
    """Carries what the one who asked is told."""

    def __init__(
        self,
        code: Code,
        error: str,
        *,
        above: int | None = None,
        version: int | None = None,
        document: Sealed | None = None,
        after_s: float | None = None,
    ) -> None:
        super().__init__(error)
        self.refused = Refused(code, error, above, version, document, after_s=after_s)


class WriteRate:
    """Bounds how often each node may have something written: a flood wears out the disk of all."""

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
