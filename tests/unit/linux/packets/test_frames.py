"""Announcements against the RFCs; tests/datapath/node/test_pods.py has other hosts believe them."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

from hypothesis import given

from limpet.linux.netlink.codec import parse_mac
from limpet.linux.packets.frames import announcement
from tests.strategies import macs, v4_addresses, v6_addresses


@given(v4_addresses, macs)
def test_ipv4_is_announced_by_an_arp_request_for_itself(address: IPv4Address, mac: str) -> None:
    frame = announcement(address, mac)
    octets = parse_mac(mac)

    assert frame[:6] == b"\xff" * 6
    assert frame[6:12] == octets
    assert frame[12:14] == b"\x08\x06"
    arp = frame[14:]
    assert arp[:8] == bytes([0, 1, 8, 0, 6, 4, 0, 1])  # Ethernet, IPv4, lengths, request
    assert arp[8:14] == octets  # sender
    assert arp[14:18] == address.packed
    assert arp[24:28] == address.packed  # target: RFC 5227, the same
    assert len(arp) == 28


@given(v6_addresses, macs)
def test_ipv6_is_announced_by_an_advertisement_that_overrides(
    address: IPv6Address, mac: str
) -> None:
    frame = announcement(address, mac)
    octets = parse_mac(mac)

    # RFC 2464 section 7: 33:33 and the last four bytes of the group.
    assert frame[:6] == b"\x33\x33" + IPv6Address("ff02::1").packed[-4:]
    assert frame[6:12] == octets
    assert frame[12:14] == b"\x86\xdd"
    header, body = frame[14:54], frame[54:]
    assert header[0] >> 4 == 6
    assert int.from_bytes(header[4:6], "big") == len(body) == 32
    assert header[6] == 58
    assert header[7] == 255  # RFC 4861 section 7.1.2: another hop limit is not believed
    assert header[8:24] == address.packed
    assert header[24:40] == IPv6Address("ff02::1").packed
    assert body[:2] == bytes([136, 0])
    assert body[4:8] == bytes([0x20, 0, 0, 0])  # override, neither solicited nor a router
    assert body[8:24] == address.packed
    assert body[24:26] == bytes([2, 1])  # target link-layer address, 8 bytes
    assert body[26:32] == octets


@given(v6_addresses, macs)
def test_the_checksum_makes_the_sum_of_all_words_zero(address: IPv6Address, mac: str) -> None:
    frame = announcement(address, mac)
    addresses, body = frame[22:54], frame[54:]
    pseudo = addresses + len(body).to_bytes(4, "big") + bytes([0, 0, 0, 58])

    # Ones' complement addition of 16-bit words is addition modulo 0xffff: RFC 1071 section 2.
    assert int.from_bytes(pseudo + body, "big") % 0xFFFF == 0
    assert body[2:4] != b"\xff\xff"
