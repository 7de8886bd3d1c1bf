"""rtnetlink messages of the network between nodes: VXLAN devices, FDB, neighbours, peer routes.

Source: include/uapi/linux/{if_link,neighbour,rtnetlink}.h, drivers/net/vxlan/vxlan_core.c.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from errno import ENOENT, ESRCH

from limpet.base.addresses import Address, Prefix
from limpet.linux.netlink import codec as netlink
from limpet.linux.netlink.codec import Message, Request, attr, attr_text, attr_u32, nest

RTM_GETNEIGH = 30

IFLA_AF_SPEC, IFLA_INET6_ADDR_GEN_MODE = 26, 8
_ADDR_GEN_NONE = b"\x01"
IFLA_VXLAN_ID, IFLA_VXLAN_GROUP, IFLA_VXLAN_LINK, IFLA_VXLAN_LOCAL = 1, 2, 3, 4
IFLA_VXLAN_LEARNING, IFLA_VXLAN_PORT = 7, 15
IFLA_VXLAN_GROUP6, IFLA_VXLAN_LOCAL6, IFLA_VXLAN_COLLECT_METADATA = 16, 17, 25
NDA_CACHEINFO, NDA_PORT, NDA_VNI, NDA_IFINDEX = 3, 6, 7, 8
NUD_NOARP, NUD_PERMANENT = 0x40, 0x80
NTF_SELF = 0x02
RTA_VIA = 18
RTNH_F_ONLINK = 4

_RTMSG = struct.Struct("=BBBBBBBBI")
_NDMSG = struct.Struct("=BxxxiHBB")
_PORT = struct.Struct(">H")
_NEW = netlink.CREATE | netlink.REPLACE


# Devices.


@dataclass(frozen=True, slots=True)
class VxlanOptions:
    """What a VXLAN device was made with."""

    vni: int
    port: int
    plain: bool
    """It learns nothing, hangs on no link, has no destination or source address of its own."""


def new_vxlan(
    *, ifname: str, underlay_version: int, vni: int, port: int, mac: str, mtu_bytes: int, group: int
) -> Request:
    """A VXLAN device, down, that finds no destination but by entries, and makes no address up.

    It hangs on no link: it outlives its uplinks, and each packet leaves as routing says.
    """
    # The kernel takes the family of the underlay from an address, be it none at all.
    local: bytes = attr(IFLA_VXLAN_LOCAL6, bytes(16)) if underlay_version == 6 else b""
    body = b"".join(
        (
            _ifinfo(),
            attr_text(netlink.IFLA_IFNAME, ifname),
            attr(netlink.IFLA_ADDRESS, netlink.parse_mac(mac)),
            attr_u32(netlink.IFLA_MTU, mtu_bytes),
            attr_u32(netlink.IFLA_GROUP, group),
            nest(
                netlink.IFLA_LINKINFO,
                attr_text(netlink.IFLA_INFO_KIND, "vxlan"),
                nest(
                    netlink.IFLA_INFO_DATA,
                    attr_u32(IFLA_VXLAN_ID, vni),
                    attr(IFLA_VXLAN_PORT, _PORT.pack(port)),
                    attr(IFLA_VXLAN_LEARNING, b"\0"),
                    local,
                ),
            ),
        )
    )
    what = ("VXLAN device", ifname, f"(VNI {vni}, port {port})")
    return Request(netlink.RTM_NEWLINK, netlink.CREATE | netlink.EXCL, body, what)


def no_made_up_addresses(ifname: str) -> Request:
    """The device gets no link-local IPv6 address when it comes up."""
    body = _ifinfo() + attr_text(netlink.IFLA_IFNAME, ifname)
    mode = nest(netlink.AF_INET6, attr(IFLA_INET6_ADDR_GEN_MODE, _ADDR_GEN_NONE))
    return Request(netlink.RTM_SETLINK, 0, body + nest(IFLA_AF_SPEC, mode), ("link", ifname))


def _ifinfo() -> bytes:
    return bytes(16)


def parse_vxlan(message: Message) -> VxlanOptions | None:
    """Options of a link message's device; None when it is no VXLAN device.

    The IP version of the underlay is not among them: the kernel does not tell it.
    """
    attrs = netlink.parse_attrs(message.body, 16)
    info = netlink.parse_attrs(memoryview(attrs.get(netlink.IFLA_LINKINFO, b"")), 0)
    if info.get(netlink.IFLA_INFO_KIND) != b"vxlan\0":
        return None
    data = netlink.parse_attrs(memoryview(info.get(netlink.IFLA_INFO_DATA, b"")), 0)
    bound = (IFLA_VXLAN_LINK, IFLA_VXLAN_LEARNING, IFLA_VXLAN_COLLECT_METADATA)
    addressed = (IFLA_VXLAN_GROUP, IFLA_VXLAN_GROUP6, IFLA_VXLAN_LOCAL, IFLA_VXLAN_LOCAL6)
    return VxlanOptions(
        _number(data.get(IFLA_VXLAN_ID)),
        int.from_bytes(data.get(IFLA_VXLAN_PORT, b""), "big"),
        plain=not any(any(data.get(kind, b"")) for kind in (*bound, *addressed)),
    )


def _number(payload: bytes | None) -> int:
    return struct.unpack("=I", payload)[0] if payload is not None and len(payload) == 4 else 0


# Forwarding entries and neighbours.


def put_fdb(ifindex: int, mac: str, underlay: Address, *, on: str) -> Request:
    """Packets for `mac` go to `underlay`, wherever they went before."""
    body = _NDMSG.pack(netlink.AF_BRIDGE, ifindex, NUD_PERMANENT, NTF_SELF, 0)
    body += attr(netlink.NDA_LLADDR, netlink.parse_mac(mac)) + attr(
        netlink.NDA_DST, underlay.packed
    )
    return Request(netlink.RTM_NEWNEIGH, _NEW, body, ("entry", mac, "to", underlay, "on", on))


def delete_fdb(ifindex: int, mac: str, *, on: str) -> Request:
    body = _NDMSG.pack(netlink.AF_BRIDGE, ifindex, 0, NTF_SELF, 0)
    body += attr(netlink.NDA_LLADDR, netlink.parse_mac(mac))
    return Request(netlink.RTM_DELNEIGH, 0, body, ("entry", mac, "on", on), (ENOENT,))


def put_neighbour(ifindex: int, address: Address, mac: str, *, on: str) -> Request:
    """`mac` is the link-layer address of `address`, and stays it."""
    body = _NDMSG.pack(_family(address.version), ifindex, NUD_PERMANENT, 0, 0)
    body += attr(netlink.NDA_DST, address.packed)
    body += attr(netlink.NDA_LLADDR, netlink.parse_mac(mac))
    return Request(netlink.RTM_NEWNEIGH, _NEW, body, ("neighbour", address, "on", on))


def delete_neighbour(ifindex: int, address: Address, *, on: str) -> Request:
    body = _NDMSG.pack(_family(address.version), ifindex, 0, 0, 0)
    body += attr(netlink.NDA_DST, address.packed)
    return Request(netlink.RTM_DELNEIGH, 0, body, ("neighbour", address, "on", on), (ENOENT,))


def get_neighbour(ifindex: int, address: Address, *, on: str) -> Request:
    """Asks for what the kernel knows of one address."""
    body = _NDMSG.pack(_family(address.version), ifindex, 0, 0, 0)
    body += attr(netlink.NDA_DST, address.packed)
    return Request(RTM_GETNEIGH, 0, body, ("neighbour", address, "on", on))


def dump_fdb(ifindex: int) -> Request:
    return _dump_neighbours(netlink.AF_BRIDGE, ifindex)


def dump_neighbours(ifindex: int) -> Request:
    """Of both IP versions."""
    return _dump_neighbours(netlink.AF_UNSPEC, ifindex)


def _dump_neighbours(family: int, ifindex: int) -> Request:
    body = _NDMSG.pack(family, 0, 0, 0, 0) + attr_u32(NDA_IFINDEX, ifindex)
    what = ("entries" if family == netlink.AF_BRIDGE else "neighbours",)
    return Request(RTM_GETNEIGH, netlink.ROOT_MATCH, body, what)


@dataclass(frozen=True, slots=True)
class NeighbourInfo:
    """A neighbour, or with `family` AF_BRIDGE an entry of a device's FDB."""

    family: int
    ifindex: int
    destination: bytes
    """Of a neighbour the address it is for, of an FDB entry where its packets go; packed."""
    mac: str
    permanent: bool
    """For good, and with nothing beside the destination."""
    usable: bool
    """False: it only says that the address is looked for, or stands for a group."""
    echo: bool = False
    """A request for an FDB entry told a second time, without what the device made of it.

    Linux before 6.13. Source: rtnl_fdb_notify in net/core/rtnetlink.c.
    """


def parse_neighbour(message: Message) -> NeighbourInfo:
    family, ifindex, state, _flags, _type = _NDMSG.unpack_from(message.body)
    attrs = netlink.parse_attrs(message.body, _NDMSG.size)
    mac = attrs.get(netlink.NDA_LLADDR, b"")
    # An address of a group, which needs no asking; of an FDB entry it says nothing.
    group = state & NUD_NOARP and family != netlink.AF_BRIDGE
    own_way = any(kind in attrs for kind in (NDA_PORT, NDA_VNI, NDA_IFINDEX))
    return NeighbourInfo(
        family,
        ifindex,
        attrs.get(netlink.NDA_DST, b""),
        netlink.mac_text(mac),
        permanent=bool(state & NUD_PERMANENT) and not own_way,
        usable=len(mac) == 6 and netlink.NDA_DST in attrs and not group,
        # What a device tells of its entries has their age with it.
        echo=family == netlink.AF_BRIDGE and not attrs.keys() & {netlink.NDA_DST, NDA_CACHEINFO},
    )


# Routes to peers.


@dataclass(frozen=True, slots=True)
class PeerRouteFields:
    """A route through a next hop that counts as on the link, whatever the link's subnets."""

    ifindex: int
    gateway: Address
    source: Address
    metric: int
    mtu_bytes: int
    table: int
    protocol: int


def put_peer_route(prefix: Prefix, fields: PeerRouteFields, *, on: str) -> Request:
    """Adds it, or puts it in the place of one of the same prefix, table and metric."""
    body = _RTMSG.pack(
        _family(prefix.version),
        prefix.prefixlen,
        0,
        0,
        netlink.RT_TABLE_COMPAT,
        fields.protocol,
        netlink.RT_SCOPE_UNIVERSE,
        netlink.RTN_UNICAST,
        RTNH_F_ONLINK,
    )
    gateway = fields.gateway
    body += b"".join(
        (
            attr(netlink.RTA_DST, prefix.network_address.packed) if prefix.prefixlen else b"",
            attr_u32(netlink.RTA_TABLE, fields.table),
            attr_u32(netlink.RTA_OIF, fields.ifindex),
            attr(netlink.RTA_GATEWAY, gateway.packed)
            if gateway.version == prefix.version
            else attr(RTA_VIA, struct.pack("=H", netlink.AF_INET6) + gateway.packed),
            attr(netlink.RTA_PREFSRC, fields.source.packed),
            attr_u32(netlink.RTA_PRIORITY, fields.metric),
            nest(netlink.RTA_METRICS, attr_u32(netlink.RTAX_MTU, fields.mtu_bytes)),
        )
    )
    about = ("route", prefix, "via", gateway, "dev", on, "table", fields.table)
    return Request(netlink.RTM_NEWROUTE, _NEW, body, about)


def delete_peer_route(prefix: Prefix, *, metric: int, table: int, protocol: int) -> Request:
    """Only one of this origin: what another put in its place stays."""
    body = _RTMSG.pack(
        _family(prefix.version),
        prefix.prefixlen,
        0,
        0,
        netlink.RT_TABLE_COMPAT,
        protocol,
        netlink.RT_SCOPE_NOWHERE,
        0,
        0,
    )
    body += attr(netlink.RTA_DST, prefix.network_address.packed) if prefix.prefixlen else b""
    body += attr_u32(netlink.RTA_TABLE, table) + attr_u32(netlink.RTA_PRIORITY, metric)
    return Request(netlink.RTM_DELROUTE, 0, body, ("route", prefix, "table", table), (ESRCH,))


def dump_table(version: int, table: int, protocol: int) -> Request:
    """Routes of one table and origin. The kernel answers ENOENT where there is no such table."""
    body = _RTMSG.pack(
        _family(version), 0, 0, 0, netlink.RT_TABLE_COMPAT, protocol, 0, netlink.RTN_UNICAST, 0
    )
    body += attr_u32(netlink.RTA_TABLE, table)
    return Request(netlink.RTM_GETROUTE, netlink.ROOT_MATCH, body, ("routes of table", table))


def parse_via(message: Message) -> bytes:
    """The next hop of a route, packed, of whatever version; empty when there is none."""
    attrs = netlink.parse_attrs(message.body, _RTMSG.size)
    return attrs.get(netlink.RTA_GATEWAY) or attrs.get(RTA_VIA, b"")[2:]


def _family(version: int) -> int:
    return netlink.AF_INET if version == 4 else netlink.AF_INET6
