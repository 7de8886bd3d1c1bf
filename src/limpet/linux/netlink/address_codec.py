"""rtnetlink messages of addresses, neighbours and FDB entries: bytes <-> values, no sockets.

Source: include/uapi/linux/{if_addr,neighbour}.h, drivers/net/vxlan/vxlan_core.c.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from errno import ENOENT
from ipaddress import IPv4Interface, IPv6Interface

from limpet.base.addresses import Address, InterfaceAddress
from limpet.linux.netlink import codec as wire
from limpet.linux.netlink.codec import Message, Request, attr, attr_u32, number, parse_attrs

IFA_ADDRESS, IFA_LOCAL, IFA_BROADCAST, IFA_CACHEINFO, IFA_FLAGS = 1, 2, 4, 6, 8
IFA_F_NODAD, IFA_F_PERMANENT, IFA_F_NOPREFIXROUTE = 0x02, 0x80, 0x200
NDA_DST, NDA_LLADDR, NDA_CACHEINFO, NDA_PORT, NDA_VNI, NDA_IFINDEX = 1, 2, 3, 6, 7, 8
NUD_STALE, NUD_NOARP, NUD_PERMANENT = 0x04, 0x40, 0x80
NTF_SELF = 0x02

_IFADDR = struct.Struct("=BBBBI")
_CACHEINFO = struct.Struct("=IIII")
"""Preferred and valid for so many seconds; then when it was made, and changed."""
_FOR_EVER_S = 0xFFFFFFFF
_NDMSG = struct.Struct("=BxxxiHBB")


def new_address(
    ifindex: int,
    address: InterfaceAddress,
    *,
    on: str,
    prefix_route: bool = True,
    deprecated: bool = False,
) -> Request:
    """Adds (or keeps) an address; IPv6 without duplicate address detection, usable at once.

    `deprecated`: of IPv6, the kernel sends from it only where it is bound to (RFC 4862).
    """
    flags = IFA_F_PERMANENT
    flags |= IFA_F_NODAD if address.version == 6 else 0
    flags |= 0 if prefix_route else IFA_F_NOPREFIXROUTE
    length = address.network.prefixlen
    body = _IFADDR.pack(wire.family(address.version), length, flags & 0xFF, 0, ifindex)
    body += attr(IFA_LOCAL, address.packed) + attr(IFA_ADDRESS, address.packed)
    if address.version == 4 and length < 31:
        body += attr(IFA_BROADCAST, address.network.broadcast_address.packed)
    body += attr_u32(IFA_FLAGS, flags)
    if deprecated and address.version == 6:
        body += attr(IFA_CACHEINFO, _CACHEINFO.pack(0, _FOR_EVER_S, 0, 0))
    return Request(
        wire.RTM_NEWADDR, wire.CREATE | wire.REPLACE, body, ("address", address, "on", on)
    )


def delete_address(ifindex: int, address: InterfaceAddress, *, on: str) -> Request:
    body = _IFADDR.pack(wire.family(address.version), address.network.prefixlen, 0, 0, ifindex)
    body += attr(IFA_LOCAL, address.packed) + attr(IFA_ADDRESS, address.packed)
    return Request(wire.RTM_DELADDR, 0, body, ("address", address, "on", on))


def dump_addresses() -> Request:
    return Request(
        wire.RTM_GETADDR, wire.ROOT_MATCH, _IFADDR.pack(wire.AF_UNSPEC, 0, 0, 0, 0), ("addresses",)
    )


@dataclass(frozen=True, slots=True)
class AddressInfo:
    """An address of a link, packed (4 or 16 bytes, network order)."""

    ifindex: int
    packed: bytes
    prefix_length: int
    scope: int
    flags: int

    @property
    def interface(self) -> InterfaceAddress:
        kind = IPv4Interface if len(self.packed) == 4 else IPv6Interface
        return kind((self.packed, self.prefix_length))


def parse_address(message: Message) -> AddressInfo:
    _, length, _flags, scope, ifindex = _IFADDR.unpack_from(message.body)
    attrs = parse_attrs(message.body, _IFADDR.size)
    packed = attrs.get(IFA_LOCAL) or attrs.get(IFA_ADDRESS, b"")
    return AddressInfo(ifindex, packed, length, scope, number(attrs.get(IFA_FLAGS)))


def address_ifindex(message: Message) -> int:
    """Interface index of an address message, from its header alone."""
    return int(_IFADDR.unpack_from(message.body)[4])


def put_fdb(ifindex: int, mac: str, underlay: Address, *, on: str) -> Request:
    """Packets for `mac` go to `underlay`, wherever they went before."""
    body = _NDMSG.pack(wire.AF_BRIDGE, ifindex, NUD_PERMANENT, NTF_SELF, 0)
    body += attr(NDA_LLADDR, wire.parse_mac(mac)) + attr(NDA_DST, underlay.packed)
    return Request(
        wire.RTM_NEWNEIGH,
        wire.CREATE | wire.REPLACE,
        body,
        ("entry", mac, "to", underlay, "on", on),
    )


def delete_fdb(ifindex: int, mac: str, *, on: str) -> Request:
    body = _NDMSG.pack(wire.AF_BRIDGE, ifindex, 0, NTF_SELF, 0)
    body += attr(NDA_LLADDR, wire.parse_mac(mac))
    return Request(wire.RTM_DELNEIGH, 0, body, ("entry", mac, "on", on), (ENOENT,))


def put_neighbour(
    ifindex: int, address: Address, mac: str, *, on: str, permanent: bool = True
) -> Request:
    """Makes `mac` the link-layer address of `address`, whatever was known before.

    Not `permanent`: until the kernel has a reason to ask for it.
    """
    state = NUD_PERMANENT if permanent else NUD_STALE
    return _neighbour(
        wire.RTM_NEWNEIGH, ifindex, address, on, state, attr(NDA_LLADDR, wire.parse_mac(mac))
    )


def delete_neighbour(ifindex: int, address: Address, *, on: str) -> Request:
    return _neighbour(wire.RTM_DELNEIGH, ifindex, address, on)


def get_neighbour(ifindex: int, address: Address, *, on: str) -> Request:
    """Asks for what the kernel knows of one address."""
    return _neighbour(wire.RTM_GETNEIGH, ifindex, address, on)


def _neighbour(
    kind: int, ifindex: int, address: Address, on: str, state: int = 0, more: bytes = b""
) -> Request:
    body = _NDMSG.pack(wire.family(address.version), ifindex, state, 0, 0)
    body += attr(NDA_DST, address.packed) + more
    flags = wire.CREATE | wire.REPLACE if kind == wire.RTM_NEWNEIGH else 0
    ignored = (ENOENT,) if kind == wire.RTM_DELNEIGH else ()
    return Request(kind, flags, body, ("neighbour", address, "on", on), ignored)


def dump_fdb(ifindex: int) -> Request:
    return _dump_neighbours(wire.AF_BRIDGE, ifindex)


def dump_neighbours(ifindex: int) -> Request:
    """Asks for neighbours of both IP versions."""
    return _dump_neighbours(wire.AF_UNSPEC, ifindex)


def _dump_neighbours(of: int, ifindex: int) -> Request:
    body = _NDMSG.pack(of, 0, 0, 0, 0) + attr_u32(NDA_IFINDEX, ifindex)
    what = ("entries" if of == wire.AF_BRIDGE else "neighbours",)
    return Request(wire.RTM_GETNEIGH, wire.ROOT_MATCH, body, what)


@dataclass(frozen=True, slots=True)
class NeighbourInfo:
    """A neighbour, or with `family` wire.AF_BRIDGE an entry of a device's FDB."""

    family: int
    ifindex: int
    destination: bytes
    """A neighbour's address, or where an FDB entry's packets go; packed."""
    mac: str
    permanent: bool
    """For good, and with nothing beside the destination."""
    usable: bool
    """False: it only says that the address is looked for, or stands for a group."""
    echo: bool = False
    """A request for an FDB entry told a second time, without what the device made of it.

    Linux before 6.13. Source: rtnl_fdb_notify in net/core/rtc.
    """


def parse_neighbour(message: Message) -> NeighbourInfo:
    kind, ifindex, state, _flags, _type = _NDMSG.unpack_from(message.body)
    attrs = parse_attrs(message.body, _NDMSG.size)
    mac = attrs.get(NDA_LLADDR, b"")
    # An address of a group, which needs no asking; of an FDB entry it says nothing.
    group = state & NUD_NOARP and kind != wire.AF_BRIDGE
    own_way = any(kind in attrs for kind in (NDA_PORT, NDA_VNI, NDA_IFINDEX))
    return NeighbourInfo(
        kind,
        ifindex,
        attrs.get(NDA_DST, b""),
        wire.mac_text(mac),
        permanent=bool(state & NUD_PERMANENT) and not own_way,
        usable=len(mac) == 6 and NDA_DST in attrs and not group,
        # What a device tells of its entries has their age with it.
        echo=kind == wire.AF_BRIDGE and not attrs.keys() & {NDA_DST, NDA_CACHEINFO},
    )
