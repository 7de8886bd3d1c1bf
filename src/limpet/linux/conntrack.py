"""Connection tracking entries of addresses that pods gave up, and of those who serve no more.

Source: include/uapi/linux/netfilter/nfnetlink_conntrack.h.
"""

from __future__ import annotations

import errno
import re
import socket
import struct
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from ipaddress import ip_address
from typing import NamedTuple

from limpet.base.addresses import Address, Endpoint
from limpet.base.errors import KernelError
from limpet.linux.netlink import codec as wire
from limpet.linux.netlink.socket import NETLINK_NETFILTER, NetlinkSocket, RouteSocket

_GET, _DELETE = 0x101, 0x102
_TUPLE_ORIGINAL, _TUPLE_REPLY, _STATUS, _PROTOCOL_INFO, _ID, _ZONE = 1, 2, 3, 4, 12, 18
_STATUS_MASK = 26
_SEEN_REPLY = 1 << 1
_FILTER, _FILTER_REPLY = 25, 2
_WANT_SOURCE, _WANT_PROTOCOL = 1 << 0, 1 << 3
_TUPLE_IP, _TUPLE_PROTOCOL = 1, 2
_NUMBER, _SOURCE_PORT, _DESTINATION_PORT = 1, 2, 3
_SOURCE: dict[int, int] = {socket.AF_INET: 1, socket.AF_INET6: 3}
_FAMILY = {4: socket.AF_INET, 6: socket.AF_INET6}
_TCP, _UDP = 6, 17
_U32 = struct.Struct(">I")
_TCP_INFO, _TCP_STATE, _TCP_ESTABLISHED = 1, 1, b"\x03"
_NFGENMSG_BYTES = 4
_MOST_SEARCHED = 50
_MOST_ASKED = 4
"""Addresses that the kernel is asked for one by one: it walks through all of its table for each."""
_ANY_FAMILY = bytes(_NFGENMSG_BYTES)
"""IPv4 and IPv6 at once: the kernel walks through all of its table for each question."""


def forget_flows(addresses: Collection[Address]) -> int:
    """Deletes every tracked flow from or to one of the addresses; returns how many there were.

    A flow that outlives its pod would lead a later pod's packets astray.
    """
    wanted = {address.packed for address in addresses}
    if not wanted:
        return 0
    maybe = _search_for(wanted, ())
    with NetlinkSocket(NETLINK_NETFILTER) as netfilter:
        requests = [
            _deletion(family, attrs)
            for family, attrs in _flows(netfilter, maybe)
            if (_ends(attrs, _TUPLE_ORIGINAL) | _ends(attrs, _TUPLE_REPLY)) & wanted
        ]
        _delete(netfilter, requests, "flows of released addresses")
    return len(requests)


class Tracked(NamedTuple):
    """A flow as it was begun, and who answers it: behind a Service's or a port's translation."""

    protocol: int
    """Number of the protocol."""
    source: bytes
    """Packed address."""
    target: bytes
    port: int
    """Port of the target; 0 for protocols without."""


def forget_those(addresses: Collection[Address], is_unwanted: Callable[[Tracked], bool]) -> int:
    """Deletes those flows from or to one of the addresses that are unwanted; returns how many.

    Packets of such a flow begin it again, if the filters let them. Raises: KernelError.
    """
    requests = []
    maybe = _search_for({each.packed for each in addresses}, ())
    with NetlinkSocket(NETLINK_NETFILTER) as netfilter:
        for family, attrs in _flows(netfilter, maybe):
            protocol, source, _ = flow_end(attrs, _TUPLE_ORIGINAL, family, is_source=True)
            _, target, port = flow_end(attrs, _TUPLE_REPLY, family, is_source=True)
            if source and target and is_unwanted(Tracked(protocol, source, target, port)):
                requests.append(_deletion(family, attrs))
        _delete(netfilter, requests, "flows that nothing allows")
    return len(requests)


def forget_udp_of_others(ends: Collection[Endpoint], own: Collection[bytes]) -> int:
    """Deletes flows of UDP to one of the ends, behind all translation, that were begun by others
    than the packed addresses of `own`; returns how many.

    The kernel tells those of few addresses alone, from Linux 5.8 on. Raises: KernelError.
    """
    requests = []
    with NetlinkSocket(NETLINK_NETFILTER) as netfilter:
        for question, maybe in _questions_of_udp({address for address, _ in ends}):
            for family, attrs in _told(netfilter, question, maybe):
                protocol, source, _ = flow_end(attrs, _TUPLE_ORIGINAL, family, is_source=True)
                _, target, port = flow_end(attrs, _TUPLE_REPLY, family, is_source=True)
                if protocol == _UDP and source not in own and (ip_address(target), port) in ends:
                    requests.append(_deletion(family, attrs))
        _delete(netfilter, requests, "flows of pods to peers")
    return len(requests)


def _questions_of_udp(addresses: Collection[Address]) -> list[tuple[bytes, re.Pattern[bytes]]]:
    """Bodies of requests for the flows of UDP that these answer, and what is in their bytes.

    Not by addresses of IPv6: the kernel answers with those that have another one (6.18;
    ctnetlink_filter_match_tuple in net/netfilter/nf_conntrack_netlink.c).
    """
    questions = []
    for family in (socket.AF_INET, socket.AF_INET6):
        packed = [each.packed for each in addresses if _FAMILY[each.version] == family]
        if family == socket.AF_INET and len(packed) <= _MOST_ASKED:
            questions += [(_of_udp(family, each), _search_for([each], ())) for each in packed]
        elif packed:
            questions.append((_of_udp(family), _search_for(packed, ())))
    return questions


def _of_udp(family: int, source: bytes = b"") -> bytes:
    """Body of a request for flows of UDP, those whose answers come from a packed address."""
    answer = wire.nest(_TUPLE_IP, wire.attr(_SOURCE[family], source)) if source else b""
    answer += wire.nest(_TUPLE_PROTOCOL, wire.attr(_NUMBER, bytes([_UDP])))
    flags = _WANT_PROTOCOL | (_WANT_SOURCE if source else 0)
    return (
        bytes([family, 0, 0, 0])
        + wire.nest(_TUPLE_REPLY, answer)
        + wire.nest(_FILTER, wire.attr_u32(_FILTER_REPLY, flags))
    )


def _deletion(family: int, attrs: dict[int, bytes]) -> wire.Request:
    body = bytes([family, 0, 0, 0]) + b"".join(
        wire.attr(kind | (wire.NESTED if kind == _TUPLE_ORIGINAL else 0), attrs[kind])
        for kind in (_TUPLE_ORIGINAL, _ID, _ZONE)
        if kind in attrs
    )
    return wire.Request(_DELETE, 0, body, ("tracked flow",), ignore_errno=(errno.ENOENT,))


def _delete(netfilter: NetlinkSocket, requests: list[wire.Request], what: str) -> None:
    failures = [failure for failure in netfilter.try_each(requests) if failure is not None]
    if failures:
        raise KernelError("forget", what, failures[0].errno)


Served = Mapping[tuple[bytes, int], Collection[tuple[bytes, int]]]
"""By packed address (empty: any) and port that is asked for: addresses and ports that serve it."""


def forget_udp(served: Served) -> int:
    """Deletes flows of UDP that were begun to an address and port of `served`, and whose answers
    come from none that serves there; returns how many there were.

    A client that goes on sending from one port would keep such a flow alive for ever.
    """
    return _forget_stale(_UDP, served, unanswered=False)


def forget_unanswered_tcp(served: Served) -> int:
    """The same of TCP's connections that were never answered: the client's next attempt is sent to
    one that serves, instead of where nobody answers, or nowhere at all."""
    return _forget_stale(_TCP, served, unanswered=True)


def _forget_stale(protocol: int, served: Served, *, unanswered: bool) -> int:
    only = b""
    if unanswered:  # of a busy node's flows few; kernels before 5.17 tell all
        only = wire.attr(_STATUS, _U32.pack(0)) + wire.attr(_STATUS_MASK, _U32.pack(_SEEN_REPLY))
    requests = []
    own = _own_addresses() if any(not address for address, _ in served) else frozenset[bytes]()
    maybe = _search_for(
        {address for address, _ in served if address},
        {port for address, port in served if not address},
    )
    with NetlinkSocket(NETLINK_NETFILTER) as netfilter:
        for family, attrs in _flows(netfilter, maybe, only):
            if unanswered and _U32.unpack(attrs[_STATUS])[0] & _SEEN_REPLY:
                continue
            asked = _end(attrs, _TUPLE_ORIGINAL, family, protocol, is_source=False)
            answering = _end(attrs, _TUPLE_REPLY, family, protocol, is_source=True)
            if asked and answering and _is_stale(served, asked, answering, own):
                requests.append(_deletion(family, attrs))
        _delete(netfilter, requests, "flows of endpoints that serve no more")
    return len(requests)


def _is_stale(
    served: Served, asked: tuple[bytes, int], answering: tuple[bytes, int], own: Collection[bytes]
) -> bool:
    """`own`: addresses of this node."""
    if asked in served:
        return answering not in served[asked]
    by_port = served.get((b"", asked[1]))
    # A port of the node: what was asked of another's, or of a Service, is not ours.
    return by_port is not None and answering not in by_port and asked[0] in own


def _own_addresses() -> frozenset[bytes]:
    """In the network namespace of the calling thread. Raises: KernelError."""
    with RouteSocket() as route:
        return frozenset(each.packed for each in route.addresses())


def _end(
    attrs: dict[int, bytes], tuple_kind: int, family: int, wanted: int, *, is_source: bool
) -> tuple[bytes, int] | None:
    """Packed address and port of one end; None: it is another protocol's."""
    nested = wire.parse_attrs(memoryview(attrs.get(tuple_kind, b"")), 0)
    protocol = wire.parse_attrs(memoryview(nested.get(_TUPLE_PROTOCOL, b"")), 0)
    if protocol.get(_NUMBER) != bytes([wanted]):
        return None
    addresses = wire.parse_attrs(memoryview(nested.get(_TUPLE_IP, b"")), 0)
    kind = _SOURCE[family] + (0 if is_source else 1)
    port = protocol.get(_SOURCE_PORT if is_source else _DESTINATION_PORT, b"")
    return addresses.get(kind, b""), int.from_bytes(port, "big")


def _ends(attrs: dict[int, bytes], tuple_kind: int) -> set[bytes]:
    """Packed source and destination of one direction."""
    nested = wire.parse_attrs(memoryview(attrs.get(tuple_kind, b"")), 0)
    return set(wire.parse_attrs(memoryview(nested.get(_TUPLE_IP, b"")), 0).values())


def _search_for(addresses: Collection[bytes], ports: Collection[int]) -> re.Pattern[bytes]:
    """Most flows are other pods': their bytes are searched before anything is parsed."""
    words = [re.escape(each) for each in sorted(addresses)]
    words += [re.escape(port.to_bytes(2, "big")) for port in sorted(ports)]
    if len(words) > _MOST_SEARCHED:  # each is tried at each byte: parsing is quicker
        words = [b""]
    return re.compile(b"|".join(words), re.DOTALL)


FlowEnd = tuple[int, bytes, int]
"""Number of the protocol, packed address (of what is asked for, empty: any of the node's), port."""


def count_flows(asked: Collection[FlowEnd]) -> Counter[FlowEnd]:
    """Flows that were begun to one of `asked` and led elsewhere, by who answers them.

    Of TCP those that are established. Raises: KernelError.
    """
    found: Counter[FlowEnd] = Counter()
    ports = {(protocol, port) for protocol, address, port in asked if not address}
    addresses = {address for _, address, _ in asked if address}
    if not asked:
        return found
    maybe = _search_for(addresses, {port for _, port in ports})
    with NetlinkSocket(NETLINK_NETFILTER) as netfilter:
        for family, attrs in _flows(netfilter, maybe):
            begun = flow_end(attrs, _TUPLE_ORIGINAL, family, is_source=False)
            answering = flow_end(attrs, _TUPLE_REPLY, family, is_source=True)
            is_meant = begun in asked or (begun[0], begun[2]) in ports
            if is_meant and begun != answering and is_alive(begun[0], attrs):
                found[answering] += 1
    return found


def _flows(
    netfilter: NetlinkSocket, maybe: re.Pattern[bytes], only: bytes = b""
) -> Iterator[tuple[int, dict[int, bytes]]]:
    """Family and attributes of the flows in whose bytes `maybe` is found.

    `only`: attributes by which the kernel leaves others out, if it knows them.
    """
    return _told(netfilter, _ANY_FAMILY + only, maybe)


def _told(
    netfilter: NetlinkSocket, question: bytes, maybe: re.Pattern[bytes]
) -> Iterator[tuple[int, dict[int, bytes]]]:
    """Family and attributes of what the kernel answers and in whose bytes `maybe` is found."""
    dump = wire.Request(_GET, wire.ROOT_MATCH, question, ("tracked flows",))
    for message in netfilter.dump(dump, lambda each: maybe.search(each.body) is not None):
        yield message.body[0], wire.parse_attrs(message.body, _NFGENMSG_BYTES)


def flow_end(attrs: dict[int, bytes], tuple_kind: int, family: int, *, is_source: bool) -> FlowEnd:
    nested = wire.parse_attrs(memoryview(attrs.get(tuple_kind, b"")), 0)
    protocol = wire.parse_attrs(memoryview(nested.get(_TUPLE_PROTOCOL, b"")), 0)
    addresses = wire.parse_attrs(memoryview(nested.get(_TUPLE_IP, b"")), 0)
    kind = _SOURCE[family] + (0 if is_source else 1)
    port = protocol.get(_SOURCE_PORT if is_source else _DESTINATION_PORT, b"")
    number = int.from_bytes(protocol.get(_NUMBER, b""), "big")
    return number, addresses.get(kind, b""), int.from_bytes(port, "big")


def is_alive(protocol: int, attrs: dict[int, bytes]) -> bool:
    """What the kernel still remembers of a TCP connection that has ended is none."""
    if protocol != _TCP:
        return True
    info = wire.parse_attrs(memoryview(attrs.get(_PROTOCOL_INFO, b"")), 0)
    state = wire.parse_attrs(memoryview(info.get(_TCP_INFO, b"")), 0).get(_TCP_STATE)
    return state == _TCP_ESTABLISHED
