"""The kernel's WireGuard: what is set is what a parser of the same messages reads."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import settings as run_settings
from hypothesis import strategies as st
from tests.unit.datapath.tunnel.wireguard.wireguard_values import settings

from limpet.datapath.tunnel.state import (
    DeviceReading,
    DeviceSetting,
    PeerReading,
    PeerSetting,
    TunnelPeer,
)
from limpet.datapath.tunnel.wireguard import netlink_codec as kernel_wire
from limpet.linux.netlink import codec as netlink
from limpet.linux.netlink.codec import Message, Request

FAMILY = 35
KEY = bytes(range(32))


def received(requests: Iterable[Request]) -> list[Message]:
    datagram = b"".join(netlink.frame(each, 7, ack=False) for each in requests)
    return list(netlink.parse_messages(datagram))


def taken(setting: DeviceSetting) -> DeviceReading:
    """What a device that was empty says after the setting."""
    peers = {
        each.public_key: PeerReading(
            TunnelPeer(
                each.public_key,
                frozenset() if each.remove else frozenset(each.allowed),
                None if each.remove else each.endpoint,
                0 if each.remove else each.keepalive_s or 0,
            )
        )
        for each in setting.peers
    }
    return DeviceReading(setting.private_key or b"", setting.port or 0, setting.mark or 0, peers)


@given(settings())
def test_what_is_set_is_what_is_read(setting: DeviceSetting) -> None:
    messages = received(kernel_wire.set_device(FAMILY, "limwg0", setting))

    assert kernel_wire.parse_device(messages) == taken(setting)


@given(settings(), settings())
@run_settings(max_examples=25)
def test_what_is_known_of_the_last_dump_changes_nothing_in_what_is_read(
    one: DeviceSetting, other: DeviceSetting
) -> None:
    known: dict[bytes, PeerReading] = {}

    for told in (one, other, one):
        messages = received(kernel_wire.set_device(FAMILY, "limwg0", told))
        assert kernel_wire.parse_device(messages, known) == taken(told)
        assert {each.peer.public_key for each in known.values()} == taken(told).peers.keys()


def test_many_peers_go_in_messages_that_fit_and_the_device_is_set_once() -> None:
    many = tuple(
        PeerSetting(number.to_bytes(32, "big"), (ip_network(f"10.{number % 256}.0.0/16"),))
        for number in range(1, 2001)
    )
    setting = DeviceSetting(KEY, 51820, 1, many)

    requests = kernel_wire.set_device(FAMILY, "limwg0", setting)

    assert 1 < len(requests) < 50
    assert all(len(request.body) < 32768 for request in requests)
    assert [KEY in request.body for request in requests] == [True] + [False] * (len(requests) - 1)
    assert kernel_wire.parse_device(received(requests)) == taken(setting)


def test_a_peer_of_very_many_prefixes_goes_in_several_pieces() -> None:
    prefixes = tuple(ip_network(f"10.{high}.{low}.0/24") for high in range(8) for low in range(256))
    peer = PeerSetting(KEY, prefixes, (ip_address("192.0.2.1"), 51820), 25)

    requests = kernel_wire.set_device(FAMILY, "limwg0", DeviceSetting(peers=(peer,)))

    assert all(len(request.body) < 32768 for request in requests)
    reading = kernel_wire.parse_device(received(requests)).peers[KEY]
    assert reading.peer == TunnelPeer(KEY, frozenset(prefixes), peer.endpoint, 25)


def test_a_setting_is_laid_out_as_the_kernels_header_says() -> None:
    peer = PeerSetting(KEY, (ip_network("10.1.0.0/16"),), (ip_address("192.0.2.1"), 51820), 25)

    (request,) = kernel_wire.set_device(FAMILY, "wg0", DeviceSetting(port=443, peers=(peer,)))

    allowed = b"\x06\0\x01\0\x02\0\0\0" + b"\x08\0\x02\0\x0a\x01\0\0" + b"\x05\0\x03\0\x10\0\0\0"
    allowed = struct.pack("=HH", 4 + len(allowed), 0x8000) + allowed
    members = (
        b"\x24\0\x01\0" + KEY
        + b"\x14\0\x04\0" + b"\x02\0" + b"\xca\x6c" + b"\xc0\0\x02\x01" + bytes(8)
        + b"\x06\0\x05\0" + b"\x19\0\0\0"
        + struct.pack("=HH", 4 + len(allowed), 0x8009) + allowed
    )  # fmt: skip
    item = struct.pack("=HH", 4 + len(members), 0x8000) + members
    assert request.type == FAMILY
    assert request.body == (
        b"\x01\x01\0\0"
        + b"\x08\0\x02\0wg0\0"
        + b"\x06\0\x06\0\xbb\x01\0\0"
        + struct.pack("=HH", 4 + len(item), 0x8008)
        + item
    )


def test_traffic_and_the_last_handshake_are_read() -> None:
    peer = netlink.nest(
        0,
        netlink.attr(1, KEY),
        netlink.attr(6, struct.pack("=qq", 12, 34)),
        netlink.attr(7, struct.pack("=Q", 2**40)),
        netlink.attr(8, struct.pack("=Q", 5)),
    )
    body = bytes(4) + netlink.nest(8, peer)

    reading = kernel_wire.parse_device(received([Request(FAMILY, 0, body)]))

    assert reading.peers == {KEY: PeerReading(TunnelPeer(KEY), 12_000_000_034, 2**40, 5)}


def test_an_endpoint_of_one_link_keeps_its_link() -> None:
    peer = PeerSetting(KEY, endpoint=(ip_address("fe80::1%3"), 7))

    messages = received(kernel_wire.set_device(FAMILY, "wg0", DeviceSetting(peers=(peer,))))

    assert kernel_wire.parse_device(messages).peers[KEY].peer.endpoint == peer.endpoint


def test_the_familys_number_is_in_the_answer() -> None:
    body = bytes(4) + netlink.attr(1, struct.pack("=H", FAMILY)) + netlink.attr_text(2, "wireguard")

    (answer,) = received([Request(16, 0, body)])

    assert kernel_wire.parse_family(answer) == FAMILY
    (question,) = received([kernel_wire.get_family()])
    with pytest.raises(ValueError, match="without the family's number"):
        kernel_wire.parse_family(question)


@given(st.binary(max_size=300))
def test_whatever_comes_is_read_or_refused(body: bytes) -> None:
    for message in received([Request(FAMILY, 0, bytes(4) + body)]):
        try:
            kernel_wire.parse_device([message])
        except ValueError:
            continue


@given(st.binary(max_size=200))
def test_whatever_peers_come_are_read_or_refused(payload: bytes) -> None:
    body = bytes(4) + netlink.nest(8, payload)
    try:
        kernel_wire.parse_device(received([Request(FAMILY, 0, body)]))
    except ValueError:
        pass
