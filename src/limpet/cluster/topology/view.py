"""A node's view of the cluster: what plans for its peers are made of. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_interface
from operator import attrgetter

from limpet.base.addresses import (
    LOCAL_BOUNDS,
    Address,
    Bounds,
    InterfaceAddress,
    Prefix,
    bounds_by_version,
    bounds_of,
    is_public,
)
from limpet.base.layered_map import differing
from limpet.base.ownership import VXLAN_IFNAME_PREFIX
from limpet.cluster.kinds.grant import Grant
from limpet.cluster.kinds.network import Network
from limpet.cluster.nodes import Snapshot, effective_segments, segments_after
from limpet.cluster.topology.paths import OwnSide, PeerPath
from limpet.cluster.topology.transports import MIN_MTU_BYTES, VXLAN_OVERHEAD_BYTES


@dataclass(frozen=True, slots=True)
class VxlanDevice:
    """A VXLAN device with entries that are programmed, none learnt, and no link of its own."""

    ifname: str
    underlay_version: int
    vni: int
    port: int
    mac: str
    mtu_bytes: int
    addresses: frozenset[InterfaceAddress] = frozenset()
    """/32 and /128."""
    up: bool = True
    plain: bool = True
    """False: an observed one that learns, hangs on a link or has a peer of its own."""
    ours: bool = True
    """False: an observed one that somebody else made; it is never touched."""


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
    taken: Mapping[int, tuple[tuple[int, int, str, bool], ...]] = field(default_factory=dict)
    """First and last address by IP version of what no peer may have, what it is, and whether a peer
    may have a part of it as its segment all the same."""
    sites: Mapping[int, Bounds] = field(default_factory=dict)
    """By IP version: underlay addresses that peers may send from in clear, on a subnet of ours or,
    if we have one there too, in private networks."""
    tunnel_only: frozenset[str] = frozenset()
    """Peers that send through tunnels only (`TunnelOnly`)."""

    def same_node(self, other: View) -> bool:
        """Whether all but the peers is the same."""
        return _OF_NODE(self) == _OF_NODE(other)


_OF_NODE = attrgetter("uid", "own", "network", "grant", "devices", "sources")


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
    if before is None:
        segments: Mapping[str, tuple[Prefix, ...]] = effective_segments(snapshot)
    else:
        segments = segments_after(snapshot, before.snapshot, before.segments)
    entry = snapshot.nodes.get(uid)
    network = snapshot.network
    if entry is None or network is None or entry.grant.tombstone:
        return View(snapshot, uid, paths, own, segments, network, None)
    if (
        before is not None
        and before.grant is entry.grant
        and before.network is network
        and before.own == own
        and before.uid == uid
        and before.segments.get(uid, ()) == segments.get(uid, ())
    ):
        return replace(
            before, snapshot=snapshot, paths=paths, segments=segments, tunnel_only=tunnel_only
        )
    firsts = _first_of_each_version(segments.get(uid, ()))
    taken: dict[int, list[tuple[int, int, str, bool]]] = {4: [], 6: []}
    for prefixes, what, in_parts in (
        (entry.grant.segments, "a segment of this node", False),
        (entry.grant.prefixes_behind, "a prefix behind this node", False),
        # A LAN that is wider than the pods' addresses loses those of them to the pods anyway.
        (own.link_prefixes, "the subnet of a link of this node", True),
    ):
        for prefix in prefixes:
            taken[prefix.version].append((*bounds_of(prefix), f"{what}, {prefix}", in_parts))
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
        sites=_sites(own),
        tunnel_only=tunnel_only,
    )


def _sites(own: OwnSide) -> dict[int, Bounds]:
    private = {p.version for p in own.link_prefixes if not is_public(p.network_address)}
    return {
        version: (*bounds, *(LOCAL_BOUNDS[version] if version in private else ()))
        for version, bounds in bounds_by_version(own.link_prefixes).items()
    }


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
