"""The UDP sockets of one port, of both IP versions: each datagram with the link that it came in by,
its hop limit and the address that it was sent to."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Iterable
from functools import partial
from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple

import structlog

from limpet.base.addresses import Address
from limpet.base.ownership import TUNNEL_MARK

_log = structlog.get_logger("courier")

APART_HOP_LIMIT = 65
"""Hop limit of what shares the tunnel's port. Network cards put packets of one flow together, for a
userspace WireGuard that asks for it, and rules then see them as one: but never such of unlike hop
limits.

Source: inet_gro_receive, ipv6_gro_receive. The tunnel's is 64.
"""
_RECEIVE_BYTES = 1 << 16
_BUFFER_BYTES = 4 << 20
"""A site that reboots at once says much at once."""
_BATCH = 64
"""Datagrams read before others have their turn."""
_PAUSE_S = 0.02
"""During a flood nothing is read for so long; what does not fit the buffer the kernel drops."""

_IP_PKTINFO, _IP_RECVTTL, _IP_MTU_DISCOVER, _IPV6_MTU_DISCOVER = 8, 12, 10, 23
_DISCOVER_DONT, _DISCOVER_PROBE = 0, 3
_SO_RCVBUFFORCE = 33
"""Source: include/uapi/linux/in.h, in6.h, include/uapi/asm-generic/socket.h."""
_PKTINFO4 = struct.Struct("=i4s4s")
_PKTINFO6 = struct.Struct("=16si")
_INT = struct.Struct("=i")
_ANCILLARY_BYTES = 128

_IPV4, _IPV6 = socket.IPPROTO_IP, socket.IPPROTO_IPV6
_FAMILIES = {4: (socket.AF_INET, "0.0.0.0"), 6: (socket.AF_INET6, "::")}
_OPTIONS = {
    4: (
        (socket.SOL_SOCKET, socket.SO_BROADCAST, 1),
        (_IPV4, _IP_PKTINFO, 1),
        (_IPV4, _IP_RECVTTL, 1),
        # Routers may fragment: what a path takes is not known before something has got through.
        (_IPV4, _IP_MTU_DISCOVER, _DISCOVER_DONT),
    ),
    6: (
        (_IPV6, socket.IPV6_V6ONLY, 1),
        (_IPV6, socket.IPV6_RECVPKTINFO, 1),
        (_IPV6, socket.IPV6_RECVHOPLIMIT, 1),
        (_IPV6, socket.IPV6_MULTICAST_LOOP, 0),
    ),
}
# A tunnel that leads to where another end of its peer is would prove that end by itself.
_ROUTED_AS_TUNNEL = (socket.SOL_SOCKET, socket.SO_MARK, TUNNEL_MARK)
_APART_OPTIONS = {
    # Never fragmented: it finds out what size the tunnel's packets may have.
    4: (
        _ROUTED_AS_TUNNEL,
        (_IPV4, _IP_MTU_DISCOVER, _DISCOVER_PROBE),
        (_IPV4, socket.IP_TTL, APART_HOP_LIMIT),
    ),
    6: (
        _ROUTED_AS_TUNNEL,
        (_IPV6, _IPV6_MTU_DISCOVER, _DISCOVER_PROBE),
        (_IPV6, socket.IPV6_UNICAST_HOPS, APART_HOP_LIMIT),
    ),
}


class Arrival(NamedTuple):
    """How a datagram came."""

    address: Address
    """Address that it came from; together with port and `ifindex` where an answer goes."""
    port: int
    ifindex: int
    """Index of the link that it came in by."""
    hop_limit: int
    """What is left of its hop limit."""
    to_address: Address
    """Address that it was sent to: one of ours, broadcast or multicast."""


Arrive = Callable[[], Arrival]
"""Told on demand: of a flood of foreign datagrams nobody asks."""


class UdpSockets:
    """Runs on the event loop's thread."""

    def __init__(self, take: Callable[[bytes, Arrive], bool], *, apart: bool = False) -> None:
        """`take` gets each datagram; False: it is one of those that floods are made of.

        `apart`: they share the tunnel's port.
        """
        self._take = take
        self._apart = apart
        self._sockets: dict[int, socket.socket] = {}
        """By IP version."""

    @property
    def ports(self) -> dict[int, int]:
        """By IP version; empty: none is open."""
        return {version: opened.getsockname()[1] for version, opened in self._sockets.items()}

    def open(self, version: int, port: int) -> None:
        """In the calling thread's network namespace; within a running loop. Raises: OSError."""
        opened = self._sockets[version] = _open(version, port, apart=self._apart)
        self._listen(version, opened)

    def close(self) -> None:
        for opened in self._sockets.values():
            asyncio.get_running_loop().remove_reader(opened.fileno())
            opened.close()
        self._sockets.clear()

    def send(
        self,
        data: bytes,
        address: Address,
        port: int,
        *,
        hop_limit: int | None = None,
        ifindex: int | None = None,
        source: Address | None = None,
    ) -> bool:
        """Whether the kernel has taken it."""
        opened = self._sockets.get(address.version)
        if opened is None:
            return False
        ancillary: list[tuple[int, int, bytes]] = []
        where: tuple[str, int] | tuple[str, int, int, int]
        pinned = ifindex is not None or source is not None
        limit = None if hop_limit is None else _INT.pack(hop_limit)
        if address.version == 4:
            where = (str(address), port)
            if pinned:
                info = _PKTINFO4.pack(ifindex or 0, source.packed if source else b"", b"")
                ancillary.append((_IPV4, _IP_PKTINFO, info))
            if limit is not None:
                ancillary.append((_IPV4, socket.IP_TTL, limit))
        else:
            where = (str(IPv6Address(address.packed)), port, 0, ifindex or 0)
            if pinned:
                info = _PKTINFO6.pack(source.packed if source else b"", ifindex or 0)
                ancillary.append((_IPV6, socket.IPV6_PKTINFO, info))
            if limit is not None:
                ancillary.append((_IPV6, socket.IPV6_HOPLIMIT, limit))
        try:
            opened.sendmsg([data], ancillary, 0, where)
        except OSError as error:
            _log.debug("a datagram was not sent", address=str(address), error=error.strerror)
            return False
        return True

    def join(self, group: IPv6Address, ifindexes: Iterable[int]) -> None:
        """Hear what is sent to the multicast group on these links; once more does no harm."""
        self._set_group(socket.IPV6_JOIN_GROUP, group, ifindexes)

    def leave(self, group: IPv6Address, ifindexes: Iterable[int]) -> None:
        self._set_group(socket.IPV6_LEAVE_GROUP, group, ifindexes)

    def _set_group(self, option: int, group: IPv6Address, ifindexes: Iterable[int]) -> None:
        opened = self._sockets.get(6)
        if opened is None:
            return
        for ifindex in ifindexes:
            try:
                opened.setsockopt(_IPV6, option, group.packed + struct.pack("=I", ifindex))
            except OSError as error:  # joined already, gone already, or a link without IPv6
                _log.debug("multicast group", ifindex=ifindex, error=error.strerror)

    def _listen(self, version: int, opened: socket.socket) -> None:
        if self._sockets.get(version) is opened:
            loop = asyncio.get_running_loop()
            loop.add_reader(opened.fileno(), self._read, version, opened)

    def _read(self, version: int, opened: socket.socket) -> None:
        flood = 0
        for _ in range(_BATCH):
            try:
                data, ancillary, _flags, where = opened.recvmsg(_RECEIVE_BYTES, _ANCILLARY_BYTES)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:  # of an earlier datagram, as an ICMP error came back
                _log.debug("a datagram was not read", error=error.strerror)
                continue
            flood += not self._take(data, partial(_arrival, version, ancillary, where))
            if self._sockets.get(version) is not opened:
                return  # who took it has closed us
        if flood > _BATCH // 2:
            loop = asyncio.get_running_loop()
            loop.remove_reader(opened.fileno())
            # Once, for this socket; one that was closed meanwhile is passed over.
            loop.call_later(_PAUSE_S, self._listen, version, opened)


def _arrival(
    version: int, ancillary: list[tuple[int, int, bytes]], where: tuple[str, int]
) -> Arrival:
    ifindex, hop_limit = 0, 0
    to_address: Address = IPv6Address(0)
    for _level, kind, value in ancillary:
        match kind:
            case 8:  # IP_PKTINFO
                ifindex, _local, packed = _PKTINFO4.unpack(value)
                to_address = IPv4Address(packed)
            case socket.IPV6_PKTINFO:
                packed, ifindex = _PKTINFO6.unpack(value)
                to_address = IPv6Address(packed)
            case socket.IP_TTL | socket.IPV6_HOPLIMIT:
                hop_limit = _INT.unpack(value)[0]
    source = IPv4Address(where[0]) if version == 4 else IPv6Address(where[0].partition("%")[0])
    return Arrival(source, where[1], ifindex, hop_limit, to_address)


def _open(version: int, port: int, *, apart: bool) -> socket.socket:
    family, anywhere = _FAMILIES[version]
    opened = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        try:
            opened.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
        except PermissionError:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        for option in _OPTIONS[version] + (_APART_OPTIONS[version] if apart else ()):
            opened.setsockopt(*option)
        opened.bind((anywhere, port))
    except OSError:
        opened.close()
        raise
    return opened
