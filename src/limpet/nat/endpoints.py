"""Endpoints of this node's tunnel that are told to the cluster. Pure, time passed in.

Each telling costs every peer something: news within half a second are told at once, those that come
on and on a few times a minute, and an endpoint that nothing confirms any more is kept for minutes.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from limpet.base.addresses import Endpoint
from limpet.base.bounds.members import ENDPOINTS_TOLD, ENDPOINTS_TOLD_PER_MINUTE
from limpet.base.bounds.servers import OWN_ENDPOINTS
from limpet.base.rate_limit import TokenBucket

KEPT_S = 300.0
"""An endpoint that nothing confirms stays for so long."""
DOUBTED_S = 10.0
"""The same after the network has changed, or where each destination sees another endpoint."""
GATHER_S = 0.5
"""From the first news until all of them are told."""


def endpoints_told_rate() -> TokenBucket:
    """How often endpoints are told that are others than before."""
    return TokenBucket(ENDPOINTS_TOLD_PER_MINUTE.most / 60, ENDPOINTS_TOLD.most)


class KnownEndpoints:
    def __init__(self, static: tuple[Endpoint, ...]) -> None:
        """`static`: configured endpoints, which always come first."""
        self.told: tuple[Endpoint, ...] = ()
        """Static, forwarded and mapped endpoints, of the mapped ones the newest first."""
        self._static = static
        self._forwarded: tuple[Endpoint, ...] = ()
        self._until: dict[Endpoint, float] = {}
        """When each mapped endpoint is dropped unless it is confirmed; the newest last."""
        self._tell_s = -math.inf
        """When the next telling is due; infinity: nothing is new."""
        self._rate = endpoints_told_rate()

    def set_forwarded(self, endpoints: tuple[Endpoint, ...], now_s: float) -> None:
        """Takes the endpoints that the gateway forwards to the tunnel's port on our request."""
        self._forwarded = endpoints
        self._note(now_s)

    def confirm(
        self, mapped: tuple[Endpoint, ...], now_s: float, *, symmetric: Collection[int] = ()
    ) -> None:
        """Takes all endpoints that the tunnel's packets are seen to come from now.

        `symmetric`: IP versions of which each destination sees another endpoint. One that was told
        before this was known leads nobody else here, and goes soon.
        """
        for endpoint, until_s in self._until.items():
            if endpoint[0].version in symmetric:
                self._until[endpoint] = min(until_s, now_s + DOUBTED_S)
        for endpoint in mapped:
            self._until[endpoint] = now_s + KEPT_S
        for endpoint in [e for e in self._until if e not in self.told and e not in mapped]:
            del self._until[endpoint]  # gone before anybody was told
        self._note(now_s)

    def doubt(self, now_s: float) -> None:
        """The network has changed: drops mapped endpoints soon unless they are confirmed."""
        for endpoint, until_s in self._until.items():
            self._until[endpoint] = min(until_s, now_s + DOUBTED_S)

    @property
    def wake_at_s(self) -> float:
        """When `tick` may return something (monotonic s)."""
        return min(self._tell_s, *self._until.values(), math.inf)

    def tick(self, now_s: float) -> tuple[Endpoint, ...] | None:
        """All endpoints, if they are to be told now; None: nothing new."""
        self._until = {e: until_s for e, until_s in self._until.items() if until_s > now_s}
        self._note(now_s)
        if self._tell_s > now_s:
            return None
        self._tell_s = math.inf
        wanted = self._wanted()
        if wanted == self.told:
            return None
        if not self._rate.take(now_s):  # by a rounding
            self._tell_s = now_s + GATHER_S
            return None
        self.told = wanted
        return wanted

    def _note(self, now_s: float) -> None:
        if self._wanted() == self.told:
            self._tell_s = math.inf
        elif self._tell_s == math.inf:
            self._tell_s = now_s + max(GATHER_S, self._rate.wait_s(now_s))

    def _wanted(self) -> tuple[Endpoint, ...]:
        newest_first = tuple(self._until)[::-1]
        wanted = dict.fromkeys((*self._static, *self._forwarded, *newest_first))
        return tuple(wanted)[: OWN_ENDPOINTS.most]
