"""plan_tunnel: the peers of the node's encrypted tunnel and their settings. Pure.

Every peer that this node may talk to and that tells a tunnel's port is a peer of the device, on
whatever rung it is: changing to the tunnel then takes a route and nothing else, and what the peer
sends through it is let in while this end still sends by another rung. A silent peer costs nothing.
Its key is that of its grant, converted. The prefixes that it may send from are those of the overlay
(`Admitted`), the same on every rung.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from ipaddress import ip_interface

from limpet.base.addresses import InterfaceAddress
from limpet.base.layered_map import alter, differing
from limpet.base.ownership import TUNNEL_IFNAME
from limpet.base.settings import KEEPALIVE_S, NAT_TIMEOUT_S
from limpet.cluster.kinds.network import TunnelBackend
from limpet.cluster.nodes import NodeEntry, newest_grant
from limpet.cluster.topology.reach import backend_between, backends_of, in_clear_refused
from limpet.cluster.topology.transports import MIN_MTU_BYTES
from limpet.cluster.topology.tunnel_end import (
    TunnelEnd,
    endpoint_problem,
    tunnel_device_mtu_bytes,
    tunnel_end_of,
)
from limpet.cluster.topology.view import View
from limpet.datapath.admitted import Admitted
from limpet.datapath.tunnel.key import tunnel_public_key
from limpet.datapath.tunnel.state import (
    Claim,
    TunnelDevice,
    TunnelKey,
    TunnelPeer,
    TunnelPlan,
    TunnelState,
)

_NO_END = TunnelEnd()


@dataclass(frozen=True, slots=True)
class TunnelView:
    """All that the plan is made of."""

    view: View
    admitted: Mapping[str, Admitted]
    """By the peer's uid, planned from the same view."""
    ends: Mapping[str, TunnelEnd]
    """By the peer's uid; absent: the path to it is not by a tunnel."""
    key: TunnelKey
    ifname: str = TUNNEL_IFNAME
    backend: TunnelBackend = TunnelBackend.WIREGUARD
    """The one that makes this tunnel; a pair of nodes has one backend."""

    def same_node(self, other: TunnelView) -> bool:
        """Whether all but the peers is the same."""
        return (self.key, self.ifname, self.backend) == (
            other.key,
            other.ifname,
            other.backend,
        ) and self.view.same_node(other.view)

    @property
    def wanted(self) -> bool:
        """Whether there is to be a device."""
        view = self.view
        return (
            view.network is not None
            and view.grant is not None
            and self.backend in backends_of(view.network)
        )


def plan_tunnel(view: TunnelView) -> TunnelPlan:
    """What should be: the device and its peers. A node without a grant has no tunnel, nor one of a
    backend that the cluster does not name."""
    if not view.wanted:
        return TunnelPlan()
    mtu_bytes = tunnel_device_mtu_bytes(view.view.own.link_mtu_bytes)
    device = TunnelDevice(view.ifname, mtu_bytes, view.key.private_key, view.key.port)
    wishes = {
        uid: peer
        for uid in view.view.snapshot.nodes
        if uid != view.view.uid and (peer := plan_tunnel_peer(view, uid)) is not None
    }
    return _assemble(view.view.snapshot.nodes, device, _addresses(view, device), wishes)


def _addresses(view: TunnelView, device: TunnelDevice) -> frozenset[InterfaceAddress]:
    """Addresses of the device: network addresses, as flannel's, which no packet ever has.

    Where reverse paths are looked at, also loosely, a link without an address takes in nothing
    that would leave by another. Source: __fib_validate_source in net/ipv4/fib_frontend.c.
    """
    return frozenset(
        ip_interface(gateway - 1)
        for version, gateway in view.view.sources.items()
        if device.mtu_bytes >= MIN_MTU_BYTES[version]
    )


def plan_tunnel_peer(view: TunnelView, uid: str) -> TunnelPeer | None:
    """What the peer should have on the device; None: it has no tunnel, or another backend's.

    Without an endpoint it is for the peer to begin.
    """
    entry = view.view.snapshot.nodes[uid]
    admitted = view.admitted.get(uid)
    if admitted is None or not admitted.sources or not is_by(view.view, uid, view.backend):
        return None
    if entry.presence is None or not entry.presence.tunnel_port:
        return None
    key = tunnel_public_key(entry.grant.public_key)
    if not any(key) or key == view.key.public_key:
        return None
    end = view.ends.get(uid, _NO_END)
    cidrs = view.view.network.pod_cidrs if view.view.network is not None else ()
    endpoint = end.endpoint
    if endpoint_problem(endpoint, (*cidrs, *entry.grant.segments)):
        endpoint = None
    keepalive_s = 0
    if end.behind_nat and endpoint is not None:
        keepalive_s = KEEPALIVE_S * view.view.own.nat_timeout_s // NAT_TIMEOUT_S
    return TunnelPeer(key, frozenset(admitted.sources), endpoint, keepalive_s)


def is_by(view: View, uid: str, backend: TunnelBackend) -> bool:
    """Whether that backend makes the tunnel to the peer."""
    if view.network is None or view.grant is None:
        return False
    return backend_between(view.network, view.grant, view.snapshot.nodes[uid].grant) is backend


def tunnel_ends(
    view: View, before: tuple[View, Mapping[str, TunnelEnd]] | None = None
) -> Mapping[str, TunnelEnd]:
    """Ends of the peers' tunnels according to their paths, by uid; absent: nothing is known.

    `before`: an older view and its ends; what cannot have changed is taken from there.
    """
    nodes = view.snapshot.nodes
    if before is None or before[0].own != view.own:
        uids: Iterable[str] = view.paths
        known: Mapping[str, TunnelEnd] = {}
    else:
        old, known = before
        uids = differing(old.paths, view.paths) | differing(old.snapshot.nodes, nodes)
    changed: dict[str, TunnelEnd | None] = {}
    for uid in uids:
        end = tunnel_end_of(view.paths.get(uid), nodes[uid], view.own) if uid in nodes else _NO_END
        if end != known.get(uid, _NO_END):
            changed[uid] = None if end == _NO_END else end
    return alter(known, changed) if changed else known


def tunnel_is_needed(
    view: View,
    admitted: Mapping[str, Admitted],
    backend: TunnelBackend = TunnelBackend.WIREGUARD,
    *,
    needless: tuple[View, Mapping[str, Admitted]] | None = None,
) -> bool:
    """Whether some peer may come, or be sent to, by the tunnel of that backend.

    A peer that is not reached yet and tells an address of one of this node's subnets will be
    reached in clear, most likely. `needless`: an older view for which none was needed, and who was
    admitted then; only what has changed since is looked at.
    """
    if view.network is None or view.grant is None:
        return False
    uids: Iterable[str] = admitted
    if needless is not None and needless[0].same_node(view):
        old, known = needless
        uids = differing(old.snapshot.nodes, view.snapshot.nodes)
        uids |= differing(old.paths, view.paths) | differing(known, admitted)
    return any(
        is_by(view, uid, backend) and _may_come(view, uid)
        for uid in uids
        if uid in admitted and admitted[uid].sources
    )


def _may_come(view: View, uid: str) -> bool:
    presence = view.snapshot.nodes[uid].presence
    if presence is None or not presence.tunnel_port:
        return False
    path = view.paths.get(uid)
    if path is not None:
        return path.rung.encrypted
    if view.network is not None and in_clear_refused(view.network):
        return True
    return not any(
        address.version == prefix.version and address in prefix
        for address in presence.addresses
        for prefix in view.own.link_prefixes
    )


def replan_tunnel(
    plan: TunnelPlan, before: TunnelView, after: TunnelView
) -> tuple[TunnelPlan, frozenset[bytes] | None]:
    """The plan for `after`, derived from the one for `before`, and the keys of peers that may
    differ; None: anything may."""
    if not after.wanted or not before.same_node(after):
        return plan_tunnel(after), None
    nodes = after.view.snapshot.nodes
    changed = {
        uid: plan_tunnel_peer(after, uid) if uid in nodes else None
        for uid in _changed_peers(before, after)
    }
    return _replace_wishes(nodes, plan, changed)


def _changed_peers(before: TunnelView, after: TunnelView) -> list[str]:
    """Uids of peers about which something has changed."""
    known, nodes = before.view.snapshot.nodes, after.view.snapshot.nodes
    others = differing(known, nodes)
    others |= differing(before.admitted, after.admitted) | differing(before.ends, after.ends)
    return [
        uid
        for uid in sorted(uid for uid in others - {after.view.uid} if uid in known or uid in nodes)
        # Another object may say the same.
        if (known.get(uid), before.admitted.get(uid), before.ends.get(uid))
        != (nodes.get(uid), after.admitted.get(uid), after.ends.get(uid))
    ]


def _replace_wishes(
    nodes: Mapping[str, NodeEntry], plan: TunnelPlan, changed: Mapping[str, TunnelPeer | None]
) -> tuple[TunnelPlan, frozenset[bytes] | None]:
    """The plan with other wishes for some peers (None: without them), and what that touches."""
    wishes = alter(plan.wishes, changed)
    claims_before = _claims(plan.wishes.get(uid) for uid in changed)
    claims_after = _claims(changed.values())
    if (
        not plan.contested.isdisjoint((*claims_before, *claims_after))
        or len(claims_after) != len(set(claims_after))
        or any(plan.holders.get(claim) not in (None, *changed) for claim in claims_after)
    ):
        # Whose a key or a prefix is can change for peers that have not changed themselves.
        return _assemble(nodes, plan.state.device, plan.addresses, wishes), None
    touched = frozenset(each for each in (*claims_before, *claims_after) if isinstance(each, bytes))
    peers: dict[bytes, TunnelPeer | None] = dict.fromkeys(touched)
    holders: dict[Claim, str | None] = dict.fromkeys(claims_before)
    for uid, new in changed.items():
        if new is not None:
            peers[new.public_key] = new
            holders |= dict.fromkeys(_claims([new]), uid)
    state = TunnelState(plan.state.device, alter(plan.state.peers, peers))
    held = alter(plan.holders, holders)
    return TunnelPlan(state, wishes, held, plan.contested, plan.addresses), touched


def _claims(wishes: Iterable[TunnelPeer | None]) -> list[Claim]:
    """The keys and the prefixes that are wished for."""
    peers = [peer for peer in wishes if peer is not None]
    return [claim for peer in peers for claim in (peer.public_key, *peer.allowed)]


def _assemble(
    nodes: Mapping[str, NodeEntry],
    device: TunnelDevice | None,
    addresses: frozenset[InterfaceAddress],
    wishes: Mapping[str, TunnelPeer],
) -> TunnelPlan:
    """All wishes together. What several claim is that one's whose grant the cluster has signed
    last, and nobody's where there is no last one: whose uid is lower says nothing."""
    holders: dict[Claim, str] = {}
    contested: dict[Claim, list[str]] = {}
    for uid, peer in wishes.items():
        for claim in _claims([peer]):
            if (first := holders.setdefault(claim, uid)) != uid:
                contested.setdefault(claim, [first]).append(uid)
    for claim, uids in contested.items():
        holders[claim] = newest_grant(nodes[uid].grant for uid in uids)
        if not holders[claim]:
            del holders[claim]
    peers: dict[bytes, TunnelPeer] = {}
    for uid, peer in wishes.items():
        if holders.get(peer.public_key) == uid:
            held = frozenset(each for each in peer.allowed if holders.get(each) == uid)
            peers[peer.public_key] = peer if held == peer.allowed else replace(peer, allowed=held)
    state = TunnelState(device, peers)
    return TunnelPlan(state, wishes, holders, frozenset(contested), addresses)
