"""The rule that keeps the tunnel's own packets out of our routing table: messages <-> values.

Source: include/uapi/linux/fib_rules.h.
"""

from __future__ import annotations

import errno
import struct

from limpet.linux.netlink.codec import (
    AF_INET,
    AF_INET6,
    CREATE,
    EXCL,
    FR_ACT_TO_TBL,
    FRA_PRIORITY,
    FRA_PROTOCOL,
    FRA_TABLE,
    RT_TABLE_MAIN,
    RTM_DELRULE,
    RTM_NEWRULE,
    RTPROT_STATIC,
    Message,
    Request,
    attr,
    attr_u32,
    parse_attrs,
)

FRA_FWMARK = 10
_HEADER = struct.Struct("=BBBBBBBBI")
_U32 = struct.Struct("=I")
_FAMILIES = {4: AF_INET, 6: AF_INET6}


def put_mark_rule(version: int, *, priority: int, mark: int) -> Request:
    """`from all fwmark <mark> lookup main`; one that is there is left."""
    return _request(RTM_NEWRULE, CREATE | EXCL, version, priority, mark, errno.EEXIST)


def delete_mark_rule(version: int, *, priority: int, mark: int) -> Request:
    return _request(RTM_DELRULE, 0, version, priority, mark, errno.ENOENT)


def _request(
    kind: int, flags: int, version: int, priority: int, mark: int, ignored: int
) -> Request:
    body = _HEADER.pack(_FAMILIES[version], 0, 0, 0, RT_TABLE_MAIN, 0, 0, FR_ACT_TO_TBL, 0)
    body += attr_u32(FRA_PRIORITY, priority) + attr_u32(FRA_TABLE, RT_TABLE_MAIN)
    body += attr_u32(FRA_FWMARK, mark) + attr(FRA_PROTOCOL, bytes([RTPROT_STATIC]))
    about = ("rule", priority, "for mark", f"{mark:#x}", f"(IPv{version})")
    return Request(kind, flags, body, about, (ignored,))


def parse_mark_rule(message: Message) -> tuple[int, int, int] | None:
    """IP version, priority and mark of a rule that looks marked packets up in main; else None."""
    family, *_, table, _, _, action, _ = _HEADER.unpack_from(message.body)
    attrs = parse_attrs(message.body, _HEADER.size)
    mark = _number(attrs.get(FRA_FWMARK))
    looked_up = _number(attrs.get(FRA_TABLE)) or table
    if family not in (AF_INET, AF_INET6) or action != FR_ACT_TO_TBL or not mark:
        return None
    if looked_up != RT_TABLE_MAIN:
        return None
    return (4 if family == AF_INET else 6), _number(attrs.get(FRA_PRIORITY)), mark


def _number(payload: bytes | None) -> int:
    if payload is None or len(payload) != _U32.size:
        return 0
    return int(_U32.unpack(payload)[0])
