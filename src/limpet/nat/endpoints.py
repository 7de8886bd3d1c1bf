"""Which endpoints of this node's tunnel others are told. Pure, time passed in.

Telling costs every peer: what comes together is told once, and what nothing confirms any more goes
only after minutes.
"""

from __future__ import annotations

import math

from limpet.base.addresses import Endpoint

MOST = 8
KEPT_S = 300.0
"""So long an endpoint stays that nothing confirms."""
DOUBTED_S = 10.0
"""The same after the network has changed."""
GATHER_S = 0.5
"""From the first news until all of them are told."""


class KnownEndpoints:
    def __init__(self, static: tuple[Endpoint, ...]) -> None:
        """`static`: those of the configuration, which always come first."""
        self.told: tuple[Endpoint, ...] = ()
        """Static ones, those that the gateway forwards, and mapped ones, the newest first."""
        self._static = static
        self._forwarded: tuple[Endpoint, ...] = ()
        self._until: dict[Endpoint, float] = {}
        """Of the mapped ones, the newest last: when each goes unless it is confirmed."""
        self._tell_s = -math.inf
        """When news are told; infinity: there are none."""

    def set_forwarded(self, endpoints: tuple[Endpoint, ...], now_s: float) -> None:
        """Those that the gateway leads to the tunnel's port on our request."""
        self._forwarded = endpoints
        self._note(now_s)

    def confirm(self, mapped: tuple[Endpoint, ...], now_s: float) -> None:
        """The tunnel's packets are seen to come from these, and from no others."""
        for endpoint in mapped:
            self._until[endpoint] = now_s + KEPT_S
        for endpoint in [e for e in self._until if e not in self.told and e not in mapped]:
            del self._until[endpoint]  # of no use, as was seen before anybody was told
        self._note(now_s)

    def doubt(self, now_s: float) -> None:
        """The network has changed: what is not confirmed again goes soon."""
        for endpoint, until_s in self._until.items():
            self._until[endpoint] = min(until_s, now_s + DOUBTED_S)

    @property
    def wake_at_s(self) -> float:
        """When `tick` may have something to tell."""
        return min(self._tell_s, *self._until.values(), math.inf)

    def tick(self, now_s: float) -> tuple[Endpoint, ...] | None:
        """What has to be told now, all there are; None: nothing new."""
        self._until = {e: until_s for e, until_s in self._until.items() if until_s > now_s}
        self._note(now_s)
        if self._tell_s > now_s:
            return None
        self._tell_s = math.inf
        wanted = self._wanted()
        if wanted == self.told:
            return None
        self.told = wanted
        return wanted

    def _note(self, now_s: float) -> None:
        if self._wanted() == self.told:
            self._tell_s = math.inf
        elif self._tell_s == math.inf:
            self._tell_s = now_s + GATHER_S

    def _wanted(self) -> tuple[Endpoint, ...]:
        newest_first = tuple(self._until)[::-1]
        return tuple(dict.fromkeys((*self._static, *self._forwarded, *newest_first)))[:MOST]
