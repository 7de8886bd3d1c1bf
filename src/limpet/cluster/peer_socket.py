"""One authenticated UDP port for everything that nodes say to each other."""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

import structlog

from limpet.base import faults
from limpet.base.addresses import Address, UnderlayLink
from limpet.base.errors import ConfigError
from limpet.base.rate_limit import SourceRates
from limpet.cluster.documents import Sealed
from limpet.cluster.exchange.messages import Push, encode
from limpet.cluster.identity import Identity
from limpet.cluster.peer_datagram import Codec, Datagram, DatagramError, Drop, Kind
from limpet.cluster.shared_port import SharedPort

_log = structlog.get_logger("courier")

GROUP = IPv6Address("ff12::4c69:6d70")
"""Link-local, not assigned by anybody. Source: RFC 4291 section 2.7."""
_BROADCAST = IPv4Address("255.255.255.255")
_RECEIVE_BYTES = 1 << 16
_BUFFER_BYTES = 4 << 20
"""A site that reboots at once says much at once."""
_BATCH = 64
"""Datagrams read before others have their turn."""
_PAUSE_S = 0.02
"""During a flood nothing is read for so long; what does not fit the buffer the kernel drops."""
_MOST_REPLAYED, _MOST_SOURCES = 4096, 4096
_SOURCE_RATE, _SOURCE_BURST = 400, 800
"""Signatures checked for one source address, per second; one takes 0.1 ms."""
_MEMBERS_RATE, _STRANGERS_RATE = 2000, 200
"""For all addresses together that a member has written from, and for all others."""
_REFUSALS_RATE = 10
_PATIENCE_S = 2.0
"""Between two refusals of one removed node."""

_IP_PKTINFO, _IP_RECVTTL, _IP_MTU_DISCOVER, _IPV6_MTU_DISCOVER = 8, 12, 10, 23
_IP_PMTUDISC_DONT, _IP_PMTUDISC_PROBE = 0, 3
APART_HOP_LIMIT = 65
"""Of what shares the tunnel's port. Network cards put packets of one flow together, for a userspace
WireGuard that asks for it, and rules then see them as one: but never such of unlike hop limits.

Source: inet_gro_receive, ipv6_gro_receive. The tunnel's is 64.
"""
_SO_RCVBUFFORCE = 33
"""Source: include/uapi/linux/in.h, include/uapi/asm-generic/socket.h."""
_PKTINFO4 = struct.Struct("=i4s4s")
_PKTINFO6 = struct.Struct("=16si")
_INT = struct.Struct("=i")
_ANCILLARY_BYTES = 128


@dataclass(frozen=True, slots=True)
class Received:
    """What a node said: the holder of the key has signed it. That it is a member is not implied."""

    kind: int
    body: bytes
    uid: str
    public_key: bytes
    address: Address
    """That it came from; together with port and `ifindex` where an answer goes."""
    port: int
    ifindex: int
    """Of the link that it came in by."""
    hop_limit: int
    """Left of it."""
    to_address: Address
    """That it was sent to: one of ours, broadcast or multicast."""
    to_anybody: bool
    by_tunnel: bool = False
    """It came to our tunnel's port."""
    to_relay: bool = False
    """It was meant for the relay that we are, at a port that is a pair's; the body says which."""


Handler = Callable[[Received], bool | None]
"""False: there was no room for it just now; the same datagram counts when it comes again."""


class _Rates:
    def __init__(self) -> None:
        self.heard = SourceRates(
            each=(_SOURCE_RATE, _SOURCE_BURST),
            strangers=(_STRANGERS_RATE, 2 * _STRANGERS_RATE),
            members=(_MEMBERS_RATE, 2 * _MEMBERS_RATE),
            most=_MOST_SOURCES,
        )
        """Signatures that are checked, by address."""
        self.refused = SourceRates(
            each=(1 / _PATIENCE_S, 1),
            strangers=(_REFUSALS_RATE, _REFUSALS_RATE),
            members=None,
            most=_MOST_SOURCES,
        )
        """Refusals, by uid."""


class PeerSocket:
    """Runs on the event loop's thread."""

    def __init__(
        self,
        identity: Identity,
        *,
        port: int,
        is_member: Callable[[str], bool],
        is_removed: Callable[[str], Sealed | None],
    ) -> None:
        """`is_member`: the cluster has granted the uid something, and has not removed it.

        `is_removed`: the tombstone of a uid that was removed.
        """
        self.port = port
        self.counters: Counter[str] = Counter()
        """`sent`, `received`, `unsendable`, `handler_failed`, and what was dropped (`Drop`)."""
        self._codec = Codec(identity.private_key, identity.pinned_key)
        self._is_member = is_member
        self._is_removed = is_removed
        self._handlers: dict[int, Handler] = {}
        self._sockets: dict[int, socket.socket] = {}
        """By IP version."""
        self._tunnel_sockets: dict[int, socket.socket] = {}
        """By IP version, of what shares the tunnel's port."""
        self._shared = SharedPort()
        self._links: dict[int, UnderlayLink] = {}
        self._seen: OrderedDict[bytes, None] = OrderedDict()
        self._rates = _Rates()

    def start(self) -> None:
        """Listens, in the network namespace of the calling thread; within a running loop.

        A family that the machine does not have is left out. Raises: ConfigError.
        """
        loop = asyncio.get_running_loop()
        refused: dict[int, OSError] = {}
        for version, open_socket in ((4, _open_ipv4), (6, _open_ipv6)):
            try:
                self._sockets[version] = open_socket(self.port)
            except OSError as error:
                refused[version] = error
        in_use = [e for e in refused.values() if e.errno == errno.EADDRINUSE]
        if in_use or not self._sockets:
            self.stop()
            cause = (in_use or list(refused.values()))[0]
            hint = f"`ss -ulnp 'sport = :{self.port}'` tells who; stop it, or set another peer_port"
            raise ConfigError(
                f"listen on UDP port {self.port}: {cause.strerror}"
                + (f" ({hint})" if in_use else "")
            ) from cause
        for version, opened in self._sockets.items():
            loop.add_reader(opened.fileno(), self._read, version, opened)
        self._join_links(self._links)

    def stop(self) -> None:
        """The rules of the shared port stay: of what nobody listens for nothing is lost."""
        for sockets in (self._sockets, self._tunnel_sockets):
            for opened in sockets.values():
                asyncio.get_running_loop().remove_reader(opened.fileno())
                opened.close()
            sockets.clear()
        self._shared.close()

    def share_tunnel_port(self, port: int) -> None:
        """From now on `by_tunnel` sends and hears by the port that the node's tunnel has.

        Safe to call again, also after the rules for it were lost. Raises: KernelError, LimpetError.
        """
        if not self._tunnel_sockets:
            loop = asyncio.get_running_loop()
            for version in self._sockets:
                opened = (_open_ipv4 if version == 4 else _open_ipv6)(0, by_tunnel=True)
                self._tunnel_sockets[version] = opened
                loop.add_reader(opened.fileno(), self._read, version, opened)
        ports = {v: opened.getsockname()[1] for v, opened in self._tunnel_sockets.items()}
        self._shared.put(port, ports)

    def on(self, kind: Kind, handler: Handler) -> None:
        """`handler` gets all that is said of the kind."""
        self._handlers[kind] = handler

    def set_links(self, links: tuple[UnderlayLink, ...]) -> None:
        """The links on which what is for anybody is heard."""
        found = {link.ifindex: link for link in links}
        gone = self._links.keys() - found.keys()
        self._membership(socket.IPV6_LEAVE_GROUP, gone)
        self._links = found
        # All of them, each time: a link that has lost IPv6 meanwhile has lost the group too.
        self._join_links(found)

    def send(
        self,
        kind: Kind,
        body: bytes,
        *,
        to_uid: str,
        address: Address,
        port: int,
        hop_limit: int | None = None,
        ifindex: int | None = None,
        by_tunnel: bool = False,
        to_relay: bool = False,
        source: Address | None = None,
    ) -> bool:
        """Whether the kernel has taken it. An empty `to_uid`: whoever is there may read it.

        `ifindex`: over that link, whatever the routes say; a link-local address needs it.
        `by_tunnel`: from our tunnel's port, and never fragmented. `to_relay`: for the relay itself,
        at a port where it forwards everything else. `source`: one of our addresses.
        Raises: DatagramError when the body is too big.
        """
        data = self._codec.encode(kind, body, to_uid=to_uid, to_relay=to_relay)
        sockets = self._tunnel_sockets if by_tunnel else self._sockets
        return self._send(data, address, port, hop_limit, ifindex, sockets, source)

    def answer(self, received: Received, kind: Kind, body: bytes) -> bool:
        """Sends to where `received` came from, from where it was sent to; as `send`."""
        link_local = received.address.is_link_local
        to = received.to_address
        return self.send(
            kind,
            body,
            to_uid=received.uid,
            address=received.address,
            port=received.port,
            ifindex=received.ifindex if link_local else None,
            by_tunnel=received.by_tunnel,
            source=to if received.by_tunnel and not to.is_unspecified else None,
        )

    def broadcast(self, kind: Kind, body: bytes, ifindexes: Iterable[int]) -> None:
        """To everybody on the links, by multicast and broadcast. Raises: DatagramError."""
        data = self._codec.encode(kind, body)
        for ifindex in ifindexes:
            self._send(data, GROUP, self.port, 1, ifindex, self._sockets)
            link = self._links.get(ifindex)
            if link is None or any(address.version == 4 for address in link.addresses):
                self._send(data, _BROADCAST, self.port, 1, ifindex, self._sockets)

    def _send(
        self,
        data: bytes,
        address: Address,
        port: int,
        hop_limit: int | None,
        ifindex: int | None,
        sockets: Mapping[int, socket.socket],
        source: Address | None = None,
    ) -> bool:
        opened = sockets.get(address.version)
        ancillary: list[tuple[int, int, bytes]] = []
        where: tuple[str, int] | tuple[str, int, int, int]
        if address.version == 4:
            where = (str(address), port)
            if ifindex is not None or source is not None:
                packed = source.packed if source is not None else bytes(4)
                info = _PKTINFO4.pack(ifindex or 0, packed, bytes(4))
                ancillary.append((socket.IPPROTO_IP, _IP_PKTINFO, info))
            if hop_limit is not None:
                ancillary.append((socket.IPPROTO_IP, socket.IP_TTL, _INT.pack(hop_limit)))
        else:
            where = (str(IPv6Address(address.packed)), port, 0, ifindex or 0)
            if ifindex is not None or source is not None:
                packed = source.packed if source is not None else bytes(16)
                info = _PKTINFO6.pack(packed, ifindex or 0)
                ancillary.append((socket.IPPROTO_IPV6, socket.IPV6_PKTINFO, info))
            if hop_limit is not None:
                limit = _INT.pack(hop_limit)
                ancillary.append((socket.IPPROTO_IPV6, socket.IPV6_HOPLIMIT, limit))
        try:
            if opened is not None:
                opened.sendmsg([data], ancillary, 0, where)
                self.counters["sent"] += 1
                return True
        except OSError as error:
            _log.debug("a datagram was not sent", address=str(address), error=error.strerror)
        self.counters["unsendable"] += 1
        return False

    def _read(self, version: int, opened: socket.socket) -> None:
        flood = self.counters[Drop.OVER_RATE] + self.counters[Drop.FOREIGN]
        for _ in range(_BATCH):
            try:
                data, ancillary, _flags, where = opened.recvmsg(_RECEIVE_BYTES, _ANCILLARY_BYTES)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:  # of an earlier datagram, as an ICMP error came back
                _log.debug("a datagram was not read", error=error.strerror)
                continue
            try:
                by_tunnel = opened is self._tunnel_sockets.get(version)
                self._take(data, ancillary, where, version, by_tunnel=by_tunnel)
            except DatagramError as error:
                self.counters[error.drop] += 1
            except Exception as error:  # noqa: BLE001 - whatever one says, the others are heard
                self.counters["handler_failed"] += 1
                faults.note("datagrams", error)
            if not self._is_open(version, opened):
                return  # a handler has stopped us
        flood = self.counters[Drop.OVER_RATE] + self.counters[Drop.FOREIGN] - flood
        if flood > _BATCH // 2:
            self._pause(version, opened)

    def _pause(self, version: int, opened: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(opened.fileno())

        def go_on() -> None:
            if self._is_open(version, opened):
                loop.add_reader(opened.fileno(), self._read, version, opened)

        loop.call_later(_PAUSE_S, go_on)

    def _is_open(self, version: int, opened: socket.socket) -> bool:
        return opened in (self._sockets.get(version), self._tunnel_sockets.get(version))

    def _take(
        self,
        data: bytes,
        ancillary: list[tuple[int, int, bytes]],
        where: tuple[str, int],
        version: int,
        *,
        by_tunnel: bool,
    ) -> None:
        """Raises: DatagramError for what does not count."""
        datagram = self._codec.parse(data)
        source: Address = (
            IPv4Address(where[0]) if version == 4 else IPv6Address(where[0].partition("%")[0])
        )
        if datagram.signature in self._seen:
            raise DatagramError(Drop.REPLAYED, "it has come before")
        # Each port of loopback stands for a node that comes in a stream.
        part = where[1] if source.is_loopback else None
        if not self._rates.heard.take(source, time.monotonic(), part=part):
            raise DatagramError(Drop.OVER_RATE, "too many come")
        datagram.check()
        self._seen[datagram.signature] = None
        if len(self._seen) > _MOST_REPLAYED:
            self._seen.popitem(last=False)
        received = _received(datagram, ancillary, source, where[1], by_tunnel=by_tunnel)
        tombstone = self._is_removed(received.uid)
        if tombstone is not None:
            self._refuse(received, tombstone)
            raise DatagramError(Drop.REMOVED, "its sender was removed from the cluster")
        if self._is_member(received.uid):
            self._rates.heard.know(source)
        handler = self._handlers.get(datagram.kind)
        if handler is None:
            raise DatagramError(Drop.UNHANDLED, f"kind {datagram.kind} is unknown")
        self.counters["received"] += 1
        if handler(received) is False:
            self._seen.pop(datagram.signature, None)

    def _refuse(self, received: Received, tombstone: Sealed) -> None:
        """Tells a removed node so, now and then: it may not have heard."""
        if self._rates.refused.take(received.uid, time.monotonic()):
            self.answer(received, Kind.EXCHANGE, encode(Push((tombstone,))))

    def _join_links(self, ifindexes: Iterable[int]) -> None:
        self._membership(socket.IPV6_JOIN_GROUP, ifindexes)

    def _membership(self, option: int, ifindexes: Iterable[int]) -> None:
        opened = self._sockets.get(6)
        if opened is None:
            return
        for ifindex in ifindexes:
            request = GROUP.packed + struct.pack("=I", ifindex)
            try:
                opened.setsockopt(socket.IPPROTO_IPV6, option, request)
            except OSError as error:  # joined already, gone already, or a link without IPv6
                _log.debug("multicast group", ifindex=ifindex, error=error.strerror)


def _received(
    datagram: Datagram,
    ancillary: list[tuple[int, int, bytes]],
    source: Address,
    port: int,
    *,
    by_tunnel: bool,
) -> Received:
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
    return Received(
        kind=datagram.kind,
        body=datagram.body,
        uid=datagram.uid,
        public_key=datagram.public_key,
        address=source,
        port=port,
        ifindex=ifindex,
        hop_limit=hop_limit,
        to_address=to_address,
        to_anybody=datagram.to_anybody,
        by_tunnel=by_tunnel,
        to_relay=datagram.to_relay,
    )


def _open_ipv4(port: int, *, by_tunnel: bool = False) -> socket.socket:
    """Raises: OSError."""
    opened = _open(socket.AF_INET)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        opened.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
        opened.setsockopt(socket.IPPROTO_IP, _IP_RECVTTL, 1)
        # Routers may fragment: what a path takes is not known before something has got through.
        # Not what shares the tunnel's port: it finds out what size the tunnel's packets may have.
        discover = _IP_PMTUDISC_PROBE if by_tunnel else _IP_PMTUDISC_DONT
        opened.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, discover)
        if by_tunnel:
            opened.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, APART_HOP_LIMIT)
        opened.bind(("0.0.0.0", port))
    except OSError:
        opened.close()
        raise
    return opened


def _open_ipv6(port: int, *, by_tunnel: bool = False) -> socket.socket:
    """Raises: OSError."""
    opened = _open(socket.AF_INET6)
    try:
        opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
        opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVHOPLIMIT, 1)
        opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_LOOP, 0)
        if by_tunnel:
            opened.setsockopt(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _IP_PMTUDISC_PROBE)
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS, APART_HOP_LIMIT)
        opened.bind(("::", port))
    except OSError:
        opened.close()
        raise
    return opened


def _open(family: socket.AddressFamily) -> socket.socket:
    opened = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        opened.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
    except PermissionError:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
    return opened
