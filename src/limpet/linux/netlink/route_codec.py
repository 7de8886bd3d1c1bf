"""rtnetlink messages of routes and rules: bytes <-> values, no sockets.

Source: include/uapi/linux/{rtnetlink,fib_rules}.h.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from errno import EEXIST
from ipaddress import IPv4Network, IPv6Network

from limpet.base.addresses import Address, Prefix
from limpet.linux.netlink import codec as wire
from limpet.linux.netlink.codec import Message, Request, attr, attr_u32, nest, number, parse_attrs

RTA_DST, RTA_OIF, RTA_GATEWAY, RTA_PRIORITY, RTA_PREFSRC, RTA_METRICS = 1, 4, 5, 6, 7, 8
RTA_TABLE, RTA_VIA = 15, 18
RTAX_MTU, RTAX_ADVMSS = 2, 8
RTN_UNICAST, RTN_UNREACHABLE = 1, 7
RTNH_F_ONLINK = 4
RT_SCOPE_UNIVERSE, RT_SCOPE_LINK, RT_SCOPE_NOWHERE = 0, 253, 255
RT_TABLE_COMPAT, RT_TABLE_MAIN = 252, 254
RTPROT_STATIC = 4
FRA_PRIORITY, FRA_FWMARK, FRA_TABLE, FRA_PROTOCOL = 6, 10, 15, 21
FR_ACT_TO_TBL = 1

_RTMSG = struct.Struct("=BBBBBBBBI")


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
    protocol: int | None = None,
    unreachable: bool = False,
    on_link: str = "",
    keep: bool = False,
    delete: bool = False,
    ignore_errno: tuple[int, ...] = (),
) -> Request:
    """A route put (added or replaced) or deleted. Its scope is link if it has no gateway.

    `on_link`: name of the link that the gateway counts as on, whatever the link's subnets. `keep`:
    one of the same destination, table and metric that is there already stays as it is. A deletion
    takes a route of any type and scope, and without `protocol` of any origin.
    """
    kind = RTN_UNREACHABLE if unreachable else RTN_UNICAST
    if delete:
        kind, scope, protocol = 0, RT_SCOPE_NOWHERE, protocol or 0
    elif scope is None:
        local = gateway is None and not unreachable and destination.version == 4
        scope = RT_SCOPE_LINK if local else RT_SCOPE_UNIVERSE
    body = b"".join(
        (
            _RTMSG.pack(
                wire.family(destination.version),
                destination.prefixlen,
                0,
                0,
                table if table < 256 else RT_TABLE_COMPAT,
                RTPROT_STATIC if protocol is None else protocol,
                scope,
                kind,
                RTNH_F_ONLINK if on_link else 0,
            ),
            attr(RTA_DST, destination.network_address.packed) if destination.prefixlen else b"",
            attr_u32(RTA_TABLE, table),
            b"" if ifindex is None else attr_u32(RTA_OIF, ifindex),
            b"" if gateway is None else _next_hop(destination, gateway),
            b"" if source is None else attr(RTA_PREFSRC, source.packed),
            b"" if metric is None else attr_u32(RTA_PRIORITY, metric),
            _metrics(mtu_bytes, advmss),
        )
    )
    way = (*(("via", gateway) if gateway else ()), *(("dev", on_link) if on_link else ()))
    about = ("route", destination, *way, "table", table)
    if delete:
        return Request(wire.RTM_DELROUTE, 0, body, about, ignore_errno)
    if keep:
        return Request(wire.RTM_NEWROUTE, wire.CREATE | wire.EXCL, body, about, (EEXIST,))
    return Request(wire.RTM_NEWROUTE, wire.CREATE | wire.REPLACE, body, about, ignore_errno)


def _next_hop(destination: Prefix, gateway: Address) -> bytes:
    """IPv4 also goes by a next hop of IPv6 (RFC 5549)."""
    if gateway.version == destination.version:
        return attr(RTA_GATEWAY, gateway.packed)
    return attr(RTA_VIA, struct.pack("=H", wire.AF_INET6) + gateway.packed)


def _metrics(mtu_bytes: int | None, advmss: int | None) -> bytes:
    parts = []
    if mtu_bytes is not None:
        parts.append(attr_u32(RTAX_MTU, mtu_bytes))
    if advmss is not None:
        parts.append(attr_u32(RTAX_ADVMSS, advmss))
    return nest(RTA_METRICS, *parts) if parts else b""


def dump_routes(family: int, *, table: int = 0, protocol: int = 0) -> Request:
    """Asks for routes of an address family, and of a table and an origin where these are given.

    The kernel answers ENOENT where there is no such table.
    """
    body = _RTMSG.pack(family, 0, 0, 0, 0, protocol, 0, 0, 0)
    if not table:
        return Request(wire.RTM_GETROUTE, wire.ROOT_MATCH, body, ("routes",))
    body += attr_u32(RTA_TABLE, table)
    return Request(wire.RTM_GETROUTE, wire.ROOT_MATCH, body, ("routes of table", table))


def get_route(destination: Address) -> Request:
    """Asks which route a packet to `destination` would take: one answer, with its next hop."""
    body = _RTMSG.pack(wire.family(destination.version), destination.max_prefixlen, *7 * (0,))
    return Request(
        wire.RTM_GETROUTE, 0, body + attr(RTA_DST, destination.packed), ("route to", destination)
    )


def is_of_large_table(message: Message) -> bool:
    """Whether a route message's table needs an attribute for its number, from its header alone."""
    return bool(message.body[4] == RT_TABLE_COMPAT)


def route_protocol(message: Message) -> int:
    """Origin of a route message, from its header alone."""
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
    """Next hop, of whatever IP version."""
    source: bytes
    metric: int
    mtu_bytes: int

    @property
    def prefix(self) -> Prefix:
        if self.family == wire.AF_INET:
            return IPv4Network((self.destination or bytes(4), self.prefix_length))
        return IPv6Network((self.destination or bytes(16), self.prefix_length))


def parse_route(message: Message) -> RouteInfo:
    fields = _RTMSG.unpack_from(message.body)
    attrs = parse_attrs(message.body, _RTMSG.size)
    metrics = parse_attrs(memoryview(attrs.get(RTA_METRICS, b"")), 0)
    return RouteInfo(
        family=fields[0],
        destination=attrs.get(RTA_DST, b""),
        prefix_length=fields[1],
        table=number(attrs.get(RTA_TABLE)) or fields[4],
        type=fields[7],
        protocol=fields[5],
        ifindex=number(attrs.get(RTA_OIF)),
        gateway=attrs.get(RTA_GATEWAY) or attrs.get(RTA_VIA, b"")[2:],
        source=attrs.get(RTA_PREFSRC, b""),
        metric=number(attrs.get(RTA_PRIORITY)),
        mtu_bytes=number(metrics.get(RTAX_MTU)),
    )


def rule(
    version: int,
    *,
    priority: int,
    table: int,
    mark: int = 0,
    delete: bool = False,
    ignore_errno: tuple[int, ...] = (),
) -> Request:
    """`from all lookup table` at `priority`; with `mark` only for packets that have it."""
    action = table if table < 256 else 0
    body = _RTMSG.pack(wire.family(version), 0, 0, 0, action, 0, 0, FR_ACT_TO_TBL, 0)
    body += attr_u32(FRA_PRIORITY, priority) + attr_u32(FRA_TABLE, table)
    body += attr_u32(FRA_FWMARK, mark) if mark else b""
    body += attr(FRA_PROTOCOL, bytes([RTPROT_STATIC]))
    marked = ("for mark", f"{mark:#x}") if mark else ()
    about = ("rule", priority, *marked, "for table", table, f"(IPv{version})")
    if delete:
        return Request(wire.RTM_DELRULE, 0, body, about, ignore_errno)
    return Request(wire.RTM_NEWRULE, wire.CREATE | wire.EXCL, body, about, ignore_errno)


def dump_rules() -> Request:
    return Request(wire.RTM_GETRULE, wire.ROOT_MATCH, bytes(_RTMSG.size), ("rules",))


@dataclass(frozen=True, slots=True)
class RuleInfo:
    """A rule that looks packets up in a table."""

    version: int
    priority: int
    table: int
    """0: it does something else."""
    mark: int = 0
    """0: it asks for none."""


def parse_rule(message: Message) -> RuleInfo:
    fields = _RTMSG.unpack_from(message.body)
    attrs = parse_attrs(message.body, _RTMSG.size)
    table = number(attrs.get(FRA_TABLE)) or fields[4]
    return RuleInfo(
        4 if fields[0] == wire.AF_INET else 6,
        number(attrs.get(FRA_PRIORITY)),
        table if fields[7] == FR_ACT_TO_TBL else 0,
        number(attrs.get(FRA_FWMARK)),
    )
