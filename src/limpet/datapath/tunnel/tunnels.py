"""All encrypted tunnels of a node: WireGuard's, and IPsec's where the cluster names it.

Each has a device of its own; which one makes the tunnel to a peer is told by
`cluster.topology.backends`. They have one visible UDP port between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from limpet.base.addresses import Endpoint
from limpet.base.errors import KernelError, LimpetError
from limpet.cluster.identity import Identity
from limpet.cluster.kinds.network import Network, TunnelBackend
from limpet.cluster.topology.backends import backends_of
from limpet.cluster.topology.view import View
from limpet.datapath.admitted import Admitted
from limpet.datapath.tunnel.reconciler import TunnelReconciler, TunnelRound
from limpet.datapath.tunnel.setup import (
    TunnelSetup,
    ipsec_is_left,
    make_ipsec_tunnel,
    make_wireguard_tunnel,
)
from limpet.datapath.tunnel.state import PeerReading
from limpet.linux.netlink import codec as wire
from limpet.linux.netlink.socket import RouteSocket


class Tunnels:
    """Runs on the event loop, in the network namespace of the calling thread."""

    def __init__(
        self,
        route: RouteSocket,
        identity: Identity,
        setup: TunnelSetup,
        *,
        wake: Callable[[str], None],
    ) -> None:
        """`wake`: a round is needed soon."""
        self._route = route
        self._identity = identity
        self._setup = setup
        self._wake = wake
        self.wireguard = make_wireguard_tunnel(route, identity, setup, wake=wake)
        self.wireguard.others_need_rules = lambda: _has_device(self.ipsec)
        self.ipsec: TunnelReconciler | None = None
        """None: the cluster names no IPsec, and nothing of it is left."""
        self._failure = ""
        """Why there is no IPsec although the cluster names it."""
        self._named = backends_of(None)
        self._shares_port = False
        """IPsec's daemon leaves the port to WireGuard."""
        self.key = self.wireguard.key

    @property
    def all(self) -> tuple[TunnelReconciler, ...]:
        return (self.wireguard,) if self.ipsec is None else (self.wireguard, self.ipsec)

    def begin(self, network: Network | None) -> None:
        """What there can be, and what there is already. Raises: KernelError."""
        self.follow(network)
        self.wireguard.begin()
        if self.ipsec is None and ipsec_is_left(self._route, self._setup):
            self._make_ipsec()

    def close(self) -> None:
        """The devices stay."""
        for tunnel in self.all:
            tunnel.close()

    @property
    def device(self) -> str:
        """Of some tunnel that the node can have; empty: it can have none."""
        return next((each.device for each in self.all if each.device), "")

    @property
    def ipsec_device(self) -> str:
        return self.ipsec.device if self.ipsec is not None else ""

    @property
    def down(self) -> frozenset[str]:
        """Devices by which no peer may be routed to now."""
        return frozenset(each.ifname for each in self.all if not each.up)

    # What it is told

    def look_at_everything(self) -> None:
        """The next round takes nothing for granted."""
        for tunnel in self.all:
            tunnel.look_at_everything()

    def hear(self, message: wire.Message | None) -> bool:
        """Takes a notification; True: by it something is not as planned, and a round is needed."""
        heard = [tunnel.hear(message) for tunnel in self.all]
        return any(heard)

    def take_anew(self, uid: str, endpoint: Endpoint) -> None:
        """What was heard of the peer is forgotten, and it is called where it is now."""
        for tunnel in self.all:
            tunnel.take_anew(uid, endpoint)

    def may_talk(self, uid: str) -> bool:
        """Whether it is a peer of some tunnel."""
        return any(tunnel.may_talk(uid) for tunnel in self.all)

    # A round

    def follow(self, network: Network | None) -> None:
        """These are the backends that the cluster names now."""
        self._named = backends_of(network)
        shares_port = len(self._named) > 1
        if TunnelBackend.IPSEC in self._named and (
            self.ipsec is None or shares_port is not self._shares_port
        ):
            self._shares_port = shares_port
            self._make_ipsec()
        for tunnel in self.all:
            tunnel.wanted = tunnel.backend in self._named

    def round(self, view: View, admitted: Mapping[str, Admitted]) -> TunnelRound:
        """Plan, observe where that is due, diff, apply; `admitted` was planned from `view`.

        A failure is told, and keeps nobody from going on without a tunnel.
        """
        done = [tunnel.round(view, admitted) for tunnel in self._in_order()]
        self._forget_ipsec()
        return TunnelRound(
            sum(each.changes for each in done),
            (*filter(None, [self._failure]), *(why for each in done for why in each.failures)),
            any(each.made for each in done),
        )

    def _in_order(self) -> list[TunnelReconciler]:
        """Who has to leave the port to the other is first."""
        return sorted(
            self.all, key=lambda each: (each.wanted, each.backend is not TunnelBackend.IPSEC)
        )

    def _make_ipsec(self) -> None:
        """Anew, if there is one; what runs goes on until a round puts it right."""
        if self.ipsec is not None:
            self.ipsec.close()
            self.ipsec = None
        try:
            made = make_ipsec_tunnel(
                self._route,
                self._identity,
                self._setup,
                wake=self._wake,
                shares_port=self._shares_port,
            )
            made.begin()
        except LimpetError as error:
            self._failure = str(error)
            return
        made.others_need_rules = lambda: _has_device(self.wireguard)
        self.ipsec, self._failure = made, ""

    def _forget_ipsec(self) -> None:
        if self.ipsec is not None and not self.ipsec.wanted and self.ipsec.is_gone:
            self.ipsec.close()
            self.ipsec = None

    # What is read of them

    def uids(self, keys: Iterable[bytes]) -> frozenset[str]:
        """Of the peers with these keys."""
        return frozenset().union(*(tunnel.uids(keys) for tunnel in self.all))

    def readings_by_uid(self) -> Mapping[str, PeerReading]:
        """What the devices say of each peer; nothing where one says nothing."""
        found: dict[str, PeerReading] = {}
        for tunnel in self.all:
            try:
                readings = tunnel.readings()
            except KernelError:  # a round sees to it
                continue
            holders = tunnel.plan.holders
            found |= {holders[key]: each for key, each in readings.items() if key in holders}
        return found


def _has_device(tunnel: TunnelReconciler | None) -> bool:
    return tunnel is not None and tunnel.plan.state.device is not None
