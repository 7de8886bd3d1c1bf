"""Probes, their answers, and the packets that carry them past the node's own routes."""

from __future__ import annotations

import struct
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.base.addresses import Address
from limpet.cluster.datagrams.peer_datagram import BodyKind, Codec, DatagramError
from limpet.cluster.keys import uid_of
from limpet.cluster.topology import transports
from limpet.cluster.topology.paths import PeerPath
from limpet.cluster.topology.transports import ProbeKind
from limpet.linux.packets.frames import checksum
from limpet.paths.probe.codec import (
    encode_answer,
    encode_probe,
    padding_for,
    parse_answer,
    parse_probe,
    udp_packet,
)
from limpet.paths.probe.messages import Probe, ProbeAnswer


def _plain(address: Address) -> bool:
    return int(address) != 0 and not (address.version == 6 and address.ipv4_mapped is not None)


addresses = st.ip_addresses().filter(_plain)
nonces = st.binary(min_size=8, max_size=8)
sequences = st.integers(0, 2**64 - 1)
probes = st.builds(
    Probe,
    nonces,
    st.sampled_from(ProbeKind),
    sequences,
    st.none() | addresses,
    punch=st.booleans(),
    relayed=st.booleans(),
    in_use=st.booleans(),
    padding_bytes=st.integers(0, 1500),
)
any_address = st.ip_addresses(v=4) | addresses
mtus = st.integers(0, 65535)
uids = st.binary(min_size=32, max_size=32).map(uid_of)
ways = st.one_of(
    st.builds(
        PeerPath,
        st.just(transports.ROUTE),
        mtus,
        st.text(st.characters(codec="ascii", exclude_characters="\0"), max_size=15),
        st.lists(any_address, max_size=2).map(tuple),
        st.none() | addresses,
    ),
    st.builds(PeerPath, st.just(transports.VXLAN), mtus, underlay=st.none() | addresses),
    st.builds(
        PeerPath,
        st.sampled_from([row for row in transports.by_preference() if row.encrypted]),
        mtus,
        endpoint=st.none() | st.tuples(any_address, st.integers(0, 65535)),
        relay=st.just("") | uids,
    ),
)
answers = st.builds(
    ProbeAnswer,
    nonces,
    sequences,
    st.ip_addresses(v=4) | addresses,
    st.integers(0, 65535),
    st.ip_addresses(v=4) | addresses,
    st.none() | ways,
)


@given(probes)
def test_a_probe_comes_back_as_it_was(probe: Probe) -> None:
    assert parse_probe(encode_probe(probe)) == probe


@given(answers)
def test_an_answer_comes_back_as_it_was(answer: ProbeAnswer) -> None:
    assert parse_answer(encode_answer(answer)) == answer


@given(st.binary(max_size=160))
def test_any_body_is_a_probe_and_an_answer_or_refused_as_malformed(body: bytes) -> None:
    for parse in (parse_probe, parse_answer):
        with suppress(DatagramError):
            parse(body)


@given(st.sampled_from([1280, 1340, 1420, 1492, 1500]), st.sampled_from([4, 6]))
def test_a_padded_probe_makes_an_ip_packet_of_the_size_that_is_asked_for(
    packet_bytes: int, version: int
) -> None:
    probe = Probe(bytes(8), ProbeKind.TUNNEL, 1, padding_bytes=padding_for(packet_bytes, version))
    data = Codec(bytes(31) + b"\x01", bytes(32)).encode(BodyKind.PROBE, encode_probe(probe))
    address = IPv4Address(1) if version == 4 else IPv6Address(1)
    assert len(udp_packet(address, address, 1, 2, data)) == packet_bytes


@given(answers)
def test_an_answer_is_less_than_twice_as_large_as_the_smallest_probe(answer: ProbeAnswer) -> None:
    smallest = encode_probe(Probe(bytes(8), ProbeKind.TUNNEL, 1))
    assert 124 + len(encode_answer(answer)) < 2 * (124 + len(smallest))


def test_an_answer_without_an_address_is_malformed() -> None:
    body = bytearray(
        encode_answer(ProbeAnswer(bytes(8), 1, ip_address("::1"), 7, ip_address("::2")))
    )
    body[16:32] = bytes(16)
    with pytest.raises(DatagramError, match="an address is missing"):
        parse_answer(bytes(body))


def test_a_probe_that_asks_for_something_unknown_is_malformed() -> None:
    body = bytearray(encode_probe(Probe(bytes(8), ProbeKind.LINK, 1)))
    body[8] = 9
    with pytest.raises(DatagramError, match="9 is not a valid ProbeKind"):
        parse_probe(bytes(body))


def _slow_sum(data: bytes) -> int:
    """As RFC 1071 says it."""
    total = 0
    for at in range(0, len(data), 2):
        total += int.from_bytes(data[at : at + 2].ljust(2, b"\0"), "big")
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


@given(st.binary(max_size=300) | st.lists(st.sampled_from([b"\0", b"\xff"])).map(b"".join))
def test_the_checksum_is_that_of_the_rfc(data: bytes) -> None:
    assert checksum(data) == _slow_sum(data)


ports = st.integers(1, 65535)
payloads = st.binary(max_size=1200)


@given(st.ip_addresses(v=4), st.ip_addresses(v=4), ports, ports, payloads)
def test_an_ipv4_packet_has_right_lengths_and_checksums(
    source: IPv4Address, destination: IPv4Address, here: int, there: int, payload: bytes
) -> None:
    packet = udp_packet(source, destination, here, there, payload)
    assert packet[0] == 0x45
    assert struct.unpack_from(">H", packet, 2)[0] == len(packet)
    assert (packet[8], packet[9]) == (1, 17)
    assert packet[12:20] == source.packed + destination.packed
    assert _slow_sum(packet[:20]) == 0
    assert packet[28:] == payload
    assert struct.unpack_from(">HHH", packet, 20) == (here, there, 8 + len(payload))
    pseudo = source.packed + destination.packed + bytes((0, 17)) + packet[24:26]
    assert packet[26:28] != b"\0\0"
    assert _slow_sum(pseudo + packet[20:]) == 0


@given(st.ip_addresses(v=6), st.ip_addresses(v=6), ports, ports, payloads)
def test_an_ipv6_packet_has_right_lengths_and_checksums(
    source: IPv6Address, destination: IPv6Address, here: int, there: int, payload: bytes
) -> None:
    packet = udp_packet(source, destination, here, there, payload)
    assert packet[:4] == b"\x60\0\0\0"
    assert struct.unpack_from(">HBB", packet, 4) == (len(packet) - 40, 17, 1)
    assert packet[8:40] == source.packed + destination.packed
    assert packet[48:] == payload
    assert struct.unpack_from(">HHH", packet, 40) == (here, there, 8 + len(payload))
    pseudo = source.packed + destination.packed + struct.pack(">II", 8 + len(payload), 17)
    assert packet[46:48] != b"\0\0"
    assert _slow_sum(pseudo + packet[40:]) == 0
