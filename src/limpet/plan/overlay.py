"""plan_overlay: what a node's kernel should hold for the other nodes. Pure.

The plan is the union of what plan_peer says of each peer. A change of one peer replaces that peer's
part (`replan_overlay`) and gives what planning everything anew would give.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import collapse_addresses, ip_interface

from limpet.model.altered import differing
from limpet.model.cluster import (
    DefaultCommunity,
    Encryption,
    Grant,
    Network,
    NodeEntry,
    Role,
    Snapshot,
)
from limpet.model.datapath import BEHIND_METRIC, PEER_METRIC, VXLAN_IFNAME_PREFIX
from limpet.model.network import Address, InterfaceAddress, Prefix, bounds_of, is_public
from limpet.model.overlay import (
    MIN_MTU_BYTES,
    TUNNELLED,
    VXLAN_OVERHEAD_BYTES,
    FdbEntry,
    Neighbour,
    OverlayPlan,
    OwnSide,
    PeerPart,
    PeerPath,
    PeerRoute,
    Touched,
    VxlanDevice,
)
from limpet.plan.merge import effective_segments
from limpet.plan.overlay_hop import Hop, leads_into_itself, plain_hop, tunnel_hop, vxlan_entry
from limpet.plan.overlay_parts import assemble, replace_parts

_OUTER_MOST = 16
"""Addresses of a peer that its packets may come from; it says them itself."""


def may_talk(network: Network, one: Grant, other: Grant) -> bool:
    """Whether the two may reach each other: the cloud always, the edge in a shared community.

    Nodes that are in no community share one if the network says so. A revoked node reaches nobody.
    """
    if one.tombstone or other.tombstone or one.uid == other.uid:
        return False
    if Role.CLOUD in one.roles or Role.CLOUD in other.roles:
        return True
    if one.communities or other.communities:
        return not set(one.communities).isdisjoint(other.communities)
    return network.default_community is DefaultCommunity.ALL


def share_what_is_behind(one: Grant, other: Grant) -> bool:
    """Whether one other network is behind both: the cloud's, with ways of its own between them."""
    behind_both = bool(one.prefixes_behind and other.prefixes_behind)
    return behind_both and Role.CLOUD in one.roles and Role.CLOUD in other.roles


def in_clear_refused(network: Network) -> bool:
    """Whether nothing goes between nodes, or is let in, without a tunnel."""
    return network.encryption is Encryption.ALL


@dataclass(frozen=True, slots=True)
class View:
    """All that a node's plan is made of: what it was given, and what follows for all peers."""

    snapshot: Snapshot
    uid: str
    paths: Mapping[str, PeerPath]
    """By the peer's uid; absent: no path."""
    own: OwnSide
    segments: Mapping[str, tuple[Prefix, ...]]
    """`effective_segments` of the snapshot."""
    network: Network | None
    grant: Grant | None
    """Ours; None: nobody has granted us anything, or it was revoked."""
    sources: Mapping[int, Address] = field(default_factory=dict)
    """Our overlay addresses by IP version: the gateway of our first segment."""
    devices: Mapping[int, VxlanDevice] = field(default_factory=dict)
    """By IP version of the underlay."""
    taken: Mapping[int, tuple[tuple[int, int, str], ...]] = field(default_factory=dict)
    """First and last address by IP version of what no peer may have, and what it is."""
    tunnel_only: frozenset[str] = frozenset()
    """Peers that send through tunnels only (`TunnelOnly`)."""

    def same_node(self, other: View) -> bool:
        """Whether all but the peers is the same."""
        return (self.uid, self.own, self.network, self.grant, self.devices, self.sources) == (
            other.uid,
            other.own,
            other.network,
            other.grant,
            other.devices,
            other.sources,
        )


def view_of(
    snapshot: Snapshot,
    uid: str,
    paths: Mapping[str, PeerPath],
    own: OwnSide,
    *,
    before: View | None = None,
    tunnel_only: frozenset[str] = frozenset(),
) -> View:
    """The node's view. `before`: an older one, from which is taken what cannot have changed."""
    if before is not None and _same_segments(snapshot, before):
        segments = before.segments
    else:
        segments = effective_segments(snapshot)
    entry = snapshot.nodes.get(uid)
    network = snapshot.network
    if entry is None or network is None or entry.grant.tombstone:
        return View(snapshot, uid, paths, own, segments, network, None)
    firsts = _first_of_each_version(segments.get(uid, ()))
    taken: dict[int, list[tuple[int, int, str]]] = {4: [], 6: []}
    for prefixes, what in (
        (entry.grant.segments, "a segment of this node"),
        (entry.grant.prefixes_behind, "a prefix behind this node"),
        (own.link_prefixes, "the subnet of a link of this node"),
    ):
        for prefix in prefixes:
            taken[prefix.version].append((*bounds_of(prefix), f"{what}, {prefix}"))
    return View(
        snapshot,
        uid,
        paths,
        own,
        segments,
        network,
        entry.grant,
        sources={version: prefix[1] for version, prefix in firsts.items()},
        devices={
            version: _device(network, own, version, firsts)
            for version in sorted(own.vtep_macs)
            if firsts
        },
        taken={version: tuple(intervals) for version, intervals in taken.items()},
        tunnel_only=tunnel_only,
    )


def _same_segments(snapshot: Snapshot, before: View) -> bool:
    """Whether the segments that count are surely the same as before, by a glance at each grant."""
    known = before.snapshot.nodes
    for uid in differing(known, snapshot.nodes):
        old, entry = known.get(uid), snapshot.nodes.get(uid)
        if old is None or entry is None:
            return False
        was, now = old.grant, entry.grant
        if was is not now and (
            (was.segments, was.tombstone) != (now.segments, now.tombstone)
            # Who has lost nothing loses nothing by a higher revision, nor takes it from others.
            or before.segments.get(uid, ()) != (() if now.tombstone else now.segments)
            or now.revision < was.revision
        ):
            return False
    return True


def _first_of_each_version(prefixes: Iterable[Prefix]) -> dict[int, Prefix]:
    firsts: dict[int, Prefix] = {}
    for prefix in prefixes:
        firsts.setdefault(prefix.version, prefix)
    return firsts


def _device(
    network: Network, own: OwnSide, version: int, firsts: Mapping[int, Prefix]
) -> VxlanDevice:
    mtu_bytes = own.link_mtu_bytes - VXLAN_OVERHEAD_BYTES[version]
    addresses: frozenset[InterfaceAddress] = frozenset(
        ip_interface(prefix.network_address)
        for prefix in firsts.values()
        if mtu_bytes >= MIN_MTU_BYTES[prefix.version]
    )
    return VxlanDevice(
        f"{VXLAN_IFNAME_PREFIX}{version}",
        version,
        network.vxlan_id,
        network.vxlan_port,
        own.vtep_macs[version],
        mtu_bytes,
        addresses,
    )


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
    if path.rung not in TUNNELLED and in_clear_refused(view.network):
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
    return uid not in view.tunnel_only or path is None or path.rung not in TUNNELLED


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
    vxlan = vxlan_entry(view, entry, path)
    hops: dict[int, Hop | str] = {
        version: tunnel_hop(view, entry, path, first, let_in)
        if path.rung in TUNNELLED
        else plain_hop(view, entry, path, vxlan, first)
        for version, first in _first_of_each_version(segments).items()
    }
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
    tunnels = [hop for hop in hops.values() if not isinstance(hop, str) and hop.over_vxlan]
    return PeerPart(
        tuple(routes),
        tuple(Neighbour(hop.device, hop.address, vxlan.mac) for hop in tunnels)
        if isinstance(vxlan, FdbEntry)
        else (),
        (vxlan,) if isinstance(vxlan, FdbEntry) and tunnels else (),
        let_in.sources,
        let_in.outer,
        let_in.in_clear,
        tuple(without),
    )


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


def changed_peers(before: View, after: View) -> list[str]:
    """Peers of which something is known differently."""
    known, nodes = before.snapshot.nodes, after.snapshot.nodes
    others = differing(known, nodes)
    others |= differing(before.paths, after.paths) | differing(before.segments, after.segments)
    sealed = frozenset[str]()
    if before.tunnel_only is not after.tunnel_only:  # they are mostly the same thousands
        sealed = before.tunnel_only ^ after.tunnel_only
        others |= sealed
    return [
        uid
        for uid in sorted(uid for uid in others - {after.uid} if uid in known or uid in nodes)
        # Another object may say the same.
        if uid in sealed
        or (known.get(uid), before.paths.get(uid), before.segments.get(uid))
        != (nodes.get(uid), after.paths.get(uid), after.segments.get(uid))
    ]
