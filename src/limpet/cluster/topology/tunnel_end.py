"""Where a peer's tunnel is, and what goes through in one piece. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from limpet.base.addresses import Address, Endpoint, Prefix, is_private
from limpet.cluster.nodes import NodeEntry
from limpet.cluster.topology.paths import OwnSide, PeerPath
from limpet.cluster.topology.transports import TUNNEL_OVERHEAD_BYTES, TUNNEL_PADDING_BYTES


@dataclass(frozen=True, slots=True)
class TunnelEnd:
    """What is known of the way to a peer's tunnel."""

    endpoint: Endpoint | None = None
    """None: the peer has to speak first."""
    behind_nat: bool = False
    """A NAT is in the way that forgets a silent flow: either end's."""


IPSEC_MTU_BYTES = 1400
"""The daemon reads no more of a packet from its tunnel device, whatever that one's MTU is set to.

Source: TUN_DEFAULT_MTU in kernel_libipsec_plugin.c of strongSwan 5.9.8.
"""
IPSEC_PADDING_BYTES = 4
IPSEC_TRAILER_BYTES = 2
_MAX_PORT = 65535


def tunnel_device_mtu_bytes(link_mtu_bytes: int) -> int:
    """MTU of the tunnel device of a node whose largest link has that MTU."""
    return link_mtu_bytes - min(TUNNEL_OVERHEAD_BYTES.values())


def tunnel_mtu_bytes(underlay_mtu_bytes: int, overhead_bytes: int, *, device_mtu_bytes: int) -> int:
    """The largest inner packet that goes through such an underlay in one piece.

    Below the device's MTU a multiple of 16: what is less is padded to one.
    """
    room = underlay_mtu_bytes - overhead_bytes
    if room >= device_mtu_bytes:
        return device_mtu_bytes
    return max(room - room % TUNNEL_PADDING_BYTES, 0)


def ipsec_mtu_bytes(tunnel_mtu_bytes: int) -> int:
    """The largest inner packet where WireGuard's is `tunnel_mtu_bytes`.

    AES-GCM in ESP in UDP takes as much as WireGuard (28 or 48 for UDP and IP, 8 for the header, 8
    for the IV, 16 for the ICV), and a trailer of 2 bytes behind which it ends on a multiple of 4.
    Source: RFC 4303, RFC 4106, RFC 3948.
    """
    whole = tunnel_mtu_bytes - tunnel_mtu_bytes % IPSEC_PADDING_BYTES
    return min(max(whole - IPSEC_TRAILER_BYTES, 0), IPSEC_MTU_BYTES)


def endpoint_problem(endpoint: Endpoint | None, inside: Iterable[Prefix]) -> str:
    """Why packets of a tunnel cannot be sent there; empty: they can.

    `inside`: what goes through tunnels.
    """
    if endpoint is None:
        return "no endpoint of it is known"
    address, port = endpoint
    if (
        address.is_unspecified
        or address.is_multicast
        or (address.version == 6 and address.is_link_local)
        or not 0 < port <= _MAX_PORT
    ):
        return f"{address} port {port} is no endpoint of a tunnel"
    for prefix in inside:
        if address.version == prefix.version and address in prefix:
            return f"its endpoint {address} is in {prefix}, which goes through the tunnel"
    return ""


def tunnel_end_of(path: PeerPath | None, entry: NodeEntry, own: OwnSide) -> TunnelEnd:
    """What the path says of the way to the peer's tunnel; of another rung nothing.

    Keepalives are for a NAT on the direct way: what a relay has learnt is kept by checks.
    """
    if path is None or not path.rung.encrypted:
        return TunnelEnd()
    behind_nat = (
        not path.relay
        and path.endpoint is not None
        and _is_translated(path.endpoint[0], entry, own)
    )
    return TunnelEnd(path.endpoint, behind_nat=behind_nat)


def _is_translated(address: Address, entry: NodeEntry, own: OwnSide) -> bool:
    """Between addresses that one of the two ends does not have."""
    if entry.presence is None or address not in entry.presence.addresses:
        return True
    if is_private(address):
        return False
    ours = [each for each in own.link_prefixes if each.version == address.version]
    return all(is_private(each.network_address) for each in ours)
