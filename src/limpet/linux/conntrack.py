"""Connection tracking entries of addresses that pods gave up, and of those who serve no more.

Source: include/uapi/linux/netfilter/nfnetlink_conntrack.h.
"""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Collection, Mapping

from limpet.base.addresses import Address
from limpet.base.errors import KernelError
from limpet.linux.netlink import codec as wire
from limpet.linux.netlink.socket import NETLINK_NETFILTER, NetlinkSocket

_GET, _DELETE = 0x101, 0x102
_TUPLE_ORIGINAL, _TUPLE_REPLY, _ID, _ZONE = 1, 2, 12, 18
_TUPLE_IP, _TUPLE_PROTOCOL = 1, 2
_NUMBER, _SOURCE_PORT, _DESTINATION_PORT = 1, 2, 3
_SOURCE: dict[int, int] = {socket.AF_INET: 1, socket.AF_INET6: 3}
_UDP = 17
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
        requests.append(_deletion(header, attrs))
    _delete(netfilter, requests, "flows of released addresses")
    return len(requests)


def _deletion(header: bytes, attrs: dict[int, bytes]) -> wire.Request:
    body = header + b"".join(
        wire.attr(kind | (0x8000 if kind == _TUPLE_ORIGINAL else 0), attrs[kind])
        for kind in (_TUPLE_ORIGINAL, _ID, _ZONE)
        if kind in attrs
    )
    return wire.Request(_DELETE, 0, body, ("tracked flow",), ignore_errno=(errno.ENOENT,))


def _delete(netfilter: NetlinkSocket, requests: list[wire.Request], what: str) -> None:
    failures = [failure for failure in netfilter.try_each(requests) if failure is not None]
    if failures:
        raise KernelError("forget", what, failures[0].errno)


def forget_udp(served: Mapping[tuple[bytes, int], Collection[tuple[bytes, int]]]) -> int:
    """Deletes flows of UDP that were begun to an address and port of `served` (an empty address:
    any), and whose answers come from none that serves there; returns how many there were.

    A client that goes on sending from one port would keep such a flow alive for ever.
    """
    forgotten = 0
    with NetlinkSocket(NETLINK_NETFILTER) as netfilter:
        for family in (socket.AF_INET, socket.AF_INET6):
            header = bytes([family, 0, 0, 0])
            requests = []
            dump = wire.Request(_GET, wire.ROOT_MATCH, header, ("tracked flows",))
            for message in netfilter.dump(dump):
                attrs = wire.parse_attrs(message.body, _NFGENMSG_BYTES)
                asked = _udp_end(attrs, _TUPLE_ORIGINAL, family, is_source=False)
                if asked is None or not _is_stale(served, asked, attrs, family):
                    continue
                requests.append(_deletion(header, attrs))
            _delete(netfilter, requests, "flows of endpoints that serve no more")
            forgotten += len(requests)
    return forgotten


def _is_stale(
    served: Mapping[tuple[bytes, int], Collection[tuple[bytes, int]]],
    asked: tuple[bytes, int],
    attrs: dict[int, bytes],
    family: int,
) -> bool:
    answering = _udp_end(attrs, _TUPLE_REPLY, family, is_source=True)
    if asked in served:
        return answering not in served[asked]
    # A port of the node: what only passes through was not translated, and is not ours.
    by_port = served.get((b"", asked[1]))
    return by_port is not None and answering != asked and answering not in by_port


def _udp_end(
    attrs: dict[int, bytes], tuple_kind: int, family: int, *, is_source: bool
) -> tuple[bytes, int] | None:
    """Packed address and port of one end; None: it is another protocol's."""
    nested = wire.parse_attrs(memoryview(attrs.get(tuple_kind, b"")), 0)
    protocol = wire.parse_attrs(memoryview(nested.get(_TUPLE_PROTOCOL, b"")), 0)
    if protocol.get(_NUMBER) != bytes([_UDP]):
        return None
    addresses = wire.parse_attrs(memoryview(nested.get(_TUPLE_IP, b"")), 0)
    kind = _SOURCE[family] + (0 if is_source else 1)
    port = protocol.get(_SOURCE_PORT if is_source else _DESTINATION_PORT, b"")
    return addresses.get(kind, b""), int.from_bytes(port, "big")


def _ends(attrs: dict[int, bytes], tuple_kind: int) -> set[bytes]:
    """Packed source and destination of one direction."""
    nested = wire.parse_attrs(memoryview(attrs.get(tuple_kind, b"")), 0)
    return set(wire.parse_attrs(memoryview(nested.get(_TUPLE_IP, b"")), 0).values())
