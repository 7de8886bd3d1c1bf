"""The rungs by which packets for a peer may travel, and what each costs in MTU."""

from __future__ import annotations

from enum import Enum

VXLAN_OVERHEAD_BYTES = {4: 50, 6: 70}
"""Outer IP, UDP, VXLAN and inner Ethernet headers, by IP version of the underlay."""

MIN_MTU_BYTES = {4: 68, 6: 1280}
"""Below it the kernel takes the IP version off a link. Source: net/ipv4/devinet.c, RFC 8200."""


class Rung(Enum):
    """How packets for a peer travel."""

    ROUTE = "route"
    """Plainly, to the peer's address on a link that both are on."""
    VXLAN = "vxlan"
    TUNNEL = "tunnel"
    """Encrypted, straight to the peer's tunnel, through whatever NATs."""
    RELAY = "relay"
    """The same encrypted packets, forwarded by a node that cannot read them."""
    RELAY_TLS = "relay-tls"
    """The same in a TLS connection to the relay, where UDP does not get through."""


TUNNELLED = frozenset({Rung.TUNNEL, Rung.RELAY, Rung.RELAY_TLS})
"""Rungs that go through the node's tunnel device."""

TUNNEL_OVERHEAD_BYTES = {4: 60, 6: 80}
"""Outer IP, UDP, WireGuard's header and authenticator, by IP version of the underlay.

Source: WireGuard's paper, section 5.4.6: 16 bytes before and 16 after the inner packet.
"""

TUNNEL_PADDING_BYTES = 16
"""Inner packets are padded to a multiple of it, unless that exceeds the device's MTU."""
