"""rtnetlink messages, without a kernel; tests/datapath proves that the kernel reads them alike."""

from __future__ import annotations

import struct
from ipaddress import ip_address, ip_interface, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.base.addresses import InterfaceAddress, Prefix
from limpet.linux.netlink import codec as wire
from tests.strategies import interfaces, macs, prefixes, u32

requests = st.builds(
    wire.Request, st.integers(16, 100), st.sampled_from([0, 0x300, 0x600]), st.binary(max_size=40)
)
attributes = st.dictionaries(st.integers(0, 0x3FFF), st.binary(max_size=20))


def received(request: wire.Request) -> wire.Message:
    """The request as its receiver sees it."""
    (message,) = wire.parse_messages(wire.frame(request, 7, ack=False))
    return message


@given(st.binary(max_size=300))
def test_any_bytes_parse_to_messages_within_them(data: bytes) -> None:
    found = list(wire.parse_messages(data))

    assert sum(16 + len(message.body) for message in found) <= len(data)
    for message in found:
        wire.parse_attrs(message.body, 0)


@given(st.binary(max_size=300), st.integers(0, 320))
def test_any_bytes_parse_to_attributes_within_them(data: bytes, offset: int) -> None:
    found = wire.parse_attrs(memoryview(data), offset)

    assert sum(4 + len(payload) for payload in found.values()) <= max(len(data) - offset, 0)
    assert all(payload in data for payload in found.values())


@given(st.lists(requests), st.integers(1, 2**31))
def test_requests_sent_in_one_datagram_are_told_apart(sent: list[wire.Request], first: int) -> None:
    datagram = b"".join(
        wire.frame(request, first + i, ack=bool(i % 2)) for i, request in enumerate(sent)
    )

    found = list(wire.parse_messages(datagram))

    assert len(datagram) % 4 == 0
    assert [message.sequence for message in found] == list(range(first, first + len(sent)))
    assert [bytes(message.body) for message in found] == [request.body for request in sent]
    for i, (request, message) in enumerate(zip(sent, found, strict=True)):
        assert message.type == request.type
        assert message.flags == request.flags | wire.REQUEST | (wire.ACK if i % 2 else 0)


@given(attributes, st.binary(max_size=8))
def test_attributes_are_read_back_whether_nested_or_not(
    wanted: dict[int, bytes], header: bytes
) -> None:
    flat = header + b"".join(wire.attr(kind, payload) for kind, payload in wanted.items())
    nested = header + b"".join(wire.nest(kind, payload) for kind, payload in wanted.items())

    assert wire.parse_attrs(memoryview(flat), len(header)) == wanted
    assert wire.parse_attrs(memoryview(nested), len(header)) == wanted


def error_message(errno: int, text: str, request: bytes, *, capped: bool) -> wire.Message:
    """As netlink_ack in net/netlink/af_netlink.c writes it."""
    header = struct.pack("=IHHII", 16 + len(request), wire.RTM_NEWLINK, 5, 7, 0)
    body = struct.pack("=i", -errno) + header
    if not capped:
        body += request + b"\0" * (-len(request) & 3)
    if text:
        body += wire.attr_text(1, text)
    flags = (0x100 if capped else 0) | (0x200 if text else 0)
    return wire.Message(wire.NLMSG_ERROR, flags, 7, memoryview(body))


@given(st.integers(0, 200), st.text(max_size=30), st.binary(max_size=30), st.booleans())
def test_an_error_carries_the_errno_and_the_kernels_own_words(
    errno: int, text: str, request: bytes, capped: bool
) -> None:
    text = text.replace("\0", "")
    found = wire.parse_error(error_message(errno, text, request, capped=capped))

    assert found == (errno, text)


@given(interfaces, u32, st.booleans())
def test_an_address_is_read_back_as_it_was_put(
    address: InterfaceAddress, ifindex: int, prefix_route: bool
) -> None:
    ifindex &= 0x7FFFFFFF
    sent = received(wire.new_address(ifindex, address, on="eth0", prefix_route=prefix_route))
    found = wire.parse_address(sent)

    assert (found.ifindex, found.packed) == (ifindex, address.packed)
    assert found.prefix_length == address.network.prefixlen
    assert wire.address_ifindex(sent) == ifindex
    assert bool(found.flags & wire.IFA_F_NOPREFIXROUTE) is not prefix_route
    # Without it, an IPv6 address cannot be used for a second or more.
    assert bool(found.flags & wire.IFA_F_NODAD) is (address.version == 6)


@pytest.mark.parametrize(
    ("address", "broadcast"),
    [
        ("10.1.2.3/24", "10.1.2.255"),
        ("10.1.2.3/30", "10.1.2.3"),
        ("10.1.2.2/31", None),
        ("10.1.2.3/32", None),
        ("fd00::3/64", None),
    ],
)
def test_only_an_ipv4_subnet_with_room_for_one_has_a_broadcast_address(
    address: str, broadcast: str | None
) -> None:
    sent = received(wire.new_address(1, ip_interface(address), on="eth0"))
    found = wire.parse_attrs(sent.body, 8).get(wire.IFA_BROADCAST)

    assert found == (None if broadcast is None else ip_address(broadcast).packed)


@given(
    prefix=prefixes,
    table=st.integers(1, 2**32 - 1),
    metric=st.integers(1, 2**32 - 1),
    ifindex=st.none() | st.integers(1, 2**31 - 1),
    mtu_bytes=st.none() | st.integers(1, 65535),
)
def test_a_route_is_read_back_as_it_was_put(
    prefix: Prefix, table: int, metric: int, ifindex: int | None, mtu_bytes: int | None
) -> None:
    gateway, source = prefix[0], prefix[-1]
    sent = wire.route(
        prefix,
        ifindex=ifindex,
        table=table,
        gateway=gateway,
        source=source,
        metric=metric,
        mtu_bytes=mtu_bytes,
    )
    found = wire.parse_route(received(sent))

    length = 4 if prefix.version == 4 else 16
    assert (found.destination or bytes(length)) == prefix.network_address.packed
    assert found.prefix_length == prefix.prefixlen
    assert (found.table, found.metric) == (table, metric)
    assert (found.gateway, found.source) == (gateway.packed, source.packed)
    assert (found.ifindex, found.mtu_bytes) == (ifindex or 0, mtu_bytes or 0)
    assert found.type == wire.RTN_UNICAST
    assert sent.what.startswith(f"route {prefix} via {gateway}")


@pytest.mark.parametrize(
    ("prefix", "gateway", "unreachable", "scope"),
    [
        ("10.0.0.0/8", None, False, wire.RT_SCOPE_LINK),
        ("10.0.0.0/8", "10.0.0.1", False, wire.RT_SCOPE_UNIVERSE),
        ("10.0.0.0/8", None, True, wire.RT_SCOPE_UNIVERSE),
        ("fd00::/8", None, False, wire.RT_SCOPE_UNIVERSE),
    ],
)
def test_an_ipv4_route_without_gateway_is_on_link(
    prefix: str, gateway: str | None, unreachable: bool, scope: int
) -> None:
    sent = wire.route(
        ip_network(prefix),
        ifindex=None if unreachable else 1,
        gateway=ip_address(gateway) if gateway else None,
        unreachable=unreachable,
    )
    assert received(sent).body[6] == scope


@given(st.sampled_from([4, 6]), u32, st.integers(1, 2**32 - 1), st.booleans())
def test_a_rule_is_read_back_as_it_was_put(
    version: int, priority: int, table: int, delete: bool
) -> None:
    sent = wire.rule(version, priority=priority, table=table, delete=delete)
    found = wire.parse_rule(received(sent))

    assert (found.version, found.priority, found.table) == (version, priority, table)


@given(macs)
def test_a_mac_is_read_back_as_it_was_written(mac: str) -> None:
    assert wire.mac_text(wire.parse_mac(mac)) == mac
    assert wire.parse_mac(mac.upper()) == wire.parse_mac(mac)


@pytest.mark.parametrize("text", ["", "00:11:22:33:44", "00:11:22:33:44:55:66", "zz:0:0:0:0:0"])
def test_what_is_no_mac_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        wire.parse_mac(text)


@given(macs, st.integers(68, 65535), u32, st.integers(1, 2**31 - 1))
def test_a_new_pair_says_everything_of_both_ends_at_once(
    mac: str, mtu_bytes: int, group: int, fd: int
) -> None:
    sent = wire.new_veth(
        ifname="lim0123456789ab",
        mac=mac,
        mtu_bytes=mtu_bytes,
        group=group,
        master_ifindex=5,
        peer_ifname="eth0",
        peer_mac=mac,
        peer_netns_fd=fd,
    )
    here = wire.parse_link(received(sent))
    info = wire.parse_attrs(received(sent).body, 16)[wire.IFLA_LINKINFO]
    data = wire.parse_attrs(memoryview(info), 0)[wire.IFLA_INFO_DATA]
    peer = wire.parse_attrs(memoryview(data), 0)[wire.VETH_INFO_PEER]
    there = wire.parse_link(wire.Message(wire.RTM_NEWLINK, 0, 0, memoryview(peer)))
    netns = wire.parse_attrs(memoryview(peer), 16)[wire.IFLA_NET_NS_FD]

    assert here.ifname == "lim0123456789ab"
    assert (here.kind, here.up, here.master_ifindex, here.group) == ("veth", True, 5, group)
    assert (there.ifname, there.up) == ("eth0", False)
    assert {(end.mac, end.mtu_bytes) for end in (here, there)} == {(mac, mtu_bytes)}
    assert struct.unpack("=I", netns) == (fd,)


@given(st.booleans(), st.booleans())
def test_settings_of_a_bridge_port_are_read_back_as_they_were_put(
    hairpin: bool, isolated: bool
) -> None:
    sent = wire.set_bridge_port(3, what="lim1", hairpin=hairpin, isolated=isolated)

    assert wire.parse_bridge_port(received(sent)) == wire.BridgePortInfo(3, hairpin, isolated)


def test_a_link_tells_its_group_before_the_rest_is_read() -> None:
    told = [received(wire.new_link(ifname="lim0", kind="bridge", group=group)) for group in (0, 77)]
    cut = wire.Message(wire.RTM_NEWLINK, 0, 0, told[1].body[:19])

    assert [wire.link_group(each) for each in (*told, cut)] == [0, 77, 0]


def test_a_link_that_is_no_port_has_no_settings_of_one() -> None:
    sent = wire.new_link(ifname="limpet0", kind="bridge")

    assert wire.parse_bridge_port(received(sent)) is None
