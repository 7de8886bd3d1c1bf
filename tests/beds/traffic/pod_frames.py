"""Frames that a pod makes by hand: all that its own kernel would not send."""

from __future__ import annotations

import struct
from ipaddress import IPv6Address, ip_address

from limpet.base.addresses import Address
from limpet.linux.packets.frames import checksum, ip_packet

BROADCAST = "ff:ff:ff:ff:ff:ff"
_TYPES = {"ip": 0x0800, "ip6": 0x86DD, "arp": 0x0806, "vlan": 0x8100, "other": 0x88B5}


def octets(mac: str) -> bytes:
    return bytes.fromhex(mac.replace(":", ""))


def ethernet(source: str, target: str, kind: str, body: bytes, *, vlan: int = 0) -> bytes:
    tag = struct.pack(">HH", _TYPES["vlan"], vlan) if vlan else b""
    return octets(target) + octets(source) + tag + struct.pack(">H", _TYPES[kind]) + body


def udp(source: str, target: str, tag: bytes, *, ports: tuple[int, int] = (4000, 4001)) -> bytes:
    """An IP packet of the addresses' version that carries the tag."""
    return packet(source, target, 17, struct.pack(">HHHH", *ports, 8 + len(tag), 0) + tag, 6)


def packet(source: str, target: str, protocol: int, body: bytes, checksum_at: int) -> bytes:
    one, other = ip_address(source), ip_address(target)
    return ip_packet(one, other, protocol, body, checksum_at=checksum_at, hops=255)


def arp(operation: int, sender_mac: str, sender: str, target: str, tag: bytes) -> bytes:
    """What follows an ARP packet is padding to everybody."""
    head = struct.pack(">HHBBH", 1, 0x0800, 6, 4, operation)
    return head + octets(sender_mac) + _packed(sender) + bytes(6) + _packed(target) + tag


def icmpv6(source: str, target: str, kind: int, body: bytes) -> bytes:
    return packet(source, target, 58, struct.pack(">BBH", kind, 0, 0) + body, 2)


def neighbour(
    source: str, target: str, kind: int, about: str, mac: str, tag: bytes, flags: int = 0
) -> bytes:
    """A solicitation (135) or advertisement (136) of an address, with a link-layer address."""
    option = bytes([1 if kind == 135 else 2, 1]) + octets(mac)
    if source == "::":
        option = b""  # RFC 4861 section 4.3: who has no address names no MAC
    return icmpv6(
        source, target, kind, struct.pack(">I", flags) + _packed(about) + option + _nonce(tag)
    )


def router_advertisement(
    source: str, tag: bytes, *, target: str = "ff02::1", prefix: str = "2001:db8:bad::"
) -> bytes:
    """Of a default router and a prefix. Source: RFC 4861 section 4.2."""
    head = struct.pack(">BBHII", 64, 0, 1800, 0, 0)
    option = struct.pack(">BBBBIII", 3, 4, 64, 0xC0, 7200, 7200, 0) + _packed(prefix)
    return icmpv6(source, target, 134, head + option + _nonce(tag))


def with_hop_by_hop(ipv6_packet: bytes) -> bytes:
    """The packet with a header of options (padding) before what it carries."""
    length, following = struct.unpack_from(">HB", ipv6_packet, 4)
    padding = bytes([following, 0, 1, 4, 0, 0, 0, 0])
    head = ipv6_packet[:4] + struct.pack(">HB", length + 8, 0) + ipv6_packet[7:40]
    return head + padding + ipv6_packet[40:]


def first_fragment(source: str, target: str, following: int, tag: bytes) -> bytes:
    """Ends in the middle of its options, so that it does not say what else the packet carries.
    `following`: the number of that protocol. Source: RFC 7112."""
    options = bytes([following, 3, 1, 28]) + tag.ljust(12, b"\0")
    return fragment(source, target, 60, 0, options)


def fragment(source: str, target: str, kind: int, octets_before: int, body: bytes) -> bytes:
    """Not the last one. `kind`: the number of what the whole begins with. Source: RFC 8200, 4.5."""
    assert (octets_before % 8, len(body) % 8) == (0, 0), "as fragments are"
    head = struct.pack(">BBHI", kind, 0, octets_before | 1, 0x11223344)
    ipv6 = struct.pack(">IHBB", 6 << 28, len(head + body), 44, 255)
    return ipv6 + _packed(source) + _packed(target) + head + body


def igmp(source: str, target: str, head: bytes, tag: bytes) -> bytes:
    """`head`: type, code, a checksum of zero, and what follows; IGMP has no pseudo-header."""
    whole = head + tag
    body = whole[:2] + struct.pack(">H", checksum(whole)) + whole[4:]
    made = packet(source, target, 2, body, 2)
    return made[:20] + body


def _nonce(tag: bytes) -> bytes:
    """An option that nobody knows, and so is skipped (RFC 4861 section 4.6)."""
    whole = tag.ljust(14, b"\0")
    assert len(whole) == 14
    return bytes([253, 2]) + whole


def _packed(address: str) -> bytes:
    return ip_address(address).packed


def solicited_node(address: str) -> str:
    """The group in which the holder of an address is asked for it."""
    last = int(ip_address(address)) & 0xFFFFFF
    return str(IPv6Address(int(IPv6Address("ff02::1:ff00:0")) | last))


def group_mac(group: str) -> str:
    """Of a multicast group."""
    found: Address = ip_address(group)
    if found.version == 6:
        return (b"\x33\x33" + found.packed[-4:]).hex(":")
    low = int(found) & 0x7FFFFF
    return (b"\x01\x00\x5e" + low.to_bytes(3, "big")).hex(":")
