"""rtnetlink messages of links and bridge ports: bytes <-> values, no sockets.

Source: include/uapi/linux/{rtnetlink,if_link,if}.h.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from errno import ENODEV

from limpet.linux.netlink import codec as wire
from limpet.linux.netlink.codec import (
    Message,
    Request,
    attr,
    attr_text,
    attr_u32,
    nest,
    number,
    parse_attrs,
    text,
)

OUTWARD_KINDS = frozenset(
    {
        *("", "bond", "dsa", "hsr", "ipoib", "ipvlan", "macvlan", "ppp", "rmnet", "team", "vlan"),
        "wwan",
    }
)
"""Kinds of links that lead out of the machine; the empty one is of hardware, and a port of a switch
chip is "dsa" from Linux 6.1 on. By such a link packets come in without any address of its own, too;
what sends into a veth or a tunnel may be a pod of others."""
IFF_UP, IFF_LOOPBACK, IFF_RUNNING, IFF_PROMISC = 0x1, 0x8, 0x40, 0x100
IFLA_ADDRESS, IFLA_IFNAME, IFLA_MTU, IFLA_MASTER, IFLA_OPERSTATE = 1, 3, 4, 10, 16
IFLA_PROTINFO, IFLA_LINKINFO, IFLA_IFALIAS, IFLA_GROUP, IFLA_NET_NS_FD = 12, 18, 20, 27, 28
IFLA_INFO_KIND, IFLA_INFO_DATA = 1, 2
IFLA_BRPORT_MODE, IFLA_BRPORT_ISOLATED = 4, 33
_IFLA_BR_MULTI_BOOLOPT = 46
_BOOLOPT = struct.Struct("=II")
_NO_LINK_LOCAL_LEARNING = 1
VETH_INFO_PEER = 1
_IFLA_STATS64, _IFLA_AF_SPEC, _IFLA_INET6_ADDR_GEN_MODE = 23, 26, 8
_ADDR_GEN_NONE = b"\x01"

_IFINFO = struct.Struct("=BxHiII")
_ATTR = struct.Struct("=HH")
_PACKETS = struct.Struct("=QQ")
"""The first fields of rtnl_link_stats64."""
_OPERSTATE_UP = b"\x06"
"""Source: IF_OPER_UP in include/uapi/linux/if.h."""
_WITHOUT_COUNTERS = attr_u32(29, 1 << 3)
"""IFLA_EXT_MASK with RTEXT_FILTER_SKIP_STATS: an answer of a third of the size."""


def _ifinfo(
    *, ifindex: int = 0, flags: int = 0, change: int = 0, family: int = wire.AF_UNSPEC
) -> bytes:
    return _IFINFO.pack(family, 0, ifindex, flags, change)


def new_link(
    *,
    ifname: str,
    kind: str,
    mac: str | None = None,
    mtu_bytes: int | None = None,
    group: int = 0,
    master_ifindex: int | None = None,
    up: bool = False,
    options: bytes = b"",
    about: tuple[object, ...] = (),
) -> Request:
    """A link of `kind` that must not be there yet. `options`: attributes of this kind alone."""
    flags = IFF_UP if up else 0
    data = nest(IFLA_INFO_DATA, options) if options else b""
    body = b"".join(
        (
            _ifinfo(flags=flags, change=flags),
            attr_text(IFLA_IFNAME, ifname),
            attr(IFLA_ADDRESS, wire.parse_mac(mac)) if mac else b"",
            b"" if mtu_bytes is None else attr_u32(IFLA_MTU, mtu_bytes),
            attr_u32(IFLA_GROUP, group) if group else b"",
            b"" if master_ifindex is None else attr_u32(IFLA_MASTER, master_ifindex),
            nest(IFLA_LINKINFO, attr_text(IFLA_INFO_KIND, kind), data),
        )
    )
    return Request(wire.RTM_NEWLINK, wire.CREATE | wire.EXCL, body, about or (kind, ifname))


def new_veth(
    *,
    ifname: str,
    mac: str,
    mtu_bytes: int,
    group: int,
    master_ifindex: int | None,
    peer_ifname: str,
    peer_mac: str,
    peer_netns_fd: int,
) -> Request:
    """A veth pair: this end up and a port of the bridge, the other in the pod's namespace, down."""
    peer = _ifinfo() + b"".join(
        (
            attr_text(IFLA_IFNAME, peer_ifname),
            attr(IFLA_ADDRESS, wire.parse_mac(peer_mac)),
            attr_u32(IFLA_MTU, mtu_bytes),
            attr_u32(IFLA_NET_NS_FD, peer_netns_fd),
        )
    )
    return new_link(
        ifname=ifname,
        kind="veth",
        mac=mac,
        mtu_bytes=mtu_bytes,
        group=group,
        master_ifindex=master_ifindex,
        up=True,
        options=nest(VETH_INFO_PEER, peer),
        about=("link", ifname, "with", peer_ifname, "in the pod"),
    )


def set_link(
    ifindex: int,
    *,
    what: str,
    up: bool | None = None,
    promisc: bool | None = None,
    ifname: str | None = None,
    mac: str | None = None,
    mtu_bytes: int | None = None,
    master_ifindex: int | None = None,
    group: int | None = None,
    alias: str | None = None,
    ignore_errno: tuple[int, ...] = (),
) -> Request:
    """Changes to one link; None leaves as it is. `master_ifindex` 0 takes it out of its bridge.

    `ifname` is a new name, or the link's name where `ifindex` is 0.
    """
    flags = change = 0
    if up is not None:
        change |= IFF_UP
        flags |= IFF_UP if up else 0
    if promisc is not None:
        change |= IFF_PROMISC
        flags |= IFF_PROMISC if promisc else 0
    body = b"".join(
        (
            _ifinfo(ifindex=ifindex, flags=flags, change=change),
            b"" if ifname is None else attr_text(IFLA_IFNAME, ifname),
            b"" if mac is None else attr(IFLA_ADDRESS, wire.parse_mac(mac)),
            b"" if mtu_bytes is None else attr_u32(IFLA_MTU, mtu_bytes),
            b"" if master_ifindex is None else attr_u32(IFLA_MASTER, master_ifindex),
            b"" if group is None else attr_u32(IFLA_GROUP, group),
            b"" if alias is None else attr_text(IFLA_IFALIAS, alias),
        )
    )
    return Request(wire.RTM_SETLINK, 0, body, (what,), ignore_errno)


def set_bridge_port(ifindex: int, *, what: str, hairpin: bool, isolated: bool) -> Request:
    """Source: br_setport in net/bridge/br_netlink.c."""
    protinfo = nest(
        IFLA_PROTINFO,
        attr(IFLA_BRPORT_MODE, bytes([hairpin])),
        attr(IFLA_BRPORT_ISOLATED, bytes([isolated])),
    )
    body = _ifinfo(ifindex=ifindex, family=wire.AF_BRIDGE) + protinfo
    return Request(wire.RTM_SETLINK, 0, body, (what,))


def learn_no_link_local(ifname: str) -> Request:
    """The bridge learns no MAC from frames that it keeps to itself; no chain of nftables sees all
    of those. An older kernel than Linux 5.0 takes no notice.

    Source: br_handle_frame in net/bridge/br_input.c.
    """
    options = attr(
        _IFLA_BR_MULTI_BOOLOPT, _BOOLOPT.pack(_NO_LINK_LOCAL_LEARNING, _NO_LINK_LOCAL_LEARNING)
    )
    info = attr_text(IFLA_INFO_KIND, "bridge") + nest(IFLA_INFO_DATA, options)
    body = _ifinfo() + attr_text(IFLA_IFNAME, ifname) + nest(IFLA_LINKINFO, info)
    return Request(wire.RTM_NEWLINK, 0, body, ("bridge", ifname))


def no_made_up_addresses(ifname: str) -> Request:
    """The device gets no link-local IPv6 address when it comes up."""
    mode = nest(wire.AF_INET6, attr(_IFLA_INET6_ADDR_GEN_MODE, _ADDR_GEN_NONE))
    body = _ifinfo() + attr_text(IFLA_IFNAME, ifname) + nest(_IFLA_AF_SPEC, mode)
    return Request(wire.RTM_SETLINK, 0, body, ("link", ifname))


def get_link(ifname: str, *, counters: bool = False) -> Request:
    body = _ifinfo() + attr_text(IFLA_IFNAME, ifname) + (b"" if counters else _WITHOUT_COUNTERS)
    return Request(wire.RTM_GETLINK, 0, body, ("link", ifname))


def dump_links() -> Request:
    return Request(wire.RTM_GETLINK, wire.ROOT_MATCH, _ifinfo(), ("links",))


def dump_bridge_ports() -> Request:
    return Request(
        wire.RTM_GETLINK, wire.ROOT_MATCH, _ifinfo(family=wire.AF_BRIDGE), ("bridge ports",)
    )


def delete_link(ifindex: int, *, what: str, ignore_errno: tuple[int, ...] = ()) -> Request:
    return Request(wire.RTM_DELLINK, 0, _ifinfo(ifindex=ifindex), (what,), ignore_errno)


def delete_link_group(group: int) -> Request:
    """Deletes every link of the group in one go: one RCU grace period for all of them.

    An empty group is fine.

    Source: rtnl_group_dellink in net/core/rtnetlink.c.
    """
    return Request(
        wire.RTM_DELLINK,
        0,
        _ifinfo() + attr_u32(IFLA_GROUP, group),
        ("link group", group),
        (ENODEV,),
    )


@dataclass(frozen=True, slots=True)
class LinkInfo:
    """A link as the kernel reports it."""

    ifindex: int
    ifname: str
    flags: int
    mac: str
    mtu_bytes: int
    master_ifindex: int
    group: int
    kind: str
    alias: str
    learns_link_local: bool = False
    """A bridge that learns MACs from frames that it keeps to itself (LLDP and so on)."""

    @property
    def up(self) -> bool:
        return bool(self.flags & IFF_UP)


def parse_link(message: Message) -> LinkInfo:
    _family, _type, ifindex, flags, _change = _IFINFO.unpack_from(message.body)
    attrs = parse_attrs(message.body, _IFINFO.size)
    info = parse_attrs(memoryview(attrs.get(IFLA_LINKINFO, b"")), 0)
    kind = text(info.get(IFLA_INFO_KIND))
    return LinkInfo(
        ifindex=ifindex,
        ifname=text(attrs.get(IFLA_IFNAME)),
        flags=flags,
        mac=wire.mac_text(attrs.get(IFLA_ADDRESS, b"")),
        mtu_bytes=number(attrs.get(IFLA_MTU)),
        master_ifindex=number(attrs.get(IFLA_MASTER)),
        group=number(attrs.get(IFLA_GROUP)),
        kind=kind,
        alias=text(attrs.get(IFLA_IFALIAS)),
        learns_link_local=kind == "bridge" and _learns_link_local(info.get(IFLA_INFO_DATA, b"")),
    )


def _learns_link_local(options: bytes) -> bool:
    """A kernel before Linux 5.0 does not say."""
    told = parse_attrs(memoryview(options), 0).get(_IFLA_BR_MULTI_BOOLOPT, b"")
    return len(told) == _BOOLOPT.size and not _BOOLOPT.unpack(told)[0] & _NO_LINK_LOCAL_LEARNING


def parse_link_options(message: Message, kind: str) -> dict[int, bytes] | None:
    """What a link of that kind was made with, by attribute; None when it is of another kind."""
    attrs = parse_attrs(message.body, _IFINFO.size)
    info = parse_attrs(memoryview(attrs.get(IFLA_LINKINFO, b"")), 0)
    if text(info.get(IFLA_INFO_KIND)) != kind:
        return None
    return parse_attrs(memoryview(info.get(IFLA_INFO_DATA, b"")), 0)


def parse_link_packets(message: Message) -> tuple[int, int]:
    """Packets that were received and sent; zeros if the message does not say."""
    stats = parse_attrs(message.body, _IFINFO.size).get(_IFLA_STATS64, b"")
    return _PACKETS.unpack_from(stats) if len(stats) >= _PACKETS.size else (0, 0)


def link_ifindex(message: Message) -> int:
    """Interface index of a link message, from its header alone."""
    return int(_IFINFO.unpack_from(message.body)[2])


def link_is_operational(message: Message) -> bool:
    """Whether the link passes packets: more than being up, and said some time after."""
    return parse_attrs(message.body, _IFINFO.size).get(IFLA_OPERSTATE) == _OPERSTATE_UP


def link_is_down(message: Message) -> bool:
    """Whether a link message's link is down, from its header alone."""
    return not _IFINFO.unpack_from(message.body)[3] & IFF_UP


def link_group(message: Message) -> int:
    """Group of a link message, read no further than that; 0: the default, or it does not say."""
    body, offset = message.body, _IFINFO.size
    while offset + 8 <= len(body):
        length, kind = _ATTR.unpack_from(body, offset)
        if kind == IFLA_GROUP:
            return number(bytes(body[offset + 4 : offset + 8]))
        offset += (max(length, 4) + 3) & ~3
    return 0


@dataclass(frozen=True, slots=True)
class BridgePortInfo:
    """Settings of one bridge port."""

    ifindex: int
    hairpin: bool
    isolated: bool


def parse_bridge_port(message: Message) -> BridgePortInfo | None:
    """None for messages about something that is no port (the bridge itself)."""
    ifindex = _IFINFO.unpack_from(message.body)[2]
    protinfo = parse_attrs(message.body, _IFINFO.size).get(IFLA_PROTINFO)
    if protinfo is None:
        return None
    port = parse_attrs(memoryview(protinfo), 0)
    return BridgePortInfo(
        ifindex,
        hairpin=any(port.get(IFLA_BRPORT_MODE, b"")),
        isolated=any(port.get(IFLA_BRPORT_ISOLATED, b"")),
    )
