"""IP addresses, prefixes and endpoints: names for the types, and what holds for all of them."""

from __future__ import annotations

from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
    ip_network,
)

Address = IPv4Address | IPv6Address

Prefix = IPv4Network | IPv6Network

InterfaceAddress = IPv4Interface | IPv6Interface


def bounds_of(prefix: Prefix) -> tuple[int, int]:
    """First and last address.

    `prefix.broadcast_address` would be kept in every prefix: 300 bytes of each, of thousands.
    """
    first = int(prefix.network_address)
    return first, first | (1 << (prefix.max_prefixlen - prefix.prefixlen)) - 1


_LOCAL = tuple(
    map(
        ip_network,
        (
            *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"),  # RFC 1918
            "100.64.0.0/10",  # RFC 6598: of a carrier
            *("127.0.0.0/8", "169.254.0.0/16", "0.0.0.0/8", "224.0.0.0/3"),
            "fc00::/7",  # RFC 4193
            *("::/8", "fe80::/10", "ff00::/8"),
        ),
    )
)


def is_public(address: Address) -> bool:
    """Whether the whole Internet may know a way to it: no RFC 1918, 4193 or 6598, nor of a link."""
    return not any(address.version == prefix.version and address in prefix for prefix in _LOCAL)


Endpoint = tuple[Address, int]
"""Address and UDP port of the underlay."""
