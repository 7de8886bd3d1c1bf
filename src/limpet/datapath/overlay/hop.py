"""Device and next hop that lead to a peer, by one IP version of the overlay, or why none. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from limpet.base.addresses import Address, Prefix
from limpet.cluster.kinds.network import TunnelBackend
from limpet.cluster.nodes import NodeEntry
from limpet.cluster.topology.paths import PeerPath
from limpet.cluster.topology.reach import backend_between
from limpet.cluster.topology.transports import MIN_MTU_BYTES, VXLAN_OVERHEAD_BYTES
from limpet.cluster.topology.tunnel_end import (
    endpoint_problem,
    ipsec_mtu_bytes,
    tunnel_device_mtu_bytes,
    tunnel_mtu_bytes,
)
from limpet.cluster.topology.view import View
from limpet.datapath.overlay.state import UNICAST_MAC, FdbEntry


class Hop(NamedTuple):
    """The way for one IP version of the overlay."""

    device: str
    address: Address
    mtu_bytes: int
    vxlan: FdbEntry | None = None
    """How the VXLAN device finds the peer, where the packets leave by one."""


HopPlanner = Callable[[View, NodeEntry, PeerPath, Mapping[int, Prefix]], dict[int, Hop | str]]
"""The ways to a peer, or why none, by IP version; given its first segment of each."""


def vxlan_entry(view: View, entry: NodeEntry, underlay: Address | None) -> FdbEntry | str:
    """How VXLAN finds the peer at that address, or why it does not."""
    if underlay is None:
        return "no address for VXLAN is known"
    version = underlay.version
    device = view.devices.get(version)
    if device is None:
        return f"this node has no VXLAN device over IPv{version}"
    if entry.presence is None:
        return "it has not been heard of, so its MAC is not known"
    mac = entry.presence.vtep_macs.get(version)
    if mac is None:
        return f"it has announced no VXLAN device over IPv{version}"
    if not UNICAST_MAC.fullmatch(mac):
        return f"it has announced {mac!r} as MAC, which is none of one device"
    if mac == device.mac:
        return own_mac_claimed(mac)
    return FdbEntry(device.ifname, mac, underlay)


def own_mac_claimed(mac: str) -> str:
    """Why VXLAN does not find a peer that announces the MAC of our own device."""
    return f"it announces {mac} as its VXLAN device's MAC, which is that of this node's own device"


def overlay_hops(
    view: View, entry: NodeEntry, path: PeerPath, firsts: Mapping[int, Prefix]
) -> dict[int, Hop | str]:
    """In clear: by the path's link, else by VXLAN."""
    if entry.grant.is_flannel:
        return flannel_hops(view, entry, path, firsts)
    vxlan = vxlan_entry(view, entry, path.underlay)
    mtu_bytes = _underlay_mtu_bytes(view, entry, path)
    # A path outlives its link: it may be from the disk, or the link has gone just now.
    on_link = path.device in view.own.links
    hops: dict[int, Hop | str] = {}
    for version, first in firsts.items():
        next_hop = _next_hop(path, version) if on_link else None
        if version not in view.sources:
            hops[version] = f"this node has no segment of IPv{version}"
        elif next_hop is not None:
            hops[version] = _fitting(Hop(path.device, next_hop, mtu_bytes), version)
        elif isinstance(vxlan, FdbEntry):
            hops[version] = _by_vxlan(vxlan, first, mtu_bytes)
        elif on_link:
            hops[version] = f"it has no next hop for IPv{version} on {path.device}, and {vxlan}"
        elif path.device:
            hops[version] = f"{path.device} leads to no other node now, and {vxlan}"
        else:
            hops[version] = vxlan
    return hops


def flannel_hops(
    view: View, entry: NodeEntry, path: PeerPath, firsts: Mapping[int, Prefix]
) -> dict[int, Hop | str]:
    """To a node that flannel runs: what its pods have of IPv4 goes over IPv4, of IPv6 over IPv6."""
    said = entry.presence.addresses if entry.presence is not None else ()
    ends: dict[int, Address] = {each.version: each for each in reversed(said)}
    mtu_bytes = _underlay_mtu_bytes(view, entry, path)
    hops: dict[int, Hop | str] = {}
    for version, first in firsts.items():
        vxlan = vxlan_entry(view, entry, ends.get(version))
        if version not in view.sources:
            hops[version] = f"this node has no segment of IPv{version}"
        elif isinstance(vxlan, FdbEntry):
            hops[version] = _by_vxlan(vxlan, first, mtu_bytes)
        else:
            hops[version] = vxlan
    return hops


def _by_vxlan(vxlan: FdbEntry, first: Prefix, mtu_bytes: int) -> Hop | str:
    room_bytes = mtu_bytes - VXLAN_OVERHEAD_BYTES[vxlan.underlay.version]
    # As flannel: the network address stands for the peer, and never travels.
    hop = Hop(vxlan.device, first.network_address, room_bytes, vxlan)
    return _fitting(hop, first.version)


def tunnel_hops(
    view: View, entry: NodeEntry, path: PeerPath, firsts: Mapping[int, Prefix]
) -> dict[int, Hop | str]:
    """Through the encrypted tunnel.

    Its endpoint may lie in what is behind the peer: packets of a tunnel are marked, and our routes
    are not for them.
    """
    return {version: _tunnel_hop(view, entry, path, each) for version, each in firsts.items()}


def _tunnel_hop(view: View, entry: NodeEntry, path: PeerPath, first: Prefix) -> Hop | str:
    version = first.version
    if version not in view.sources:
        return f"this node has no segment of IPv{version}"
    by_ipsec = _is_by_ipsec(view, entry)
    device = view.own.ipsec if by_ipsec else view.own.tunnel
    if not device:
        return f"this node has no encrypted tunnel{' by IPsec' if by_ipsec else ''}"
    if entry.presence is None or not entry.presence.tunnel_port:
        return "it has told no encrypted tunnel"
    cidrs = view.network.pod_cidrs if view.network is not None else ()
    problem = endpoint_problem(path.endpoint, (*cidrs, *entry.grant.segments))
    if problem or path.endpoint is None:
        return problem
    mtu_bytes = tunnel_mtu_bytes(
        _underlay_mtu_bytes(view, entry, path),
        path.rung.overhead_bytes[path.endpoint[0].version],
        device_mtu_bytes=tunnel_device_mtu_bytes(view.own.link_mtu_bytes),
    )
    if by_ipsec:
        mtu_bytes = ipsec_mtu_bytes(mtu_bytes)
    return _fitting(Hop(device, first.network_address, mtu_bytes), version)


HOP_PLANNERS: dict[str, HopPlanner] = {"overlay": overlay_hops, "tunnel": tunnel_hops}
"""By the part that a transport names."""


def _is_by_ipsec(view: View, entry: NodeEntry) -> bool:
    network, grant = view.network, view.grant
    if network is None or grant is None:
        return False
    return backend_between(network, grant, entry.grant) is TunnelBackend.IPSEC


def _underlay_mtu_bytes(view: View, entry: NodeEntry, path: PeerPath) -> int:
    own = min(path.mtu_bytes, view.own.link_mtu_bytes)
    return own if entry.presence is None else min(own, entry.presence.link_mtu_bytes)


def _fitting(hop: Hop, version: int) -> Hop | str:
    if hop.mtu_bytes < MIN_MTU_BYTES[version]:
        return (
            f"IPv{version} needs an MTU of {MIN_MTU_BYTES[version]}, the path has {hop.mtu_bytes}"
        )
    return hop


def _next_hop(path: PeerPath, version: int) -> Address | None:
    """A next hop of the same version, if any; IPv4 also goes by IPv6 (RFC 5549), not reversed."""
    same = [address for address in path.next_hops if address.version == version]
    if same:
        return same[0]
    return path.next_hops[0] if version == 4 and path.next_hops else None


def leads_into_itself(prefix: Prefix, path: PeerPath) -> bool:
    ends = (*path.next_hops, *((path.underlay,) if path.underlay is not None else ()))
    return any(end in prefix for end in ends)
