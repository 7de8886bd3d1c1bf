"""Sockets around `linux.netlink.codec`."""

from __future__ import annotations

import errno
import fcntl
import socket
import struct
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Self

from limpet.base.errors import KernelError
from limpet.linux.netlink import address_codec, link_codec, route_codec
from limpet.linux.netlink import codec as wire

_SOL_NETLINK = 270
_NETLINK_CAP_ACK, _NETLINK_EXT_ACK, _NETLINK_GET_STRICT_CHK = 10, 11, 12
_RECEIVE_BYTES = 32 << 10
"""As much as the kernel fills. From 128 KiB on, malloc maps memory anew for every call (15 µs).

Source: netlink_recvmsg, mallopt(3).
"""
_BATCH_BYTES = 64 << 10
"""Messages sent in one datagram at most; the socket's send buffer is larger."""
_BATCH_MESSAGES = 64
"""If each fails, there are as many answers at once, which the receive buffer has to hold."""
_SO_RCVBUFFORCE = 33
_NOTIFIED_BYTES = 4 << 20
"""Room for notifications that wait; each takes some 800 bytes, a thousand peers cause 5,000.

The system's own limit (net.core.rmem_max) is 212,992 bytes: less than a round of ours can cause.
"""
_ATTEMPTS = 8
"""To list what changes while it is read."""
_SIOCGIFFLAGS, _SIOCGIFINDEX = 0x8913, 0x8933
_IFREQ = struct.Struct("=16si20x")


class NetlinkSocket:
    """Netlink of the network namespace that the calling thread is in when it is made.

    The kernel answers within the send call, and puts the next part of a dump into the queue within
    the recv call for the one before: no call has to wait, so none asks whether it would.
    """

    def __init__(
        self, protocol: int, *, most: int | None = None, opened: socket.socket | None = None
    ) -> None:
        """`most`: answers to one dump; None: any number. `opened`: an open socket of that protocol,
        which is this one's from now on. Raises: KernelError."""
        self._most = most
        kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        self._socket = opened or _open_socket(kind, protocol)
        self._socket.setsockopt(_SOL_NETLINK, _NETLINK_CAP_ACK, 1)
        self._socket.setsockopt(_SOL_NETLINK, _NETLINK_EXT_ACK, 1)
        self._socket.setsockopt(_SOL_NETLINK, _NETLINK_GET_STRICT_CHK, 1)
        self._sequence = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def apply(self, *requests: wire.Request) -> None:
        """Sends all in as few datagrams as fit. Every request is tried; raises the first failure.

        Raises: KernelError.
        """
        for outcome in self.try_each(requests):
            if outcome is not None:
                raise outcome

    def try_each(self, requests: Iterable[wire.Request]) -> list[KernelError | None]:
        """The outcome of each request, in order; None where the wanted state is reached."""
        outcomes: list[KernelError | None] = []
        batch: list[wire.Request] = []
        size = 0
        for request in requests:
            length = len(request.body) + 64
            if batch and (len(batch) == _BATCH_MESSAGES or size + length > _BATCH_BYTES):
                outcomes += self._send_batch(batch)
                batch, size = [], 0
            batch.append(request)
            size += length
        if batch:
            outcomes += self._send_batch(batch)
        return outcomes

    def _send_batch(self, batch: list[wire.Request]) -> list[KernelError | None]:
        first = self._sequence + 1
        self._sequence += len(batch)
        last = len(batch) - 1
        # Failures are reported for each message; an acknowledgement is only needed for the last.
        frames = (wire.frame(request, first + i, ack=i == last) for i, request in enumerate(batch))
        self._send(batch[0], b"".join(frames))
        outcomes: list[KernelError | None] = [None] * len(batch)
        while True:
            for message in wire.parse_messages(self._receive(batch[0])):
                index = message.sequence - first
                if message.type != wire.NLMSG_ERROR or not 0 <= index <= last:
                    continue
                number, text = wire.parse_error(message)
                if number and number not in batch[index].ignore_errno:
                    outcomes[index] = _error(batch[index], number, text)
                if index == last:
                    return outcomes

    def query(self, request: wire.Request) -> wire.Message:
        """The single answer to a GET. Raises: KernelError (ENODEV and so on)."""
        self._sequence += 1
        self._send(request, wire.frame(request, self._sequence, ack=False))
        while True:
            for message in wire.parse_messages(self._receive(request)):
                if message.sequence != self._sequence:
                    continue
                if message.type == wire.NLMSG_ERROR:
                    number, text = wire.parse_error(message)
                    raise _error(request, number, text)
                return message

    def dump(
        self,
        request: wire.Request,
        keep: Callable[[wire.Message], bool] | None = None,
    ) -> list[wire.Message]:
        """All answers to a dump; begun anew when the kernel says that it was inconsistent.

        `keep`: of which the others are not kept. Raises: KernelError (E2BIG: more than `most`).
        """
        for _ in range(_ATTEMPTS):
            answers: list[wire.Message] = []

            def take(message: wire.Message, answers: list[wire.Message] = answers) -> None:
                if keep is not None and not keep(message):
                    return
                if len(answers) == self._most:
                    told = f"there are more than {self._most:,}"
                    raise KernelError("list", request.what, errno.E2BIG, told)
                answers.append(message)

            if self._dump_once(request, take):
                return answers
        raise KernelError("list", request.what, errno.EAGAIN, "changed all the time while reading")

    def dump_into(self, request: wire.Request, take: Callable[[wire.Message], None]) -> None:
        """Each answer to a dump as it comes: none is kept, since others may have made any number.

        While it changes all is told again, so some answers come several times.
        """
        for _ in range(_ATTEMPTS):
            if self._dump_once(request, take):
                return

    def dump_found(self, request: wire.Request) -> list[wire.Message]:
        """Empty where what it asks about is not there."""
        try:
            return self.dump(request)
        except KernelError as error:
            if error.errno in (errno.ENOENT, errno.ENODEV):
                return []
            raise

    def _dump_once(self, request: wire.Request, take: Callable[[wire.Message], None]) -> bool:
        """False: something has changed meanwhile."""
        self._sequence += 1
        self._send(request, wire.frame(request, self._sequence, ack=False))
        interrupted = False
        while True:
            for message in wire.parse_messages(self._receive(request)):
                if message.sequence != self._sequence:
                    continue
                interrupted |= bool(message.flags & wire.DUMP_INTERRUPTED)
                if message.type in (wire.NLMSG_DONE, wire.NLMSG_ERROR):
                    number, text = wire.parse_error(message)
                    if number:
                        raise _error(request, number, text)
                    return not interrupted
                take(message)

    def _send(self, request: wire.Request, frames: bytes) -> None:
        try:
            self._socket.send(frames)
        except OSError as error:
            raise KernelError("ask for", request.what, error.errno or 0) from error

    def _receive(self, request: wire.Request) -> bytes:
        try:
            return self._socket.recv(_RECEIVE_BYTES)
        except OSError as error:
            raise KernelError("hear of", request.what, error.errno or 0) from error


class RouteSocket(NetlinkSocket):
    """rtnetlink: links, addresses, routes, rules."""

    def __init__(self, *, most: int | None = None) -> None:
        super().__init__(socket.NETLINK_ROUTE, most=most)

    def links(self) -> dict[str, link_codec.LinkInfo]:
        """Links by name."""
        links = map(link_codec.parse_link, self.dump(link_codec.dump_links()))
        return {link.ifname: link for link in links}

    def link(self, ifname: str) -> link_codec.LinkInfo | None:
        """None when there is no such link."""
        try:
            return link_codec.parse_link(self.query(link_codec.get_link(ifname)))
        except KernelError as error:
            if error.errno == errno.ENODEV:
                return None
            raise

    def ifindex(self, ifname: str) -> int:
        """Without the lock that a question by message waits for. Raises: KernelError (ENODEV)."""
        return self._ifreq(_SIOCGIFINDEX, ifname)

    def flags(self, ifname: str) -> int:
        """The lower 16 IFF_ flags; as cheap as `ifindex`. Raises: KernelError (ENODEV)."""
        return self._ifreq(_SIOCGIFFLAGS, ifname)

    def _ifreq(self, code: int, ifname: str) -> int:
        """Any socket takes these requests. Source: man 7 netdevice."""
        try:
            answer = fcntl.ioctl(self._socket, code, _IFREQ.pack(ifname.encode(), 0))
        except OSError as error:
            raise KernelError("find", f"link {ifname}", error.errno or 0) from error
        number: int = _IFREQ.unpack(answer)[1]
        return number

    def addresses(self) -> list[address_codec.AddressInfo]:
        return [
            address_codec.parse_address(message)
            for message in self.dump(address_codec.dump_addresses())
        ]

    def find_addresses(self, wanted: Collection[bytes]) -> frozenset[bytes]:
        """Those of `wanted`, packed, that interfaces have; also of one that had it meanwhile."""
        found = set()

        def take(message: wire.Message) -> None:
            packed = address_codec.parse_address(message).packed
            if packed in wanted:
                found.add(packed)

        self.dump_into(address_codec.dump_addresses(), take)
        return frozenset(found)

    def bridge_ports(self) -> dict[int, link_codec.BridgePortInfo]:
        """Bridge ports by ifindex."""
        ports = map(link_codec.parse_bridge_port, self.dump(link_codec.dump_bridge_ports()))
        return {port.ifindex: port for port in ports if port is not None}

    def route_messages(self, *, table: int = 0, protocol: int = 0) -> list[wire.Message]:
        """Routes of a table and an origin, where these are given; others the kernel leaves out."""
        found: list[wire.Message] = []
        for family in (wire.AF_INET, wire.AF_INET6):
            found += self.dump_found(
                route_codec.dump_routes(family, table=table, protocol=protocol)
            )
        return found

    def routes(self, *, table: int = 0, protocol: int = 0) -> list[route_codec.RouteInfo]:
        """Routes as `route_messages` has them."""
        messages = self.route_messages(table=table, protocol=protocol)
        return [route_codec.parse_route(message) for message in messages]

    def rules(self) -> list[route_codec.RuleInfo]:
        return [route_codec.parse_rule(message) for message in self.dump(route_codec.dump_rules())]


def _open_socket(kind: int, protocol: int) -> socket.socket:
    try:
        return socket.socket(socket.AF_NETLINK, kind, protocol)
    except OSError as error:
        raise KernelError("open", "a netlink socket", error.errno or 0) from error


def _error(request: wire.Request, number: int, text: str) -> KernelError:
    verb = {wire.RTM_GETLINK: "find", wire.RTM_GETROUTE: "find"}.get(
        request.type, "delete" if request.type % 4 == 1 else "set up"
    )
    return KernelError(verb, request.what, number, text)


NETLINK_NETFILTER = 12
NFTABLES_GROUPS = (7,)
"""NFNLGRP_NFTABLES. Source: include/uapi/linux/netfilter/nfnetlink.h."""


class Notifications:
    """Kernel notifications of this namespace. They say where to look, not what is."""

    def __init__(self, protocol: int, groups: Iterable[int]) -> None:
        """Raises: KernelError."""
        kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        self._socket = _open_socket(kind, protocol)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _NOTIFIED_BYTES)
        except PermissionError:  # in a user namespace: as much as the system allows
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _NOTIFIED_BYTES)
        self._socket.bind((0, 0))
        self.join(groups)

    def join(self, groups: Iterable[int]) -> None:
        """These groups' notifications come too from now on."""
        for group in groups:
            self._socket.setsockopt(_SOL_NETLINK, 1, group)  # NETLINK_ADD_MEMBERSHIP

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def drain(self) -> Iterator[wire.Message | None]:
        """What has come in; None when the kernel dropped some (everything must be read anew)."""
        while True:
            try:
                datagram = self._socket.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise KernelError("read", "notifications", error.errno or 0) from error
                yield None
                continue
            yield from wire.parse_messages(datagram)
