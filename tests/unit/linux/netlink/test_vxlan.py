"""Messages of the network between nodes: what is encoded is what a parser of the same reads."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from limpet.linux.netlink import address_codec, link_codec, route_codec, vxlan
from limpet.linux.netlink import codec as netlink
from limpet.linux.netlink.codec import Message, Request
from tests.unit.linux.netlink.as_received import received

MAC = "02:4c:00:00:04:02"


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

    link = link_codec.parse_link(message)
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
            link_codec.IFLA_LINKINFO,
            netlink.attr_text(link_codec.IFLA_INFO_KIND, "vxlan"),
            netlink.nest(link_codec.IFLA_INFO_DATA, netlink.attr(kind, payload)),
        )
        message = received(Request(netlink.RTM_NEWLINK, 0, bytes(16) + info))
        options = vxlan.parse_vxlan(message)
        assert options is not None
        assert not options.plain


def test_another_kind_of_link_has_no_vxlan_options() -> None:
    assert vxlan.parse_vxlan(received(link_codec.new_link(ifname="b", kind="bridge"))) is None
    assert vxlan.parse_vxlan(received(link_codec.get_link("b"))) is None


@given(st.binary(max_size=200))
def test_garbage_is_read_without_an_error(garbage: bytes) -> None:
    message = Message(0, 0, 0, memoryview(bytes(16) + garbage))

    vxlan.parse_vxlan(message)
    address_codec.parse_neighbour(message)
    route_codec.parse_route(message)
