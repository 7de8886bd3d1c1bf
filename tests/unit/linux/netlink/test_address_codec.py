"""Messages of addresses, neighbours and FDB entries: what is encoded is what a parser reads."""

from __future__ import annotations

from ipaddress import ip_address, ip_interface

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.base.addresses import Address, InterfaceAddress
from limpet.linux.netlink import address_codec
from limpet.linux.netlink import codec as wire
from limpet.linux.netlink.codec import Message, Request
from tests.strategies import addresses, interfaces, macs, u32
from tests.unit.linux.netlink.as_received import received

MAC = "02:4c:00:00:04:02"


@given(interfaces, u32, st.booleans())
def test_an_address_is_read_back_as_it_was_put(
    address: InterfaceAddress, ifindex: int, prefix_route: bool
) -> None:
    ifindex &= 0x7FFFFFFF
    sent = received(
        address_codec.new_address(ifindex, address, on="eth0", prefix_route=prefix_route)
    )
    found = address_codec.parse_address(sent)

    assert (found.ifindex, found.packed) == (ifindex, address.packed)
    assert found.prefix_length == address.network.prefixlen
    assert address_codec.address_ifindex(sent) == ifindex
    assert bool(found.flags & address_codec.IFA_F_NOPREFIXROUTE) is not prefix_route
    # Without it, an IPv6 address cannot be used for a second or more.
    assert bool(found.flags & address_codec.IFA_F_NODAD) is (address.version == 6)


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
    sent = received(address_codec.new_address(1, ip_interface(address), on="eth0"))
    found = wire.parse_attrs(sent.body, 8).get(address_codec.IFA_BROADCAST)

    assert found == (None if broadcast is None else ip_address(broadcast).packed)


@given(st.integers(1, 2**31 - 1), macs, addresses)
def test_an_entry_is_permanent_and_the_devices_own(
    ifindex: int, mac: str, underlay: Address
) -> None:
    request = address_codec.put_fdb(ifindex, mac, underlay, on="limvx4")

    assert address_codec.parse_neighbour(received(request)) == address_codec.NeighbourInfo(
        wire.AF_BRIDGE, ifindex, underlay.packed, mac, permanent=True, usable=True
    )
    assert request.body[10] == address_codec.NTF_SELF
    assert request.flags == wire.CREATE | wire.REPLACE


@given(st.integers(1, 2**31 - 1), addresses, macs)
def test_a_neighbour_is_permanent(ifindex: int, address: Address, mac: str) -> None:
    request = address_codec.put_neighbour(ifindex, address, mac, on="limvx4")

    family = wire.AF_INET if address.version == 4 else wire.AF_INET6
    assert address_codec.parse_neighbour(received(request)) == address_codec.NeighbourInfo(
        family, ifindex, address.packed, mac, permanent=True, usable=True
    )


def test_a_neighbour_that_is_only_looked_for_is_not_usable() -> None:
    looked_for = address_codec.delete_neighbour(3, ip_address("10.244.2.0"), on="limvx4")

    info = address_codec.parse_neighbour(received(looked_for))

    assert (info.usable, info.permanent) == (False, False)


def test_what_the_kernel_tells_a_second_time_is_no_entry_that_lost_its_destination() -> None:
    def parsed(text: str) -> address_codec.NeighbourInfo:
        body = memoryview(bytes.fromhex(text))
        return address_codec.parse_neighbour(Message(wire.RTM_NEWNEIGH, 0, 0, body))

    # Both of one entry, as Linux 6.1 tells them.
    mac, destination, age = "0a000200024c000004990000", "08000100ac140202", "14000300" + "00" * 16
    entry = parsed("070000000500000080000201" + mac + destination + age)
    echo = parsed("070000000500000080000200" + mac)

    assert (entry.usable, entry.echo) == (True, False)
    assert (echo.usable, echo.echo) == (False, True)
    # Somebody has given it another way.
    assert not parsed("070000000500000080000201" + mac + age).echo


def test_an_entry_with_a_port_of_its_own_does_not_count_as_ours() -> None:
    request = address_codec.put_fdb(3, MAC, ip_address("192.0.2.2"), on="limvx4")
    port = wire.attr(address_codec.NDA_PORT, b"\x12\xb5")
    other = Request(request.type, request.flags, request.body + port)

    assert not address_codec.parse_neighbour(received(other)).permanent
