"""Netlink messages: links, addresses, routes, neighbours, FDB entries, IPsec, nftables, connection
tracking, WireGuard; and the listings that nft prints.

The kernel is no stranger, and a message of it is whole: one that is too short for its fixed head
may raise struct.error, and addresses of no length that there is ValueError. What must not be is a
loop without end, or work out of proportion.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from ipaddress import ip_address, ip_interface, ip_network

from limpet.datapath.overlay.device_apply import parse_device
from limpet.datapath.overlay.state import OverlayState
from limpet.datapath.policy.blocks import bounds_of_text
from limpet.datapath.policy.table import read_listing
from limpet.datapath.services.elements import read_frontend, read_target, target_value
from limpet.datapath.services.sockets.layout import read_cookie, read_flow, read_peer, read_set
from limpet.datapath.tunnel.state import DeviceSetting, PeerSetting
from limpet.datapath.tunnel.wireguard import netlink_codec as wireguard
from limpet.linux import conntrack
from limpet.linux.netlink import (
    address_codec,
    codec,
    link_codec,
    nft_caller,
    route_codec,
    set_codec,
    table_codec,
    vxlan,
    xfrm,
)
from limpet.linux.netlink.codec import Message, Request, attr, nest
from limpet.linux.nftables import split_listing
from limpet.relay.server.forwarding import parse_counters, parse_ends
from tests.fuzz.target import Shape, fuzzed

_MAC, _V4, _V6 = "02:00:00:00:00:01", ip_address("192.0.2.1"), ip_address("2001:db8::1")


def _datagram(*requests: Request) -> bytes:
    """As the kernel would repeat them."""
    return b"".join(codec.frame(each, number, ack=True) for number, each in enumerate(requests))


def _each(*requests: Request) -> Callable[[], list[bytes]]:
    return lambda: [*(_datagram(each) for each in requests), _datagram(*requests)]


def _messages(data: bytes) -> Iterable[Message]:
    return codec.parse_messages(data)


_ERRORS = (struct.error, ValueError)


def _errors() -> Iterator[bytes]:
    for flags in (0x200, 0x300):
        words = attr(1, b"no such device\0")
        body = struct.pack("=i", -19) + struct.pack("=IHHII", 16, 3, 0, 7, 0) + words
        yield struct.pack("=IHHII", 16 + len(body), codec.NLMSG_ERROR, flags, 7, 0) + body


@fuzzed(seeds=_errors, errors=_ERRORS)
def netlink_errors(data: bytes) -> None:
    for each in _messages(data):
        _errno, words = codec.parse_error(each)
        assert len(words) <= len(data)


def _generations() -> Iterator[bytes]:
    for number in (b"\0\0\4\xd2", b"\0"):
        body = bytes(4) + attr(1, bytes(4)) + attr(2, number) + attr(3, b"nft\0")
        yield struct.pack("=IHHII", 16 + len(body), (10 << 8) | 15, 0, 7, 0) + body


@fuzzed(seeds=_generations, errors=_ERRORS)
def callers_of_nftables(data: bytes) -> None:
    for each in _messages(data):
        assert nft_caller.caller_in(each) is None or len(each.body) >= 12


_LINKS = (
    link_codec.new_veth(
        ifname="lim1",
        mac=_MAC,
        mtu_bytes=1450,
        group=5148,
        master_ifindex=3,
        peer_ifname="eth0",
        peer_mac="02:00:00:00:00:02",
        peer_netns_fd=7,
    ),
    link_codec.set_link(3, what="x", up=True, alias="limpet", mtu_bytes=1400, master_ifindex=2),
    link_codec.set_bridge_port(3, what="x", hairpin=True, isolated=True),
    vxlan.new_vxlan(
        ifname="limvx6", underlay_version=6, vni=1, port=8472, mac=_MAC, mtu_bytes=1450, group=5148
    ),
    xfrm.new_xfrm_device("limipsec0", 7),
    link_codec.new_link(ifname="limpet0", kind="bridge", options=attr(46, bytes(8))),
)


@fuzzed(seeds=_each(*_LINKS), errors=_ERRORS)
def netlink_links(data: bytes) -> None:
    for each in _messages(data):
        link_codec.parse_link(each)
        link_codec.parse_bridge_port(each)
        link_codec.parse_link_packets(each)
        link_codec.parse_link_options(each, "vxlan")
        link_codec.link_is_operational(each)
        link_codec.link_is_down(each)
        link_codec.link_ifindex(each)
        link_codec.link_group(each)
        vxlan.parse_vxlan(each)
        parse_device(each, link_codec.parse_link(each), OverlayState(), frozenset())
        xfrm.parse_if_id(each)


_ADDRESSES = (
    address_codec.new_address(3, ip_interface("10.244.7.1/24"), on="x"),
    address_codec.new_address(3, ip_interface("fd00:7::1/64"), on="x", deprecated=True),
)


@fuzzed(seeds=_each(*_ADDRESSES), errors=_ERRORS)
def netlink_addresses(data: bytes) -> None:
    for each in _messages(data):
        address_codec.address_ifindex(each)
        str(address_codec.parse_address(each).interface)


_NEIGHBOURS = (
    address_codec.put_fdb(3, _MAC, _V4, on="x"),
    address_codec.put_fdb(3, _MAC, _V6, on="x"),
    address_codec.put_neighbour(3, _V6, _MAC, on="x"),
)


@fuzzed(seeds=_each(*_NEIGHBOURS), errors=_ERRORS)
def netlink_neighbours_and_fdb(data: bytes) -> None:
    for each in _messages(data):
        address_codec.parse_neighbour(each)


_ROUTES = (
    route_codec.route(
        ip_network("10.1.0.0/16"), ifindex=3, table=5148, gateway=_V4, mtu_bytes=1400
    ),
    route_codec.route(ip_network("10.2.0.0/16"), ifindex=3, gateway=_V6, metric=7, on_link="eth0"),
    route_codec.route(ip_network("::/0"), ifindex=None, unreachable=True),
    route_codec.rule(4, priority=100, table=5148, mark=7),
)


@fuzzed(seeds=_each(*_ROUTES), errors=(*_ERRORS, IndexError))
def netlink_routes_and_rules(data: bytes) -> None:
    """IndexError: of a message that has no head at all."""
    for each in _messages(data):
        route_codec.is_of_large_table(each)
        route_codec.route_protocol(each)
        route_codec.parse_rule(each)
        str(route_codec.parse_route(each).prefix)


@fuzzed(seeds=_each(xfrm.new_trial_sa(4, 7), xfrm.new_trial_sa(6, 7)), errors=_ERRORS)
def netlink_ipsec(data: bytes) -> None:
    for each in _messages(data):
        xfrm.delete_sa(each, 7)
        xfrm.delete_policy(each, 7)


_KEY, _VALUE = bytes(range(8)), target_value("10.244.1.5", 80)


def _elements() -> Iterator[bytes]:
    pairs = [(bytes((number, 0, 0, 0)) + b"\0" * 4, _VALUE) for number in range(40)]
    yield _datagram(*set_codec.add_elements("limpet", "targets", pairs))
    verdicts = [(_KEY, set_codec.GOTO + b"chain"), (bytes(8), set_codec.JUMP + b"other")]
    yield _datagram(*set_codec.add_elements("limpet", "verdicts", verdicts))
    yield _datagram(*set_codec.add_ranges("limpet", "ranges", [(_KEY, b"\xff" * 8), (_KEY, None)]))
    yield _datagram(set_codec.dump_sets("limpet"), set_codec.dump_rules("limpet"))
    table = table_codec.TableId("bridge", "limpet")
    yield _datagram(table_codec.new_table(table, 6), table_codec.dump_tables())


@fuzzed(seeds=_elements, errors=_ERRORS, most_bytes=16_384)
def netlink_sets(data: bytes) -> None:
    for each in _messages(data):
        table_codec.parse_table(each)
        set_codec.parse_set(each, "limpet")
        set_codec.parse_chain(each, "limpet")
        set_codec.parse_rule(each, "limpet")
        list(set_codec.split_elements(each))
        for _key, value in set_codec.parse_elements(each):
            if len(value) >= 4:
                read_target(value)


def _flows() -> Iterator[bytes]:
    for source, target, kind in ((_V4, _V4, 1), (_V6, _V6, 3)):
        addresses = nest(1, attr(kind, source.packed), attr(kind + 1, target.packed))
        ports = nest(2, attr(1, b"\x06"), attr(2, b"\x9c\x40"), attr(3, b"\0\x50"))
        one, two = nest(1, addresses, ports), nest(2, addresses, ports)
        state = nest(4, nest(1, attr(1, b"\x03")))
        body = bytes(4) + one + two + attr(3, bytes(4)) + state + attr(12, b"\0\0\0\7")
        yield _datagram(Request(0x100, 0, body))


@fuzzed(seeds=_flows, errors=_ERRORS)
def netlink_tracked_flows(data: bytes) -> None:
    for each in _messages(data):
        attrs = codec.parse_attrs(each.body, 4)
        for family in (socket.AF_INET, socket.AF_INET6):
            for number in (1, 2):
                protocol, _, _ = conntrack.flow_end(attrs, number, family, is_source=True)
                conntrack.is_alive(protocol, attrs)


def _wireguard() -> Iterator[bytes]:
    peers = tuple(
        PeerSetting(
            bytes((number,)) * 32, (ip_network("10.1.0.0/24"), ip_network("fd00::/64")), end, 25
        )
        for number, end in enumerate(((_V4, 51820), (_V6, 1), None))
    )
    setting = DeviceSetting(bytes(32), 51820, 7, peers)
    yield _datagram(*wireguard.set_device(35, "limwg0", setting))


@fuzzed(seeds=_wireguard, errors=_ERRORS)
def netlink_wireguard(data: bytes) -> None:
    messages = list(_messages(data))
    for each in messages:
        with suppress(*_ERRORS):
            wireguard.parse_family(each)
    known: dict[bytes, object] = {}
    read = wireguard.parse_device(messages, known)  # type: ignore[arg-type]
    assert wireguard.parse_device(messages, known) == read  # type: ignore[arg-type]


@fuzzed(
    seeds=lambda: [b"\xc0\0\2\1" + b"\6\0\0\0\0\x50\0\0" + bytes(64), bytes(range(64))],
    errors=(*_ERRORS, KeyError),
    most_bytes=128,
)
def keys_of_maps(data: bytes) -> None:
    """Of what our own programs put there, or the kernel for them; KeyError: no protocol of ours."""
    read_target(data)
    read_cookie(data[:8])
    read_peer(data)
    read_flow(data, data)
    read_set(data)
    read_frontend(data[:12])


_LISTING = b"""\
table inet limpet {
\tcounter dropped {
\t\tpackets 7 bytes 900
\t}
\tset ends4 {
\t\ttype ipv4_addr . inet_service . inet_service
\t\tflags dynamic,timeout
\t\telements = { 192.0.2.1 . 40000 . 40001 comment "a b 40002 192.0.2.9",
\t\t\t     192.0.2.2 . 40000 . 40003 comment "c d 40004 192.0.2.9" }
\t}
\tmap targets {
\t\ttype ipv4_addr : verdict
\t\telements = { 10.0.0.1 : goto one, 10.0.0.2 : goto two }
\t}
\tchain input {
\t\ttype filter hook input priority filter; policy accept;
\t\tip saddr @ends4 counter packets 1 bytes 60 accept
\t}
}
"""


@fuzzed(seeds=lambda: [_LISTING], shape=Shape.TEXT, most_bytes=16_384)
def listing_of_nft(data: bytes) -> None:
    text = data.decode(errors="replace")
    listing = split_listing(text)
    read_listing("inet", "limpet", *listing)
    parse_ends(listing)
    parse_counters(text)


@fuzzed(
    seeds=lambda: [b"10.0.0.0/8", b"10.0.0.1-10.0.0.9", b"fd00::/64", b"fd00::1"],
    errors=(ValueError, OverflowError),
    shape=Shape.TEXT,
    most_bytes=200,
)
def bounds_of_a_range(data: bytes) -> None:
    """Of texts that we have written ourselves."""
    text = data.decode("latin-1")
    bounds_of_text(text, 6 if ":" in text else 4)
