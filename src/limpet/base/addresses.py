"""IP addresses, prefixes, endpoints, and the links that have them: names for the types, and what
holds for all of them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
    ip_address,
    ip_network,
)
from socket import AF_INET, AF_INET6, inet_ntop, inet_pton

Address = IPv4Address | IPv6Address

Prefix = IPv4Network | IPv6Network

InterfaceAddress = IPv4Interface | IPv6Interface

LONGEST_SEGMENT = {4: 30, 6: 126}
"""Bits by IP version: a node's segment holds a gateway and at least one pod."""
_LINK_LOCAL = IPv6Network("fe80::/64")


def link_local_of(mac: str) -> IPv6Address:
    """What the kernel gives a link by itself. Source: RFC 4291, appendix A."""
    octets = bytes.fromhex(mac.replace(":", ""))
    low = bytes((octets[0] ^ 2,)) + octets[1:3] + b"\xff\xfe" + octets[3:]
    return _LINK_LOCAL.network_address + int.from_bytes(low, "big")


def address_or_none(text: str) -> Address | None:
    """None where it is no address."""
    try:
        return ip_address(text)
    except ValueError:
        return None


def packed(text: str) -> bytes:
    """4 or 16 bytes of an address without a zone. Raises: ValueError.

    A seventh of what `ip_address` takes for it: there may be 50,000 at once.
    """
    try:
        return inet_pton(AF_INET6 if ":" in text else AF_INET, text)
    except OSError as error:
        raise ValueError(f"{text!r} is no address") from error


def library_text(packed: bytes) -> str:
    """As the C library writes an address of 4 or 16 bytes, and nft by it: an IPv4 address within
    one of IPv6 stays dotted (`::10.0.0.1`)."""
    return inet_ntop(AF_INET if len(packed) == 4 else AF_INET6, packed)


_DOTTED = "." in str(IPv6Address("::ffff:1.2.3.4"))


def shortest_text(packed: bytes) -> str:
    """An address of 4 or 16 bytes as `ip_address` would write it, in a tenth of the time."""
    found = library_text(packed)
    if ":" not in found or "." not in found:
        return found
    # An IPv4 address within one of IPv6: not every Python writes it as the C library does.
    before = found.rpartition(":")[0]
    high, low = packed[-4:-2].hex(), packed[-2:].hex()
    dotted = _DOTTED and before != ":"
    return found if dotted else f"{before}:{int(high, 16):x}:{int(low, 16):x}"


_MAPPED = bytes(10) + b"\xff\xff"
"""Source: RFC 4291, section 2.5.5.2."""


def in_16_bytes(address: Address) -> bytes:
    """An IPv4 address as a mapped one."""
    return address.packed if address.version == 6 else _MAPPED + address.packed


def of_16_bytes(packed: bytes) -> Address:
    """Raises: ValueError."""
    return IPv4Address(packed[12:]) if packed.startswith(_MAPPED) else IPv6Address(packed)


def bounds_of(prefix: Prefix) -> tuple[int, int]:
    """First and last address.

    `prefix.broadcast_address` would be kept in every prefix: 300 bytes of each, of thousands.
    """
    first = int(prefix.network_address)
    return first, first | (1 << (prefix.max_prefixlen - prefix.prefixlen)) - 1


def smallest_around(address: Address | None, prefixes: Iterable[Prefix]) -> tuple[Prefix, ...]:
    """The one that a route to the address goes by: the smallest that it is in, if it is in any."""
    around = [each for each in prefixes if address is not None and address in each]
    return (max(around, key=lambda each: each.prefixlen),) if around else ()


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


_PRIVATE = tuple(
    map(ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"))
)
"""Source: RFC 1918, RFC 6598 (of a carrier), RFC 4193."""
_NEITHER = ("127.0.0.0/8", "169.254.0.0/16", "0.0.0.0/8", "224.0.0.0/3", "::/8", "fe80::/10")
_PRIVATE_BOUNDS = bounds_by_version(_PRIVATE)
LOCAL_BOUNDS = bounds_by_version((*_PRIVATE, *map(ip_network, (*_NEITHER, "ff00::/8"))))
"""Bounds of what is not public, by IP version."""
NO_NODE_BOUNDS = bounds_by_version(
    map(ip_network, ("127.0.0.0/8", "0.0.0.0/32", "224.0.0.0/4", "::1/128", "::/128", "ff00::/8"))
)
"""Loopback, unspecified, multicast: no other node has such an address."""


_NO_ENDS = bounds_by_version(map(ip_network, (*_NEITHER, "ff00::/8")))
"""Unspecified, loopback, of one link, multicast, reserved, broadcast; IPv4 in the clothes of IPv6.
Source: RFC 6890, RFC 4291 section 2.5.5."""


def may_be_anothers(address: Address) -> bool:
    """Whether another node can be reached there, as far as the address alone says."""
    return not is_within(int(address), _NO_ENDS[address.version])


def is_public(address: Address) -> bool:
    """Whether the whole Internet may know a way to it: no RFC 1918, 4193 or 6598, nor of a link."""
    return not is_within(int(address), LOCAL_BOUNDS[address.version])


def is_private(address: Address) -> bool:
    """Whether the address is of a network that is never routed between sites."""
    return is_within(int(address), _PRIVATE_BOUNDS[address.version])


Endpoint = tuple[Address, int]
"""Address and UDP port of the underlay."""


_WITHOUT_BROADCAST = 31
"""A prefix of IPv4 so long has no address for all. Source: RFC 3021."""


@dataclass(frozen=True, slots=True)
class UnderlayLink:
    """A link of the node that leads to other nodes."""

    ifname: str
    ifindex: int
    mac: str
    mtu_bytes: int
    addresses: tuple[InterfaceAddress, ...]
    """Global ones, with the prefix length of their subnet."""

    @property
    def everybody(self) -> frozenset[IPv4Address]:
        """Addresses that stand for all on the link, or for none."""
        return frozenset(
            address
            for own in self.addresses
            if isinstance(own, IPv4Interface) and own.network.prefixlen < _WITHOUT_BROADCAST
            for address in (own.network.network_address, own.network.broadcast_address)
        )


def is_plain_name(ifname: str) -> bool:
    """It means itself in nft's syntax, which knows wildcards and no escapes."""
    return re.fullmatch(r"[A-Za-z0-9_.-]+", ifname) is not None


def ifname_problem(name: str) -> str | None:
    """Why `name` cannot name a network interface. Source: SPEC.md; dev_valid_name() in Linux."""
    if len(name.encode()) > 15:
        return "is longer than the 15 bytes of an interface name"
    if name in (".", "..") or any(c in "/:\0" or c.isspace() for c in name):
        return "is not an interface name (., .., /, : and white space are not allowed)"
    if "%" in name:  # the kernel takes it for a pattern and would choose another name
        return "is not an interface name that can be set as it is (%)"
    return None


Listen = tuple[str, int]
"""Address and port."""


def endpoint_text(at: Endpoint | Listen) -> str:
    """Address and port as a person writes them; an IPv6 address in brackets."""
    host, port = str(at[0]), at[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_listen(text: str) -> Listen:
    """Address and port out of `0.0.0.0:7470` or `[::]:7470`. Raises: ValueError in words."""
    address, colon, port = text.rpartition(":")
    try:
        host = ip_address(address.removeprefix("[").removesuffix("]"))
    except ValueError as error:
        raise ValueError(f"{text!r}: not an address and port such as 0.0.0.0:7470") from error
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r}: no port from 0 to 65535")
    return str(host), int(port)
