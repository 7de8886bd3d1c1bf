"""Messages of the network between nodes: what is encoded is what a parser of the same reads."""

from __future__ import annotations

from ipaddress import ip_address

from hypothesis import given
from hypothesis import strategies as st

from limpet.base.addresses import Address, Prefix
from limpet.linux.netlink import codec as netlink
from limpet.linux.netlink import vxlan
from limpet.linux.netlink.codec import Message, Request
from tests.strategies import addresses, macs, prefixes

MAC = "02:4c:00:00:04:02"


def received(request: Request) -> Message:
    """The request as a peer would receive it."""
    (message,) = netlink.parse_messages(netlink.frame(request, 7, ack=False))
    return message


@given(st.sampled_from([4, 6]), st.integers(0, 2**24 - 1), st.integers(1, 65535))
def test_a_device_is_asked_for_as_it_is_read(version: int, vni: int, port: int) -> None:
    message = received(
        vxlan.new_vxlan(
            ifname="limvx4",
            underlay_version=version,
            vni=vni,
            port=port,
            mac=MAC,
            mtu_bytes=1450,
            group=5,
        )
    )

    link = netlink.parse_link(message)
    assert (link.ifname, link.kind, link.mac) == ("limvx4", "vxlan", MAC)
    assert (link.mtu_bytes, link.group, link.up) == (1450, 5, False)
    assert vxlan.parse_vxlan(message) == vxlan.VxlanOptions(vni, port, plain=True)


def test_a_device_that_learns_or_is_bound_is_not_plain() -> None:
    for kind, payload in (
        (vxlan.IFLA_VXLAN_LEARNING, b"\1"),
        (vxlan.IFLA_VXLAN_LINK, b"\2\0\0\0"),
        (vxlan.IFLA_VXLAN_LOCAL, b"\xc0\0\2\1"),
        (vxlan.IFLA_VXLAN_GROUP6, bytes(15) + b"\1"),
        (vxlan.IFLA_VXLAN_COLLECT_METADATA, b"\1"),
    ):
        info = netlink.nest(
            netlink.IFLA_LINKINFO,
            netlink.attr_text(netlink.IFLA_INFO_KIND, "vxlan"),
            netlink.nest(netlink.IFLA_INFO_DATA, netlink.attr(kind, payload)),
        )
        message = received(Request(netlink.RTM_NEWLINK, 0, bytes(16) + info))
        options = vxlan.parse_vxlan(message)
        assert options is not None
        assert not options.plain


def test_another_kind_of_link_has_no_vxlan_options() -> None:
    assert vxlan.parse_vxlan(received(netlink.new_link(ifname="b", kind="bridge"))) is None
    assert vxlan.parse_vxlan(received(netlink.get_link("b"))) is None


@given(st.integers(1, 2**31 - 1), macs, addresses)
def test_an_entry_is_permanent_and_the_devices_own(
    ifindex: int, mac: str, underlay: Address
) -> None:
    request = vxlan.put_fdb(ifindex, mac, underlay, on="limvx4")

    assert vxlan.parse_neighbour(received(request)) == vxlan.NeighbourInfo(
        netlink.AF_BRIDGE, ifindex, underlay.packed, mac, permanent=True, usable=True
    )
    assert request.body[10] == vxlan.NTF_SELF
    assert request.flags == netlink.CREATE | netlink.REPLACE


@given(st.integers(1, 2**31 - 1), addresses, macs)
def test_a_neighbour_is_permanent(ifindex: int, address: Address, mac: str) -> None:
    request = vxlan.put_neighbour(ifindex, address, mac, on="limvx4")

    family = netlink.AF_INET if address.version == 4 else netlink.AF_INET6
    assert vxlan.parse_neighbour(received(request)) == vxlan.NeighbourInfo(
        family, ifindex, address.packed, mac, permanent=True, usable=True
    )


def test_a_neighbour_that_is_only_looked_for_is_not_usable() -> None:
    looked_for = vxlan.delete_neighbour(3, ip_address("10.244.2.0"), on="limvx4")

    info = vxlan.parse_neighbour(received(looked_for))

    assert (info.usable, info.permanent) == (False, False)


def test_what_the_kernel_tells_a_second_time_is_no_entry_that_lost_its_destination() -> None:
    def parsed(text: str) -> vxlan.NeighbourInfo:
        body = memoryview(bytes.fromhex(text))
        return vxlan.parse_neighbour(Message(netlink.RTM_NEWNEIGH, 0, 0, body))

    # Both of one entry, as Linux 6.1 tells them.
    mac, destination, age = "0a000200024c000004990000", "08000100ac140202", "14000300" + "00" * 16
    entry = parsed("070000000500000080000201" + mac + destination + age)
    echo = parsed("070000000500000080000200" + mac)

    assert (entry.usable, entry.echo) == (True, False)
    assert (echo.usable, echo.echo) == (False, True)
    # Somebody has given it another way.
    assert not parsed("070000000500000080000201" + mac + age).echo


def test_an_entry_with_a_port_of_its_own_does_not_count_as_ours() -> None:
    request = vxlan.put_fdb(3, MAC, ip_address("192.0.2.2"), on="limvx4")
    port = netlink.attr(vxlan.NDA_PORT, b"\x12\xb5")
    other = Request(request.type, request.flags, request.body + port)

    assert not vxlan.parse_neighbour(received(other)).permanent


@given(prefixes, addresses, addresses, st.integers(1, 2**32 - 1), st.integers(68, 65535))
def test_a_route_to_a_peer_is_read_as_it_is_put(
    prefix: Prefix, gateway: Address, source: Address, metric: int, mtu_bytes: int
) -> None:
    fields = vxlan.PeerRouteFields(4, gateway, source, metric, mtu_bytes, 5148, 148)

    message = received(vxlan.put_peer_route(prefix, fields, on="eth0"))

    info = netlink.parse_route(message)
    assert (info.table, info.protocol, info.type) == (5148, 148, netlink.RTN_UNICAST)
    assert (info.ifindex, info.metric, info.mtu_bytes) == (4, metric, mtu_bytes)
    assert (info.prefix_length, info.source) == (prefix.prefixlen, source.packed)
    assert info.destination == (prefix.network_address.packed if prefix.prefixlen else b"")
    assert vxlan.parse_via(message) == gateway.packed
    assert message.body[8] == vxlan.RTNH_F_ONLINK


@given(prefixes, st.integers(1, 2**32 - 1))
def test_a_route_is_deleted_by_prefix_metric_table_and_origin(prefix: Prefix, metric: int) -> None:
    request = vxlan.delete_peer_route(prefix, metric=metric, table=5148, protocol=148)

    info = netlink.parse_route(received(request))

    assert (info.table, info.protocol, info.metric) == (5148, 148, metric)
    assert info.prefix_length == prefix.prefixlen
    assert info.ifindex == 0


@given(st.binary(max_size=200))
def test_garbage_is_read_without_an_error(garbage: bytes) -> None:
    message = Message(0, 0, 0, memoryview(bytes(16) + garbage))

    vxlan.parse_vxlan(message)
    vxlan.parse_neighbour(message)
    vxlan.parse_via(message)
