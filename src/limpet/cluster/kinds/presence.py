"""What a node says about itself; signed by its own key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from limpet.base.addresses import Address


@dataclass(frozen=True, slots=True)
class Presence:
    """What a node says about itself; signed by the node's key, the higher sequence counts."""

    uid: str
    sequence: int
    boot_id: str
    """Of the kernel that runs it: two at once under one uid are two machines."""
    addresses: tuple[Address, ...] = ()
    """Of its links, where neighbours may reach it."""
    endpoints: tuple[tuple[Address, int], ...] = ()
    """Address and UDP port of its tunnel as seen from outside, or forwarded to it."""
    port: int = 0
    """UDP port of probes and of the neighbour exchange."""
    vtep_macs: Mapping[int, str] = field(default_factory=dict)
    """MAC of the VXLAN device by IP version of the underlay."""
    tunnel_port: int = 0
    """UDP port that its tunnel listens on; 0: it has no tunnel."""
    relay_tls_port: int = 0
    """TCP port where it relays packets in TLS connections; 0: it does not."""
    link_mtu_bytes: int = 1500
