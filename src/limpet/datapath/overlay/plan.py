"""plan_overlay: what a node's kernel should hold for the other nodes. Pure.

The plan is the union of what plan_peer says of each peer. A change of one peer replaces that peer's
part (`replan_overlay`) and gives what planning everything anew would give.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import collapse_addresses

from limpet.base.addresses import Address, Prefix, bounds_of, is_public
from limpet.base.ownership import BEHIND_METRIC, PEER_METRIC
from limpet.cluster.documents import (
    NodeEntry,
)
from limpet.cluster.topology import transports
from limpet.cluster.topology.paths import OwnSide, PeerPath
from limpet.cluster.topology.reach import in_clear_refused, may_talk, share_what_is_behind
from limpet.cluster.topology.transports import Transport
from limpet.cluster.topology.view import View, VxlanDevice, _first_of_each_version, changed_peers
from limpet.datapath.overlay.hop import HOP_PLANNERS, leads_into_itself
from limpet.datapath.overlay.parts import assemble, replace_parts
from limpet.datapath.overlay.state import (
    Neighbour,
    OverlayPlan,
    PeerPart,
    PeerRoute,
    Touched,
)

_OUTER_MOST = 16
"""Addresses of a peer that its packets may come from; it says them itself."""


def plan_peer(view: View, uid: str) -> PeerPart:
    """What the peer adds; nothing, and why, where it is not reached."""
    entry = view.snapshot.nodes[uid]
    grant = entry.grant
    if view.network is None or view.grant is None:
        return PeerPart(refused="this node has no grant")
    if grant.tombstone:
        return PeerPart(refused="it was removed from the cluster")
    if not may_talk(view.network, view.grant, grant):
        return PeerPart(refused="it shares no community with this node")
    segments, without = _free(view, view.segments.get(uid, ()))
    if not segments:
        lost = f" that is its own: {without[0][0]} {without[0][1]}" if without else ""
        return PeerPart(refused=f"it has no segment{lost}", without=tuple(without))
    behind, lost_behind = _free(view, grant.prefixes_behind) if grant.prefixes_behind else ([], [])
    if behind and share_what_is_behind(view.grant, grant):
        lost_behind += [
            (each, "the cloud has ways of its own between its nodes") for each in behind
        ]
        behind = []
    without += lost_behind
    path = view.paths.get(uid)
    in_clear = _may_send_in_clear(view, uid, path)
    let_in = PeerPart(
        sources=_collapsed([*segments, *behind]) if behind else tuple(segments),
        outer=_outer(view, entry, path) if in_clear else (),
        in_clear=in_clear,
        without=tuple(without),
    )
    if path is None:
        return _refused(let_in, "no path to it is proven")
    if not path.rung.encrypted and in_clear_refused(view.network):
        return _refused(let_in, "the cluster encrypts everything, and no tunnel to it is proven")
    return _reach(view, entry, segments, behind, path, let_in)


def _refused(let_in: PeerPart, reason: str) -> PeerPart:
    return PeerPart(
        sources=let_in.sources,
        outer=let_in.outer,
        in_clear=let_in.in_clear,
        without=let_in.without,
        refused=reason,
    )


def _may_send_in_clear(view: View, uid: str, path: PeerPath | None) -> bool:
    if view.network is None or in_clear_refused(view.network):
        return False
    return uid not in view.tunnel_only or path is None or not path.rung.encrypted


def _free(view: View, prefixes: Iterable[Prefix]) -> tuple[list[Prefix], list[tuple[Prefix, str]]]:
    """The prefixes that meet nothing of our own, and the others, each with what it meets."""
    free: list[Prefix] = []
    lost: list[tuple[Prefix, str]] = []
    for prefix in prefixes:
        first, last = bounds_of(prefix)
        for start, end, what in view.taken[prefix.version]:
            if first <= end and start <= last:
                lost.append((prefix, f"overlaps {what}"))
                break
        else:
            free.append(prefix)
    return free, lost


def _collapsed(prefixes: Iterable[Prefix]) -> tuple[Prefix, ...]:
    """Without those that lie in others: sets of intervals take none twice."""
    held = list(prefixes)
    return (
        *collapse_addresses(prefix for prefix in held if prefix.version == 4),
        *collapse_addresses(prefix for prefix in held if prefix.version == 6),
    )


def _outer(view: View, entry: NodeEntry, path: PeerPath | None) -> tuple[Address, ...]:
    """Every address that the peer may send from in clear: which one it takes is its routing's
    choice. An address that only tunnels lead to is none: whoever wrote it would be let in."""
    found: dict[Address, None] = {}
    if path is not None and path.underlay is not None:
        found[path.underlay] = None
    if entry.presence is not None:
        named = entry.presence.addresses[:_OUTER_MOST]
        found |= dict.fromkeys(each for each in named if _is_of_a_site(each, view.own))
    return tuple(
        address
        for address in found
        if not (address.is_loopback or address.is_unspecified or address.is_multicast)
    )


def _is_of_a_site(address: Address, own: OwnSide) -> bool:
    """On a subnet of ours, or both the address and one of ours in private networks."""
    subnets = [prefix for prefix in own.link_prefixes if prefix.version == address.version]
    if any(address in prefix for prefix in subnets):
        return True
    return not is_public(address) and any(
        not is_public(prefix.network_address) for prefix in subnets
    )


def _reach(
    view: View,
    entry: NodeEntry,
    segments: list[Prefix],
    behind: list[Prefix],
    path: PeerPath,
    let_in: PeerPart,
) -> PeerPart:
    plan_hops = HOP_PLANNERS[path.rung.part]
    hops = plan_hops(view, entry, path, _first_of_each_version(segments), let_in.sources)
    routes: list[PeerRoute] = []
    without = list(let_in.without)
    for prefixes, metric in ((segments, PEER_METRIC), (behind, BEHIND_METRIC)):
        for prefix in prefixes:
            hop = hops.get(prefix.version, f"it has no segment of IPv{prefix.version}")
            if isinstance(hop, str):
                without.append((prefix, hop))
            elif metric == BEHIND_METRIC and leads_into_itself(prefix, path):
                without.append((prefix, "the peer's own address on the underlay lies in it"))
            else:
                source = view.sources[prefix.version]
                routes.append(
                    PeerRoute(prefix, hop.device, hop.address, source, metric, hop.mtu_bytes)
                )
    if not routes:
        return _refused(let_in, without[-1][1])
    vxlans = [(hop, hop.vxlan) for hop in hops.values() if not isinstance(hop, str) and hop.vxlan]
    return PeerPart(
        tuple(routes),
        tuple(Neighbour(hop.device, hop.address, entry.mac) for hop, entry in vxlans),
        (vxlans[0][1],) if vxlans else (),
        let_in.sources,
        let_in.outer,
        let_in.in_clear,
        tuple(without),
    )


def transport_of(route: PeerRoute, path: PeerPath, devices: Mapping[str, VxlanDevice]) -> Transport:
    """What the route's packets go by: VXLAN too where the path has no next hop for them."""
    return transports.VXLAN if route.device in devices else path.rung


def plan_overlay(view: View) -> OverlayPlan:
    """What should be: the VXLAN devices, and for every peer what it adds."""
    if view.network is None or view.grant is None or not view.sources:
        return OverlayPlan()
    return assemble(
        {device.ifname: device for device in view.devices.values()},
        view.own.links | {each for each in (view.own.tunnel, view.own.ipsec) if each},
        {uid: plan_peer(view, uid) for uid in view.snapshot.nodes if uid != view.uid},
    )


def replan_overlay(
    plan: OverlayPlan, before: View, after: View
) -> tuple[OverlayPlan, Touched | None]:
    """The plan for `after`, made of that for `before`, and what may differ; None: anything."""
    if not after.sources or not before.same_node(after):
        return plan_overlay(after), None
    uids = changed_peers(before, after)
    return replace_parts(
        plan, {uid: plan_peer(after, uid) if uid in after.snapshot.nodes else None for uid in uids}
    )
