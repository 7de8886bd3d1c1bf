"""Watches the tunnels' traffic: which peers are active, do not answer, have a wrong endpoint, or
have begun to talk to this node at the moment when it did to them.

Once a second the packet counters of each device are read, and its peers only if these have changed,
for at most a fiftieth of the time: a tunnel without traffic costs nothing, however many peers it
has. While all packets are those that agents say, peers are read every ten seconds only.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import structlog

from limpet.base.addresses import Endpoint
from limpet.base.errors import KernelError
from limpet.base.timer import Timer
from limpet.cluster.exchange.inner_traffic import InnerPackets, InnerTraffic
from limpet.cluster.kinds.network import TunnelBackend
from limpet.datapath.event import ActivePeersChanged, PeerUnanswered, Tell
from limpet.datapath.tunnel.part import TunnelPart
from limpet.datapath.tunnel.traffic.activity import ACTIVE_S, TunnelActivity
from limpet.datapath.tunnel.tunnel import Tunnel
from limpet.linux.netlink import link_codec
from limpet.linux.netlink.link_codec import parse_link_packets
from limpet.linux.netlink.socket import RouteSocket

_log = structlog.get_logger("tunnel")

_EVERY_S = 1.0
_MOVES_S = 10.0
"""IPsec leaves an old endpoint so long after a new one is planned."""
_REST = 50
"""The pause after a reading is this many times as long as the reading took."""


class TunnelWatch:
    """Runs on the event loop."""

    def __init__(self, route: RouteSocket, tunnels: TunnelPart, tell: Tell) -> None:
        """Tells ActivePeersChanged and PeerUnanswered."""
        self.active: frozenset[str] = frozenset()
        """Uids of peers with packets of pods in the last ten seconds."""
        self._tell = tell
        self._route = route
        self._tunnels = tunnels
        self.inner = InnerTraffic()
        """Packets that this node's agent exchanges with others through tunnels."""
        self._eyes: tuple[_Eye, ...] = ()
        """One on each tunnel."""
        self._alarm = Timer("tunnel watch", self._tick)

    def start(self) -> None:
        self._alarm.set_in(_EVERY_S)

    def stop(self) -> None:
        self._alarm.stop()

    def active_by(self, tunnel: Tunnel) -> int:
        """Peers with traffic by that tunnel."""
        return sum(tunnel.may_talk(uid) for uid in self.active)

    def _tick(self) -> None:
        self.start()
        for tunnel in self._tunnels.all:
            tunnel.look_at_program()
        try:
            self.look(time.monotonic())
        except KernelError as error:  # a round sees to it
            _log.debug("the tunnel's traffic was not read", error=str(error))

    def look(self, now_s: float) -> None:
        """Tells what is new since the last look. Raises: KernelError."""
        known = {id(eye.tunnel): eye for eye in self._eyes}
        self._eyes = tuple(
            known.get(id(tunnel)) or _Eye(self._route, tunnel) for tunnel in self._tunnels.all
        )
        said = self.inner.take()
        for eye in self._eyes:
            for uid, endpoint in eye.look(now_s, said):
                self._tell(PeerUnanswered(uid, endpoint))
        active = frozenset[str]().union(*(eye.active(now_s) for eye in self._eyes))
        if active != self.active:
            self.active = active
            self._tell(ActivePeersChanged(active))


class _Eye:
    """On one tunnel."""

    def __init__(self, route: RouteSocket, tunnel: Tunnel) -> None:
        self.tunnel = tunnel
        self._route = route
        self._activity = self._made()
        self._ifindex = 0
        self._packets = (0, 0)
        """At the last reading of its peers, received and sent."""
        self._said: dict[bytes, InnerPackets] = {}
        """Through the tunnel by agents, since then."""
        self._rests_until_s = self._read_at_s = float("-inf")

    @property
    def _is_ipsec(self) -> bool:
        return self.tunnel.backend is TunnelBackend.IPSEC

    def _made(self) -> TunnelActivity:
        return TunnelActivity(astray_after_s=_MOVES_S if self._is_ipsec else 0.0)

    def active(self, now_s: float) -> frozenset[str]:
        return self.tunnel.planner.uids(self._activity.active(now_s))

    def _has_traffic(self, packets: tuple[int, int], now_s: float) -> bool:
        """Whether peers have to be read: also every ten seconds when only agents have said
        something, as that shows a broken tunnel."""
        if packets == self._packets:
            return False
        received = sum(len(each.received) for each in self._said.values())
        sent = sum(len(each.sent) for each in self._said.values())
        before = self._packets
        if packets != (before[0] + received, before[1] + sent):
            return True
        return now_s >= self._read_at_s + ACTIVE_S

    def look(self, now_s: float, said: Mapping[str, InnerPackets]) -> list[tuple[str, Endpoint]]:
        """Uids and endpoints of peers that do not answer. `said`: by agents, by uid.

        Raises: KernelError.
        """
        if not self.tunnel.up:
            return []
        for uid, inner in said.items():
            key = self.tunnel.planner.key_of(uid)
            if key is not None:
                known = self._said.setdefault(key, InnerPackets())
                known.received += inner.received
                known.sent += inner.sent
        message = self._route.query(link_codec.get_link(self.tunnel.ifname, counters=True))
        ifindex, packets = link_codec.parse_link(message).ifindex, parse_link_packets(message)
        if ifindex != self._ifindex:
            found_at_start = not self._ifindex and not self.tunnel.made
            self._ifindex, self._packets, self._activity = ifindex, (0, 0), self._made()
            if found_at_start:
                self._packets = packets
                self._activity.begin(self.tunnel.readings(), now_s)
                return []
        if now_s < self._rests_until_s or (
            not self._activity.waits and not self._has_traffic(packets, now_s)
        ):
            return []
        started_s = time.monotonic()
        readings = self.tunnel.readings()
        self._activity.take(readings, now_s, self._said)
        self._packets, self._said, self._read_at_s = packets, {}, now_s
        self._rests_until_s = now_s + _REST * (time.monotonic() - started_s)
        planned = self.tunnel.planner.endpoints(self._activity.active(now_s))
        astray = self._activity.astray(readings, planned)
        if astray:
            self.tunnel.set_endpoints_again(astray)
        if self._is_ipsec:
            return []  # IKE finds and resets a silent peer by itself
        crossed = self._activity.crossed(now_s, own_key=self.tunnel.key.public_key)
        if crossed:
            self.tunnel.call_again(crossed)
        return [
            (uid, endpoint)
            for key, endpoint in self.tunnel.planner.endpoints(self._activity.unanswered(now_s))
            for uid in self.tunnel.planner.uids([key])
        ]
