"""IP addresses, prefixes and endpoints: names for the types, and what holds for all of them."""

from __future__ import annotations

from collections.abc import Iterable
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


Bounds = tuple[tuple[int, int], ...]
"""First and last addresses of some prefixes of one IP version."""


def bounds_by_version(prefixes: Iterable[Prefix]) -> dict[int, Bounds]:
    """For questions that are asked of thousands of addresses."""
    held = list(prefixes)
    return {v: tuple(bounds_of(each) for each in held if each.version == v) for v in (4, 6)}


def is_within(value: int, bounds: Bounds) -> bool:
    """`value`: an address of the bounds' IP version."""
    for first, last in bounds:  # noqa: SIM110  # three times as fast as any() of a generator
        if first <= value <= last:
            return True
    return False


LOCAL_BOUNDS = bounds_by_version(
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
"""Of what is not public."""
NO_NODE_BOUNDS = bounds_by_version(
    map(ip_network, ("127.0.0.0/8", "0.0.0.0/32", "224.0.0.0/4", "::1/128", "::/128", "ff00::/8"))
)
"""Loopback, unspecified, multicast: no other node has such an address."""


def is_public(address: Address) -> bool:
    """Whether the whole Internet may know a way to it: no RFC 1918, 4193 or 6598, nor of a link."""
    return not is_within(int(address), LOCAL_BOUNDS[address.version])


Endpoint = tuple[Address, int]
"""Address and UDP port of the underlay."""
