"""rtnetlink messages: bytes <-> values, no sockets.

A message is built without its sequence number (`frame` puts it in), so that encoders stay pure and
a caller may send several in one datagram. Integers are host-endian except addresses and ports.

Source: include/uapi/linux/{netlink,rtnetlink,if_link,if_addr,neighbour,fib_rules,pkt_sched}.h.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from errno import EEXIST, ENODEV

from limpet.base.addresses import Address, InterfaceAddress, Prefix

NLMSG_ERROR, NLMSG_DONE = 2, 3
RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK, RTM_SETLINK = 16, 17, 18, 19
RTM_NEWADDR, RTM_DELADDR, RTM_GETADDR = 20, 21, 22
RTM_NEWROUTE, RTM_DELROUTE, RTM_GETROUTE = 24, 25, 26
RTM_NEWNEIGH, RTM_DELNEIGH = 28, 29
RTM_NEWRULE, RTM_DELRULE, RTM_GETRULE = 32, 33, 34
RTM_NEWQDISC = 36
RTM_NEWTFILTER = 44

REQUEST, ACK, ROOT_MATCH = 0x1, 0x4, 0x300
REPLACE, EXCL, CREATE = 0x100, 0x200, 0x400
DUMP_INTERRUPTED = 0x10

AF_UNSPEC, AF_INET, AF_BRIDGE, AF_INET6 = 0, 2, 7, 10
IFF_UP, IFF_LOOPBACK, IFF_RUNNING, IFF_PROMISC = 0x1, 0x8, 0x40, 0x100

IFLA_ADDRESS, IFLA_IFNAME, IFLA_MTU, IFLA_MASTER, IFLA_OPERSTATE = 1, 3, 4, 10, 16
IFLA_PROTINFO, IFLA_LINKINFO, IFLA_IFALIAS, IFLA_GROUP, IFLA_NET_NS_FD = 12, 18, 20, 27, 28
IFLA_INFO_KIND, IFLA_INFO_DATA = 1, 2
IFLA_BRPORT_MODE, IFLA_BRPORT_ISOLATED = 4, 33
VETH_INFO_PEER = 1
IFA_ADDRESS, IFA_LOCAL, IFA_BROADCAST, IFA_FLAGS = 1, 2, 4, 8
IFA_F_NODAD, IFA_F_PERMANENT, IFA_F_NOPREFIXROUTE, IFA_F_TENTATIVE = 0x02, 0x80, 0x200, 0x40
RTA_DST, RTA_OIF, RTA_GATEWAY, RTA_PRIORITY, RTA_PREFSRC, RTA_METRICS, RTA_TABLE = (
    1,
    4,
    5,
    6,
    7,
    8,
    15,
)
RTAX_MTU, RTAX_ADVMSS = 2, 8
RTN_UNICAST, RTN_UNREACHABLE = 1, 7
RT_SCOPE_UNIVERSE, RT_SCOPE_LINK, RT_SCOPE_NOWHERE = 0, 253, 255
RT_TABLE_COMPAT, RT_TABLE_MAIN = 252, 254
RTPROT_STATIC = 4
NDA_DST, NDA_LLADDR = 1, 2
NUD_REACHABLE, NUD_STALE = 0x02, 0x04
FRA_PRIORITY, FRA_TABLE, FRA_PROTOCOL = 6, 15, 21
FR_ACT_TO_TBL = 1
TCA_KIND, TCA_OPTIONS = 1, 2

_NLMSG = struct.Struct("=IHHII")
_IFINFO = struct.Struct("=BxHiII")
_IFADDR = struct.Struct("=BBBBI")
_RTMSG = struct.Struct("=BBBBBBBBI")
_NDMSG = struct.Struct("=BxxxiHBB")
_TCMSG = struct.Struct("=BxxxiIII")
_ATTR = struct.Struct("=HH")
_U32 = struct.Struct("=I")
_NESTED = 0x8000
_OPERSTATE_UP = b"\x06"
"""Source: IF_OPER_UP in include/uapi/linux/if.h."""
_WITHOUT_COUNTERS = _ATTR.pack(8, 29) + _U32.pack(1 << 3)
"""IFLA_EXT_MASK with RTEXT_FILTER_SKIP_STATS: an answer of a third of the size."""


@dataclass(frozen=True, slots=True)
class Request:
    """One message without its sequence number."""

    type: int
    flags: int
    body: bytes
    about: tuple[object, ...] = ()
    """Words for error texts (`link`, `lim1234`), joined only when there is an error."""
    ignore_errno: tuple[int, ...] = ()
    """Errors that mean that the wanted state is there already."""

    @property
    def what(self) -> str:
        """Object of the request: `link lim1234`, `route 10.0.0.0/8 table 5148`."""
        return " ".join(map(str, self.about))


def attr(kind: int, payload: bytes) -> bytes:
    length = 4 + len(payload)
    return _ATTR.pack(length, kind) + payload + b"\0" * (-length & 3)


def attr_u32(kind: int, value: int) -> bytes:
    return _ATTR.pack(8, kind) + _U32.pack(value)


def attr_text(kind: int, value: str) -> bytes:
    return attr(kind, value.encode() + b"\0")


def nest(kind: int, *parts: bytes) -> bytes:
    return attr(kind | _NESTED, b"".join(parts))


def frame(request: Request, sequence: int, *, ack: bool) -> bytes:
    """The message as it is sent; without `ack` the kernel answers only a failure."""
    flags = request.flags | REQUEST | (ACK if ack else 0)
    body = request.body
    padding = b"\0" * (-len(body) & 3)
    return _NLMSG.pack(16 + len(body), request.type, flags, sequence, 0) + body + padding


@dataclass(frozen=True, slots=True)
class Message:
    """One received message."""

    type: int
    flags: int
    sequence: int
    body: memoryview


def parse_messages(datagram: bytes) -> Iterator[Message]:
    """The messages of one datagram; a truncated tail is dropped."""
    view = memoryview(datagram)
    offset = 0
    while offset + 16 <= len(view):
        length, kind, flags, sequence, _pid = _NLMSG.unpack_from(view, offset)
        if length < 16 or offset + length > len(view):
            return
        yield Message(kind, flags, sequence, view[offset + 16 : offset + length])
        offset += (length + 3) & ~3


def parse_attrs(body: memoryview, offset: int) -> dict[int, bytes]:
    """Attributes by kind (nested flag removed); of a repeated kind the last one counts."""
    found: dict[int, bytes] = {}
    end = len(body)
    while offset + 4 <= end:
        length, kind = _ATTR.unpack_from(body, offset)
        if length < 4 or offset + length > end:
            break
        found[kind & 0x3FFF] = bytes(body[offset + 4 : offset + length])
        offset += (length + 3) & ~3
    return found


def parse_error(message: Message) -> tuple[int, str]:
    """(errno, kernel's own words) of an NLMSG_ERROR or NLMSG_DONE; errno 0 means success.

    Source: Documentation/userspace-api/netlink/intro.rst, 'Extended ACK'; needs NETLINK_CAP_ACK.
    """
    errno = -struct.unpack_from("=i", message.body)[0]
    text = ""
    if message.type == NLMSG_ERROR and message.flags & 0x200:  # NLM_F_ACK_TLVS
        offset = 4 + 16
        if not message.flags & 0x100:  # not NLM_F_CAPPED: the request is repeated in full
            offset = 4 + ((struct.unpack_from("=I", message.body, 4)[0] + 3) & ~3)
        text = parse_attrs(message.body, offset).get(1, b"").rstrip(b"\0").decode(errors="replace")
    return errno, text


# Links.


def _ifinfo(*, ifindex: int = 0, flags: int = 0, change: int = 0, family: int = AF_UNSPEC) -> bytes:
    return _IFINFO.pack(family, 0, ifindex, flags, change)


def parse_mac(text: str) -> bytes:
    """Six bytes. Raises: ValueError."""
    octets = bytes.fromhex(text.replace(":", ""))
    if len(octets) != 6 or octets.hex(":") != text.lower():
        raise ValueError(f"not a MAC address: {text!r}")
    return octets


def mac_text(octets: bytes) -> str:
    return octets.hex(":")


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
            attr(IFLA_ADDRESS, parse_mac(peer_mac)),
            attr_u32(IFLA_MTU, mtu_bytes),
            attr_u32(IFLA_NET_NS_FD, peer_netns_fd),
        )
    )
    body = b"".join(
        (
            _ifinfo(flags=IFF_UP, change=IFF_UP),
            attr_text(IFLA_IFNAME, ifname),
            attr(IFLA_ADDRESS, parse_mac(mac)),
            attr_u32(IFLA_MTU, mtu_bytes),
            attr_u32(IFLA_GROUP, group),
            b"" if master_ifindex is None else attr_u32(IFLA_MASTER, master_ifindex),
            nest(
                IFLA_LINKINFO,
                attr_text(IFLA_INFO_KIND, "veth"),
                nest(IFLA_INFO_DATA, attr(VETH_INFO_PEER | _NESTED, peer)),
            ),
        )
    )
    return Request(
        RTM_NEWLINK, CREATE | EXCL, body, ("link", ifname, "with", peer_ifname, "in the pod")
    )


def new_link(
    *,
    ifname: str,
    kind: str,
    mac: str | None = None,
    group: int = 0,
    up: bool = False,
) -> Request:
    """A link of `kind` without options of its own (bridge, ifb)."""
    flags = IFF_UP if up else 0
    body = b"".join(
        (
            _ifinfo(flags=flags, change=flags),
            attr_text(IFLA_IFNAME, ifname),
            attr(IFLA_ADDRESS, parse_mac(mac)) if mac else b"",
            attr_u32(IFLA_GROUP, group) if group else b"",
            nest(IFLA_LINKINFO, attr_text(IFLA_INFO_KIND, kind)),
        )
    )
    return Request(RTM_NEWLINK, CREATE | EXCL, body, (kind, ifname))


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
            b"" if mac is None else attr(IFLA_ADDRESS, parse_mac(mac)),
            b"" if mtu_bytes is None else attr_u32(IFLA_MTU, mtu_bytes),
            b"" if master_ifindex is None else attr_u32(IFLA_MASTER, master_ifindex),
            b"" if group is None else attr_u32(IFLA_GROUP, group),
            b"" if alias is None else attr_text(IFLA_IFALIAS, alias),
        )
    )
    return Request(RTM_SETLINK, 0, body, (what,), ignore_errno)


def set_bridge_port(ifindex: int, *, what: str, hairpin: bool, isolated: bool) -> Request:
    """Source: br_setport in net/bridge/br_netlink.c."""
    protinfo = nest(
        IFLA_PROTINFO,
        attr(IFLA_BRPORT_MODE, bytes([hairpin])),
        attr(IFLA_BRPORT_ISOLATED, bytes([isolated])),
    )
    body = _ifinfo(ifindex=ifindex, family=AF_BRIDGE) + protinfo
    return Request(RTM_SETLINK, 0, body, (what,))


def get_link(ifname: str, *, counters: bool = False) -> Request:
    body = _ifinfo() + attr_text(IFLA_IFNAME, ifname) + (b"" if counters else _WITHOUT_COUNTERS)
    return Request(RTM_GETLINK, 0, body, ("link", ifname))


def dump_links() -> Request:
    return Request(RTM_GETLINK, ROOT_MATCH, _ifinfo(), ("links",))


def dump_bridge_ports() -> Request:
    return Request(RTM_GETLINK, ROOT_MATCH, _ifinfo(family=AF_BRIDGE), ("bridge ports",))


def delete_link(ifindex: int, *, what: str, ignore_errno: tuple[int, ...] = ()) -> Request:
    return Request(RTM_DELLINK, 0, _ifinfo(ifindex=ifindex), (what,), ignore_errno)


def delete_link_group(group: int) -> Request:
    """Deletes every link of the group in one go: one RCU grace period for all of them.

    An empty group is fine.

    Source: rtnl_group_dellink in net/core/rtnetlink.c.
    """
    return Request(
        RTM_DELLINK, 0, _ifinfo() + attr_u32(IFLA_GROUP, group), ("link group", group), (ENODEV,)
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

    @property
    def up(self) -> bool:
        return bool(self.flags & IFF_UP)


def parse_link(message: Message) -> LinkInfo:
    _family, _type, ifindex, flags, _change = _IFINFO.unpack_from(message.body)
    attrs = parse_attrs(message.body, _IFINFO.size)
    info = parse_attrs(memoryview(attrs.get(IFLA_LINKINFO, b"")), 0)
    return LinkInfo(
        ifindex=ifindex,
        ifname=_text(attrs.get(IFLA_IFNAME)),
        flags=flags,
        mac=mac_text(attrs.get(IFLA_ADDRESS, b"")),
        mtu_bytes=_number(attrs.get(IFLA_MTU)),
        master_ifindex=_number(attrs.get(IFLA_MASTER)),
        group=_number(attrs.get(IFLA_GROUP)),
        kind=_text(info.get(IFLA_INFO_KIND)),
        alias=_text(attrs.get(IFLA_IFALIAS)),
    )


def link_ifindex(message: Message) -> int:
    """Of a link message, from its header alone."""
    return int(_IFINFO.unpack_from(message.body)[2])


def link_is_operational(message: Message) -> bool:
    """Whether the link passes packets: more than being up, and said some time after."""
    return parse_attrs(message.body, _IFINFO.size).get(IFLA_OPERSTATE) == _OPERSTATE_UP


def link_is_down(message: Message) -> bool:
    """Of a link message, from its header alone."""
    return not _IFINFO.unpack_from(message.body)[3] & IFF_UP


def link_group(message: Message) -> int:
    """Of a link message, read no further than that; 0: the default, or it does not say."""
    body, offset = message.body, _IFINFO.size
    while offset + 8 <= len(body):
        length, kind = _ATTR.unpack_from(body, offset)
        if kind == IFLA_GROUP:
            return _number(bytes(body[offset + 4 : offset + 8]))
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


def _text(payload: bytes | None) -> str:
    return (payload or b"").rstrip(b"\0").decode(errors="replace")


def _number(payload: bytes | None) -> int:
    return int.from_bytes(payload or b"", sys.byteorder)


# Addresses.


def _family(version: int) -> int:
    return AF_INET if version == 4 else AF_INET6


def new_address(
    ifindex: int, address: InterfaceAddress, *, on: str, prefix_route: bool = True
) -> Request:
    """Adds (or keeps) an address; IPv6 without duplicate address detection, usable at once."""
    flags = IFA_F_PERMANENT
    flags |= IFA_F_NODAD if address.version == 6 else 0
    flags |= 0 if prefix_route else IFA_F_NOPREFIXROUTE
    length = address.network.prefixlen
    body = _IFADDR.pack(_family(address.version), length, flags & 0xFF, 0, ifindex)
    body += attr(IFA_LOCAL, address.packed) + attr(IFA_ADDRESS, address.packed)
    if address.version == 4 and length < 31:
        body += attr(IFA_BROADCAST, address.network.broadcast_address.packed)
    body += attr_u32(IFA_FLAGS, flags)
    return Request(RTM_NEWADDR, CREATE | REPLACE, body, ("address", address, "on", on))


def delete_address(ifindex: int, address: InterfaceAddress, *, on: str) -> Request:
    body = _IFADDR.pack(_family(address.version), address.network.prefixlen, 0, 0, ifindex)
    body += attr(IFA_LOCAL, address.packed) + attr(IFA_ADDRESS, address.packed)
    return Request(RTM_DELADDR, 0, body, ("address", address, "on", on))


def dump_addresses() -> Request:
    return Request(RTM_GETADDR, ROOT_MATCH, _IFADDR.pack(AF_UNSPEC, 0, 0, 0, 0), ("addresses",))


@dataclass(frozen=True, slots=True)
class AddressInfo:
    """An address of a link, packed (4 or 16 bytes, network order)."""

    ifindex: int
    packed: bytes
    prefix_length: int
    scope: int
    flags: int


def parse_address(message: Message) -> AddressInfo:
    _, length, _flags, scope, ifindex = _IFADDR.unpack_from(message.body)
    attrs = parse_attrs(message.body, _IFADDR.size)
    packed = attrs.get(IFA_LOCAL) or attrs.get(IFA_ADDRESS, b"")
    return AddressInfo(ifindex, packed, length, scope, _number(attrs.get(IFA_FLAGS)))


def address_ifindex(message: Message) -> int:
    """Of an address message, from its header alone."""
    return int(_IFADDR.unpack_from(message.body)[4])


# Routes and rules.


def route(
    destination: Prefix,
    *,
    ifindex: int | None,
    table: int = RT_TABLE_MAIN,
    gateway: Address | None = None,
    source: Address | None = None,
    metric: int | None = None,
    mtu_bytes: int | None = None,
    advmss: int | None = None,
    scope: int | None = None,
    unreachable: bool = False,
    keep: bool = False,
    delete: bool = False,
) -> Request:
    """A route put (added or replaced) or deleted. Its scope is link if it has no gateway.

    `keep`: one of the same destination, table and metric that is there already stays as it is.
    A deletion takes a route of any type, scope and protocol.
    """
    kind = RTN_UNREACHABLE if unreachable else RTN_UNICAST
    protocol = RTPROT_STATIC
    if delete:
        kind, protocol, scope = 0, 0, RT_SCOPE_NOWHERE
    elif scope is None:
        on_link = gateway is None and not unreachable and destination.version == 4
        scope = RT_SCOPE_LINK if on_link else RT_SCOPE_UNIVERSE
    body = b"".join(
        (
            _RTMSG.pack(
                _family(destination.version),
                destination.prefixlen,
                0,
                0,
                table if table < 256 else RT_TABLE_COMPAT,
                protocol,
                scope,
                kind,
                0,
            ),
            attr(RTA_DST, destination.network_address.packed) if destination.prefixlen else b"",
            attr_u32(RTA_TABLE, table),
            b"" if ifindex is None else attr_u32(RTA_OIF, ifindex),
            b"" if gateway is None else attr(RTA_GATEWAY, gateway.packed),
            b"" if source is None else attr(RTA_PREFSRC, source.packed),
            b"" if metric is None else attr_u32(RTA_PRIORITY, metric),
            _metrics(mtu_bytes, advmss),
        )
    )
    about = ("route", destination, *(("via", gateway) if gateway else ()), "table", table)
    if delete:
        return Request(RTM_DELROUTE, 0, body, about)
    if keep:
        return Request(RTM_NEWROUTE, CREATE | EXCL, body, about, (EEXIST,))
    return Request(RTM_NEWROUTE, CREATE | REPLACE, body, about)


def _metrics(mtu_bytes: int | None, advmss: int | None) -> bytes:
    parts = []
    if mtu_bytes is not None:
        parts.append(attr_u32(RTAX_MTU, mtu_bytes))
    if advmss is not None:
        parts.append(attr_u32(RTAX_ADVMSS, advmss))
    return nest(RTA_METRICS, *parts) if parts else b""


def dump_routes(family: int = AF_UNSPEC) -> Request:
    return Request(
        RTM_GETROUTE, ROOT_MATCH, _RTMSG.pack(family, 0, 0, 0, 0, 0, 0, 0, 0), ("routes",)
    )


def is_of_large_table(message: Message) -> bool:
    """Of a route message, from its header alone: the number of its table needs an attribute."""
    return bool(message.body[4] == RT_TABLE_COMPAT)


def route_protocol(message: Message) -> int:
    """Of a route message, from its header alone."""
    return message.body[5]


@dataclass(frozen=True, slots=True)
class RouteInfo:
    """A route as the kernel reports it; addresses packed, absent ones empty."""

    family: int
    destination: bytes
    prefix_length: int
    table: int
    type: int
    protocol: int
    ifindex: int
    gateway: bytes
    source: bytes
    metric: int
    mtu_bytes: int


def parse_route(message: Message) -> RouteInfo:
    fields = _RTMSG.unpack_from(message.body)
    attrs = parse_attrs(message.body, _RTMSG.size)
    metrics = parse_attrs(memoryview(attrs.get(RTA_METRICS, b"")), 0)
    return RouteInfo(
        family=fields[0],
        destination=attrs.get(RTA_DST, b""),
        prefix_length=fields[1],
        table=_number(attrs.get(RTA_TABLE)) or fields[4],
        type=fields[7],
        protocol=fields[5],
        ifindex=_number(attrs.get(RTA_OIF)),
        gateway=attrs.get(RTA_GATEWAY, b""),
        source=attrs.get(RTA_PREFSRC, b""),
        metric=_number(attrs.get(RTA_PRIORITY)),
        mtu_bytes=_number(metrics.get(RTAX_MTU)),
    )


def rule(version: int, *, priority: int, table: int, delete: bool = False) -> Request:
    """`from all lookup table` at `priority`."""
    action = table if table < 256 else 0
    body = _RTMSG.pack(_family(version), 0, 0, 0, action, 0, 0, FR_ACT_TO_TBL, 0)
    body += attr_u32(FRA_PRIORITY, priority) + attr_u32(FRA_TABLE, table)
    body += attr(FRA_PROTOCOL, bytes([RTPROT_STATIC]))
    about = ("rule", priority, "for table", table, f"(IPv{version})")
    if delete:
        return Request(RTM_DELRULE, 0, body, about)
    return Request(RTM_NEWRULE, CREATE | EXCL, body, about)


def dump_rules() -> Request:
    return Request(RTM_GETRULE, ROOT_MATCH, _RTMSG.pack(0, 0, 0, 0, 0, 0, 0, 0, 0), ("rules",))


@dataclass(frozen=True, slots=True)
class RuleInfo:
    version: int
    priority: int
    table: int


def parse_rule(message: Message) -> RuleInfo:
    fields = _RTMSG.unpack_from(message.body)
    attrs = parse_attrs(message.body, _RTMSG.size)
    return RuleInfo(
        4 if fields[0] == AF_INET else 6,
        _number(attrs.get(FRA_PRIORITY)),
        _number(attrs.get(FRA_TABLE)) or fields[4],
    )


# Neighbours.


def new_neighbour(ifindex: int, address: Address, mac: str) -> Request:
    """Makes `mac` the link-layer address of `address`, whatever was known before."""
    body = _NDMSG.pack(_family(address.version), ifindex, NUD_STALE, 0, 0)
    body += attr(NDA_DST, address.packed) + attr(NDA_LLADDR, parse_mac(mac))
    return Request(RTM_NEWNEIGH, CREATE | REPLACE, body, ("neighbour", address))


def delete_neighbour(
    ifindex: int, address: Address, *, ignore_errno: tuple[int, ...] = ()
) -> Request:
    body = _NDMSG.pack(_family(address.version), ifindex, 0, 0, 0) + attr(NDA_DST, address.packed)
    return Request(RTM_DELNEIGH, 0, body, ("neighbour", address), ignore_errno)
