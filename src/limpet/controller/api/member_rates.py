"""How often each node may ask, and how much it may have written: a flood wears out the disk of all,
and takes the processor from the others. Time passed in."""

from __future__ import annotations

from limpet.base.bounds import members
from limpet.base.bounds.bound import Bound
from limpet.base.rate_limit import TokenBuckets
from limpet.cluster.api import Code
from limpet.controller.registry.refusal import AFTER_S, RefusedError

_LONGEST_S = 60.0


class MemberRate:
    """So much at once, and so much a minute."""

    def __init__(self, what: str, at_once: Bound, per_minute: Bound, hint: str = "") -> None:
        """`what` is told, for a person: "presences"."""
        self._what = what
        self._at_once = at_once
        self._per_minute = per_minute
        self._hint = hint
        self._buckets = TokenBuckets(
            per_minute.most / 60, at_once.most, most=members.RATED_NODES.most
        )

    def take(self, uid: str, now_s: float, cost: int = 1) -> None:
        """Raises: RefusedError; nothing is lost by it, since a node tells its newest then."""
        cost = min(cost, self._at_once.most)
        if self._buckets.take(uid, now_s, cost):
            return
        wait_s = self._buckets.wait_s(uid, now_s, cost)
        raise RefusedError(
            Code.TRY_AGAIN,
            f"{self._what} come too often: {self._per_minute.most:,} {self._per_minute.unit} of "
            f"one node are taken, and {self._at_once.most:,} at once{self._hint}",
            after_s=min(max(wait_s, AFTER_S), _LONGEST_S),
        )


class MemberRates:
    """Rates of each thing that a node asks for."""

    def __init__(self) -> None:
        flaps = " (do its links or its NAT flap? its log says what changes)"
        self.requests = MemberRate(
            "requests", members.REQUESTS_AT_ONCE, members.REQUESTS_PER_MINUTE
        )
        self.documents = MemberRate(
            "documents", members.PUBLISHED_AT_ONCE, members.PUBLISHED_PER_MINUTE, flaps
        )
        self.reports = MemberRate(
            "reports of pods", members.REPORTS_AT_ONCE, members.REPORTS_PER_MINUTE
        )
        self.paths = MemberRate("reports of paths", members.PATHS_AT_ONCE, members.PATHS_PER_MINUTE)
        self.report_bytes = MemberRate(
            "changes of pods", members.REPORTED_BYTES_AT_ONCE, members.REPORTED_BYTES_PER_MINUTE
        )
        self.shown = MemberRate("shown documents", members.SHOWN_AT_ONCE, members.SHOWN_PER_MINUTE)
        self.watches = MemberRate("watches", members.WATCHES_AT_ONCE, members.WATCHES_PER_MINUTE)
