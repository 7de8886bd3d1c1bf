"""plan_tunnel: which peers the node's encrypted tunnel should have, and what with. Pure.

Every peer that this node may talk to and that says a tunnel key is a peer of the one device, on
whatever rung it is just now: changing to the tunnel then takes a route and nothing else, and what
the peer sends through it is let in although this end still sends by another rung. A peer that is
silent costs nothing.

Which prefixes a peer may send from is what the plan of the network between nodes says of it
(`PeerPart.sources`): one answer for every rung.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from limpet.model.cluster import NodeEntry
from limpet.model.overlay import OverlayPlan, PeerPart
from limpet.model.tunnel import (
    KEEPALIVE_S,
    KEY_BYTES,
    TUNNEL_IFNAME,
    TUNNEL_OVERHEAD_BYTES,
    TUNNEL_PADDING_BYTES,
    Claim,
    Endpoint,
    TunnelDevice,
    TunnelEnd,
    TunnelKey,
    TunnelPart,
    TunnelPeer,
    TunnelPlan,
    TunnelState,
)
from limpet.plan.overlay import View

_NO_END = TunnelEnd()
_MAX_PORT = 65535


@dataclass(frozen=True, slots=True)
class TunnelView:
    """All that the plan is made of."""

    view: View
    parts: Mapping[str, PeerPart]
    """Of the plan of the network between nodes (`OverlayPlan.parts`), made of the same view."""
    ends: Mapping[str, TunnelEnd]
    """By the peer's uid; absent: nothing is known of the way to it."""
    key: TunnelKey
    ifname: str = TUNNEL_IFNAME

    def same_node(self, other: TunnelView) -> bool:
        """Whether all but the peers is the same."""
        return (self.key, self.ifname) == (other.key, other.ifname) and self.view.same_node(
            other.view
        )


def tunnel_view(
    view: View, overlay: OverlayPlan, ends: Mapping[str, TunnelEnd], key: TunnelKey
) -> TunnelView:
    return TunnelView(view, overlay.parts, ends, key)


def plan_tunnel(view: TunnelView) -> TunnelPlan:
    """What should be: the device, and for every peer what it adds. A node without a grant has no
    tunnel."""
    if view.view.network is None or view.view.grant is None:
        return TunnelPlan()
    uids = (uid for uid in view.view.snapshot.nodes if uid != view.view.uid)
    return _assemble(_device(view), {uid: plan_tunnel_peer(view, uid) for uid in uids})


def _device(view: TunnelView) -> TunnelDevice:
    mtu_bytes = view.view.own.link_mtu_bytes - min(TUNNEL_OVERHEAD_BYTES.values())
    return TunnelDevice(view.ifname, mtu_bytes, view.key.private_key, view.key.port)


def plan_tunnel_peer(view: TunnelView, uid: str) -> TunnelPart:
    """What the peer adds; nothing, and why, where it has no tunnel."""
    entry = view.view.snapshot.nodes[uid]
    part = view.parts.get(uid, PeerPart(refused="nothing is planned for it"))
    if not part.sources:
        return TunnelPart(refused=part.refused or "it has no prefix")
    key = entry.presence.tunnel_key if entry.presence is not None else b""
    if len(key) != KEY_BYTES or not any(key):
        return TunnelPart(refused="it has told no tunnel key")
    if key == view.key.public_key:
        return TunnelPart(refused="it tells this node's own tunnel key: one of the two is a clone")
    end = view.ends.get(uid, _NO_END)
    endpoint, refused = _endpoint(view, part, end)
    keepalive_s = KEEPALIVE_S if end.behind_nat and endpoint is not None else 0
    peer = TunnelPeer(key, frozenset(part.sources), endpoint, keepalive_s)
    return TunnelPart(peer, _mtu_bytes(view, entry, end), refused)


def _endpoint(view: TunnelView, part: PeerPart, end: TunnelEnd) -> tuple[Endpoint | None, str]:
    """Where the peer is tried first, or why it has to speak first."""
    if end.endpoint is None:
        return None, "no endpoint of it is known"
    address, port = end.endpoint
    if (
        address.is_unspecified
        or address.is_multicast
        or (address.version == 6 and address.is_link_local)
        or not 0 < port <= _MAX_PORT
    ):
        return None, f"{address} port {port} is no endpoint of a tunnel"
    cidrs = view.view.network.pod_cidrs if view.view.network is not None else ()
    for prefix in (*cidrs, *part.sources):
        if address.version == prefix.version and address in prefix:
            return None, f"its endpoint {address} is in {prefix}, which goes through the tunnel"
    return end.endpoint, ""


def _mtu_bytes(view: TunnelView, entry: NodeEntry, end: TunnelEnd) -> int:
    link_mtu_bytes = entry.presence.link_mtu_bytes if entry.presence is not None else 0
    version = end.endpoint[0].version if end.endpoint is not None else 6
    own = view.view.own.link_mtu_bytes
    return tunnel_mtu_bytes(
        min(end.mtu_bytes, link_mtu_bytes, own), version, device_mtu_bytes=_device(view).mtu_bytes
    )


def tunnel_mtu_bytes(underlay_mtu_bytes: int, version: int, *, device_mtu_bytes: int) -> int:
    """The largest inner packet that goes through an underlay of that IP version in one piece.

    Below the device's MTU a multiple of 16: what is less is padded to one.
    """
    room = underlay_mtu_bytes - TUNNEL_OVERHEAD_BYTES[version]
    if room >= device_mtu_bytes:
        return device_mtu_bytes
    return max(room - room % TUNNEL_PADDING_BYTES, 0)


def replan_tunnel(
    plan: TunnelPlan, before: TunnelView, after: TunnelView
) -> tuple[TunnelPlan, frozenset[bytes] | None]:
    """The plan for `after`, made of that for `before`, and the keys of peers that may differ; None:
    anything may."""
    if after.view.network is None or after.view.grant is None or not before.same_node(after):
        return plan_tunnel(after), None
    nodes = after.view.snapshot.nodes
    changed = {
        uid: plan_tunnel_peer(after, uid) if uid in nodes else None
        for uid in _changed_peers(before, after)
    }
    return _replace_parts(plan, changed)


def _changed_peers(before: TunnelView, after: TunnelView) -> list[str]:
    """Peers of which something is known differently."""
    known, nodes = before.view.snapshot.nodes, after.view.snapshot.nodes
    same_parts, same_ends = before.parts is after.parts, before.ends is after.ends
    changed = []
    for uid, entry in nodes.items():
        old = known.get(uid)
        # By identity first: nearly all are the very same, and comparing values takes its time.
        same = old is entry or old == entry
        if same and not same_parts:
            was, now = before.parts.get(uid), after.parts.get(uid)
            same = was is now or was == now
        if same and not same_ends:
            same = before.ends.get(uid) == after.ends.get(uid)
        if not same and uid != after.view.uid:
            changed.append(uid)
    return [*changed, *(known.keys() - nodes.keys())]


def _replace_parts(
    plan: TunnelPlan, changed: Mapping[str, TunnelPart | None]
) -> tuple[TunnelPlan, frozenset[bytes] | None]:
    """The plan with other parts for some peers (None: without them), and what that touches."""
    parts = dict(plan.parts)
    old = [parts.pop(uid, None) for uid in changed]
    parts |= {uid: part for uid, part in changed.items() if part is not None}
    claims_before, claims_after = _claims(old), _claims(changed.values())
    if (
        not plan.contested.isdisjoint(claims_before)
        or len(claims_after) != len(set(claims_after))
        or any(plan.holders.get(claim) not in (None, *changed) for claim in claims_after)
    ):
        # Whose a key or a prefix is can change for peers that have not changed themselves.
        return _assemble(plan.state.device, parts), None
    peers, holders = dict(plan.state.peers), dict(plan.holders)
    for part in old:
        if part is not None and part.peer is not None:
            del peers[part.peer.public_key]
    for claim in claims_before:
        del holders[claim]
    for uid, new in changed.items():
        if new is not None and new.peer is not None:
            peers[new.peer.public_key] = new.peer
            holders |= dict.fromkeys(_claims([new]), uid)
    touched = frozenset(each for each in (*claims_before, *claims_after) if isinstance(each, bytes))
    state = TunnelState(plan.state.device, peers)
    return TunnelPlan(state, parts, holders, plan.contested), touched


def _claims(parts: Iterable[TunnelPart | None]) -> list[Claim]:
    """The keys and the prefixes that the parts want for their peers."""
    peers = [part.peer for part in parts if part is not None and part.peer is not None]
    return [claim for peer in peers for claim in (peer.public_key, *peer.allowed)]


def _assemble(device: TunnelDevice | None, parts: Mapping[str, TunnelPart]) -> TunnelPlan:
    """The union of the parts; what several want goes to the lowest uid."""
    peers: dict[bytes, TunnelPeer] = {}
    holders: dict[Claim, str] = {}
    contested: set[Claim] = set()
    for uid in sorted(parts):
        peer = parts[uid].peer
        if peer is None:
            continue
        if holders.setdefault(peer.public_key, uid) != uid:
            contested.update(_claims([parts[uid]]))
            continue
        lost = {each for each in peer.allowed if holders.setdefault(each, uid) != uid}
        contested |= lost
        peers[peer.public_key] = replace(peer, allowed=peer.allowed - lost) if lost else peer
    return TunnelPlan(TunnelState(device, peers), parts, holders, frozenset(contested))
