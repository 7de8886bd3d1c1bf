"""Connection tracking entries of addresses that pods gave up.

Source: include/uapi/linux/netfilter/nfnetlink_conntrack.h.
"""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Collection

from limpet.base.addresses import Address
from limpet.base.errors import KernelError
from limpet.linux.netlink import codec as wire
from limpet.linux.netlink.socket import NETLINK_NETFILTER, NetlinkSocket

_GET, _DELETE = 0x101, 0x102
_TUPLE_ORIGINAL, _TUPLE_REPLY, _ID, _ZONE = 1, 2, 12, 18
_TUPLE_IP = 1
_NFGENMSG_BYTES = 4


def forget_flows(addresses: Collection[Address]) -> int:
    """Deletes every tracked flow from or to one of the addresses; returns how many there were.

    A flow that outlives its pod would lead a later pod's packets astray.
    """
    forgotten = 0
    with NetlinkSocket(NETLINK_NETFILTER) as netfilter:
        for family, version in ((socket.AF_INET, 4), (socket.AF_INET6, 6)):
            wanted = {address.packed for address in addresses if address.version == version}
            if wanted:
                forgotten += _forget(netfilter, family, wanted)
    return forgotten


def _forget(netfilter: NetlinkSocket, family: int, wanted: set[bytes]) -> int:
    # Most flows are other pods': the bytes are searched before anything is parsed.
    maybe = re.compile(b"|".join(map(re.escape, sorted(wanted))), re.DOTALL)
    header = bytes([family, 0, 0, 0])
    found = netfilter.dump(wire.Request(_GET, wire.ROOT_MATCH, header, ("tracked flows",)))
    requests = []
    for message in found:
        if maybe.search(message.body) is None:
            continue
        attrs = wire.parse_attrs(message.body, _NFGENMSG_BYTES)
        if not (_ends(attrs, _TUPLE_ORIGINAL) | _ends(attrs, _TUPLE_REPLY)) & wanted:
            continue
        body = header + b"".join(
            wire.attr(kind | (0x8000 if kind == _TUPLE_ORIGINAL else 0), attrs[kind])
            for kind in (_TUPLE_ORIGINAL, _ID, _ZONE)
            if kind in attrs
        )
        requests.append(
            wire.Request(_DELETE, 0, body, ("tracked flow",), ignore_errno=(errno.ENOENT,))
        )
    failures = [failure for failure in netfilter.try_each(requests) if failure is not None]
    if failures:
        raise KernelError("forget", "flows of released addresses", failures[0].errno)
    return len(requests)


def _ends(attrs: dict[int, bytes], tuple_kind: int) -> set[bytes]:
    """Packed source and destination of one direction."""
    nested = wire.parse_attrs(memoryview(attrs.get(tuple_kind, b"")), 0)
    return set(wire.parse_attrs(memoryview(nested.get(_TUPLE_IP, b"")), 0).values())
