"""Messages of links and bridge ports: what is encoded is what a parser of the same reads."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from limpet.linux.netlink import codec as wire
from limpet.linux.netlink import link_codec
from tests.strategies import macs, u32
from tests.unit.linux.netlink.as_received import received


@given(macs, st.integers(68, 65535), u32, st.integers(1, 2**31 - 1))
def test_a_new_pair_says_everything_of_both_ends_at_once(
    mac: str, mtu_bytes: int, group: int, fd: int
) -> None:
    sent = link_codec.new_veth(
        ifname="lim0123456789ab",
        mac=mac,
        mtu_bytes=mtu_bytes,
        group=group,
        master_ifindex=5,
        peer_ifname="eth0",
        peer_mac=mac,
        peer_netns_fd=fd,
    )
    here = link_codec.parse_link(received(sent))
    info = wire.parse_attrs(received(sent).body, 16)[link_codec.IFLA_LINKINFO]
    data = wire.parse_attrs(memoryview(info), 0)[link_codec.IFLA_INFO_DATA]
    peer = wire.parse_attrs(memoryview(data), 0)[link_codec.VETH_INFO_PEER]
    there = link_codec.parse_link(wire.Message(wire.RTM_NEWLINK, 0, 0, memoryview(peer)))
    netns = wire.parse_attrs(memoryview(peer), 16)[link_codec.IFLA_NET_NS_FD]

    assert here.ifname == "lim0123456789ab"
    assert (here.kind, here.up, here.master_ifindex, here.group) == ("veth", True, 5, group)
    assert (there.ifname, there.up) == ("eth0", False)
    assert {(end.mac, end.mtu_bytes) for end in (here, there)} == {(mac, mtu_bytes)}
    assert struct.unpack("=I", netns) == (fd,)


@given(st.booleans(), st.booleans())
def test_settings_of_a_bridge_port_are_read_back_as_they_were_put(
    hairpin: bool, isolated: bool
) -> None:
    sent = link_codec.set_bridge_port(3, what="lim1", hairpin=hairpin, isolated=isolated)

    assert link_codec.parse_bridge_port(received(sent)) == link_codec.BridgePortInfo(
        3, hairpin, isolated
    )


def test_a_link_tells_its_group_before_the_rest_is_read() -> None:
    told = [
        received(link_codec.new_link(ifname="lim0", kind="bridge", group=group))
        for group in (0, 77)
    ]
    cut = wire.Message(wire.RTM_NEWLINK, 0, 0, told[1].body[:19])

    assert [link_codec.link_group(each) for each in (*told, cut)] == [0, 77, 0]


def test_a_link_that_is_no_port_has_no_settings_of_one() -> None:
    sent = link_codec.new_link(ifname="limpet0", kind="bridge")

    assert link_codec.parse_bridge_port(received(sent)) is None
