"""The plan of one tunnel, replanned from the last one where possible. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from limpet.base.addresses import Endpoint
from limpet.cluster.kinds.network import TunnelBackend
from limpet.cluster.topology.tunnel_end import TunnelEnd
from limpet.cluster.topology.view import View
from limpet.datapath.admitted import Admitted
from limpet.datapath.tunnel.plan import (
    TunnelView,
    plan_tunnel,
    replan_tunnel,
    tunnel_ends,
    tunnel_is_needed,
)
from limpet.datapath.tunnel.state import TunnelKey, TunnelPlan, TunnelState


class TunnelPlanner:
    """The plan for the device of one backend."""

    def __init__(self, key: TunnelKey, ifname: str, backend: TunnelBackend) -> None:
        self.key = key
        self.ifname = ifname
        self.backend = backend
        self.plan = TunnelPlan()
        self.want = TunnelState()
        """The plan's state as this backend takes it."""
        self.is_relied_on = False
        """The next plan may be made of this one."""
        self._view: TunnelView | None = None
        self._ends: tuple[View, Mapping[str, TunnelEnd]] | None = None
        self._needless: tuple[View, Mapping[str, Admitted]] | None = None
        """The last view for which no tunnel was needed, and who was admitted then."""

    def is_needed(self, view: View, admitted: Mapping[str, Admitted]) -> bool:
        """Whether some peer may come, or be sent to, by the tunnel."""
        found = tunnel_is_needed(view, admitted, self.backend, needless=self._needless)
        self._needless = None if found else (view, admitted)
        return found

    def replan(self, view: View, admitted: Mapping[str, Admitted]) -> frozenset[bytes] | None:
        """Keys of peers that may differ; None: any may, and the device's addresses."""
        ends = tunnel_ends(view, self._ends)
        seen = TunnelView(view, admitted, ends, self.key, self.ifname, self.backend)
        touched: frozenset[bytes] | None
        if self._view is not None and self.is_relied_on:
            self.plan, touched = replan_tunnel(self.plan, self._view, seen)
        else:
            self.plan, touched = plan_tunnel(seen), None
        self._ends, self._view, self.is_relied_on = (view, ends), seen, True
        self.want = self._wanted_state(view)
        return touched

    def _wanted_state(self, view: View) -> TunnelState:
        if self.backend is not TunnelBackend.IPSEC or view.grant is None:
            return self.plan.state
        # Most clusters name no IPsec: their agents do without its modules.
        from limpet.datapath.tunnel.ipsec.plan import ipsec_state

        versions = {prefix.version for prefix in view.grant.segments}
        return ipsec_state(self.plan.state, versions)

    def identity_key_of(self, key: bytes) -> bytes:
        """Identity's key of the peer that has this tunnel key; it is one of the last plan's."""
        assert self._view is not None
        return self._view.view.snapshot.nodes[self.plan.holders[key]].grant.public_key

    def uids(self, keys: Iterable[bytes]) -> frozenset[str]:
        """Uids of the peers with these keys."""
        holders = self.plan.holders
        return frozenset(holders[key] for key in keys if key in holders)

    def endpoints(self, keys: Iterable[bytes]) -> list[tuple[bytes, Endpoint]]:
        """Planned endpoints of the peers with these keys, as far as there are any."""
        peers = self.want.peers
        return [
            (key, endpoint)
            for key in keys
            if key in peers and (endpoint := peers[key].endpoint) is not None
        ]

    def key_of(self, uid: str) -> bytes | None:
        """None: it is no peer of the tunnel."""
        peer = self.plan.wishes.get(uid)
        return peer.public_key if peer is not None else None
