"""IP packets, and Ethernet frames that tell the link about an address (gratuitous ARP, NA)."""

from __future__ import annotations

import struct
from ipaddress import IPv6Address

from limpet.base.addresses import Address
from limpet.linux.netlink.codec import parse_mac

_BROADCAST = b"\xff" * 6
_ALL_NODES = IPv6Address("ff02::1")
_OVERRIDE = 0x20000000
_ICMPV6 = 58
_DO_NOT_FRAGMENT = 0x4000


def announcement(address: Address, mac: str) -> bytes:
    """A frame after which every host on the link knows `address` at `mac`.

    Source: RFC 5227 section 3 (ARP announcement), RFC 4861 section 7.2.6 (unsolicited NA).
    """
    octets = parse_mac(mac)
    if address.version == 4:
        arp = struct.pack(">HHBBH", 1, 0x0800, 6, 4, 1)
        arp += octets + address.packed + bytes(6) + address.packed
        return _BROADCAST + octets + b"\x08\x06" + arp
    body = struct.pack(">BBHI", 136, 0, 0, _OVERRIDE) + address.packed
    body += b"\x02\x01" + octets  # target link-layer address
    packet = ip_packet(address, _ALL_NODES, _ICMPV6, body, checksum_at=2, hops=255)
    return b"\x33\x33\x00\x00\x00\x01" + octets + b"\x86\xdd" + packet


def ip_packet(
    source: Address, target: Address, protocol: int, body: bytes, *, checksum_at: int, hops: int
) -> bytes:
    """A packet of the addresses' IP version. `body`: a transport's header and what it carries.

    The transport's checksum is put at `checksum_at` of `body`, where zeros stand.

    Source: RFC 791, RFC 8200.
    """
    ends = source.packed + target.packed
    # Zero would mean that there is no checksum; both stand for the same number.
    total = checksum(ends + struct.pack(">II", len(body), protocol) + body) or 0xFFFF
    body = body[:checksum_at] + struct.pack(">H", total) + body[checksum_at + 2 :]
    if source.version == 6:
        return struct.pack(">IHBB", 6 << 28, len(body), protocol, hops) + ends + body
    length = 20 + len(body)
    head = struct.pack(">BBHHHBBH", 0x45, 0, length, 0, _DO_NOT_FRAGMENT, hops, protocol, 0) + ends
    return head[:10] + struct.pack(">H", checksum(head)) + head[12:] + body


def checksum(data: bytes) -> int:
    """The Internet checksum: zero over data that has its checksum in it. Source: RFC 1071."""
    padded = data + b"\0" * (len(data) % 2)
    # Adding with end-around carry is arithmetic modulo 2**16 - 1, where 2**16 is one.
    total = int.from_bytes(padded, "big") % 0xFFFF
    # Of nothing but zeros the sum is 0; of anything else that is divisible it is 0xFFFF.
    return 0xFFFF - (total or (0xFFFF if any(data) else 0))
