"""Looks at the tunnel's traffic: who is active, who does not answer, whose endpoint went astray.

Once a second one netlink message is read, and peers only if that has told of packets, for at most
a fiftieth of the time: a tunnel without traffic costs nothing, however many peers it has.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import structlog

from limpet.agent.site_tunnel import SiteTunnel
from limpet.kernel.netlink import RouteSocket
from limpet.model.errors import KernelError
from limpet.model.tunnel import Endpoint
from limpet.plan.tunnel_activity import TunnelActivity
from limpet.wire import netlink as wire
from limpet.wire.link_traffic import parse_link_packets

_log = structlog.get_logger("tunnel")

_EVERY_S = 1.0
_REST = 50
"""So many times as long as a reading took nothing is read after it."""


class TunnelWatch:
    """Runs on the event loop."""

    def __init__(self, route: RouteSocket, tunnel: SiteTunnel) -> None:
        self.active: frozenset[str] = frozenset()
        """Uids of peers with packets of pods in the last ten seconds."""
        self.on_active: list[Callable[[frozenset[str]], None]] = []
        self.on_unanswered: list[Callable[[str, Endpoint], None]] = []
        """Called with a peer that handshakes are sent to in vain, and its endpoint."""
        self._route = route
        self._tunnel = tunnel
        self._activity = TunnelActivity()
        self._ifindex = 0
        self._packets = (0, 0)
        """Received and sent by the device at the last reading of its peers."""
        self._rests_until_s = float("-inf")
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_EVERY_S, self._tick)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        self.start()
        try:
            self.look(time.monotonic())
        except KernelError as error:  # a round sees to it
            _log.debug("the tunnel's traffic was not read", error=str(error))

    def look(self, now_s: float) -> None:
        """Tells what is new since the last look. Raises: KernelError."""
        if self._tunnel.up:
            self._look(now_s)
        active = self._tunnel.uids(self._activity.active(now_s))
        if active != self.active:
            self.active = active
            for listener in self.on_active:
                listener(active)

    def _look(self, now_s: float) -> None:
        message = self._route.query(wire.get_link(self._tunnel.ifname))
        ifindex, packets = wire.parse_link(message).ifindex, parse_link_packets(message)
        if ifindex != self._ifindex:
            found_at_start = not self._ifindex and not self._tunnel.made
            self._ifindex, self._packets, self._activity = ifindex, (0, 0), TunnelActivity()
            if found_at_start:
                self._packets = packets
                self._activity.begin(self._tunnel.readings(), now_s)
                return
        if now_s < self._rests_until_s or (packets == self._packets and not self._activity.waits):
            return
        started_s = time.monotonic()
        readings = self._tunnel.readings()
        self._activity.take(readings, now_s)
        self._packets = packets
        self._rests_until_s = now_s + _REST * (time.monotonic() - started_s)
        planned = self._tunnel.planned_endpoints(self._activity.active(now_s))
        astray = self._activity.astray(readings, planned)
        if astray:
            self._tunnel.set_endpoints_again(astray)
        for key, endpoint in self._tunnel.planned_endpoints(self._activity.unanswered(now_s)):
            for uid in self._tunnel.uids([key]):
                for told in self.on_unanswered:
                    told(uid, endpoint)
