"""Sockets that send whole packets or none, and pings."""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import socket
import struct
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import ExitStack
from typing import Any

from limpet.base.bounds.servers import ECHOES

IP_MTU_DISCOVER, IP_PMTUDISC_DO, IP_MTU = 10, 2, 14
IPV6_MTU_DISCOVER, IPV6_PMTUDISC_DO, IPV6_MTU = 23, 2, 24
"""Source: linux/in.h, linux/in6.h."""
HEADERS_BYTES: dict[int, int] = {socket.AF_INET: 28, socket.AF_INET6: 48}
"""IP and UDP, or IP and ICMP, which is as long."""
_RECEIVED_BYTES = 1 << 16
_SOL_RAW, _ICMP_FILTER = 255, 1
"""The filter's number is that of both families. Source: linux/socket.h, icmp.h, icmpv6.h."""
_REPLIES: dict[int, int] = {socket.AF_INET: 0, socket.AF_INET6: 129}
_AGAIN_S = 0.2
"""A question may be lost, or come before what would carry it."""


def forbid_fragments(of: socket.socket) -> None:
    if of.family == socket.AF_INET:
        of.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
    else:
        of.setsockopt(socket.IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_DO)


def path_mtu_bytes(family: int, address: Any) -> int:
    """What the kernel knows of the way there now. Raises: OSError."""
    with socket.socket(family, socket.SOCK_DGRAM) as client:
        client.connect(address)
        if family == socket.AF_INET:
            return int(client.getsockopt(socket.IPPROTO_IP, IP_MTU))
        return int(client.getsockopt(socket.IPPROTO_IPV6, IPV6_MTU))


class Echo:
    """One peer that sends back what it gets: a pod of the test by UDP, or any machine by pings."""

    def __init__(self, address: str, port: int) -> None:
        """`port` 0: by pings. Raises: OSError; for pings without CAP_NET_RAW."""
        self.family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._pings = port == 0
        self._number = 0
        self._mark = os.urandom(8)
        self.peer = (address, port)
        kind, protocol = socket.SOCK_DGRAM, 0
        if self._pings:
            kind = socket.SOCK_RAW
            protocol = (
                socket.IPPROTO_ICMP if self.family == socket.AF_INET else socket.IPPROTO_ICMPV6
            )
        self._socket = socket.socket(self.family, kind | socket.SOCK_NONBLOCK, protocol)
        try:
            forbid_fragments(self._socket)
            self._socket.connect(self.peer)
        except OSError:
            self._socket.close()
            raise

    def close(self) -> None:
        self._socket.close()

    def packet_bytes(self) -> int:
        """The largest packet that the kernel would send there now. Raises: OSError."""
        return path_mtu_bytes(self.family, self.peer)

    async def ask(self, packet_bytes: int, wait_s: float) -> int | None:
        """Size of the packet that came back in answer to one of this size; None: none in time.

        Raises: OSError, with EMSGSIZE where it is larger than the kernel knows to fit.
        """
        self._number += 1
        stamp = self._mark + struct.pack("!I", self._number)
        body = stamp.ljust(packet_bytes - HEADERS_BYTES[self.family], b"\0")
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self._socket, self._question(body))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                async for data in self._received():
                    at = data.find(stamp)
                    if at >= 0 and not (self._pings and _is_request(data[:at])):
                        return len(data) - at + HEADERS_BYTES[self.family]
        return None

    def _question(self, body: bytes) -> bytes:
        return _ping(self.family, 0, self._number, body) if self._pings else body

    async def _received(self) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        for _ in range(ECHOES.most):
            yield await loop.sock_recv(self._socket, _RECEIVED_BYTES)
            await asyncio.sleep(0)  # what is there already is read without a turn for others


def _is_request(before: bytes) -> bool:
    """Who pings itself hears its questions, too. `before`: what stands before the body."""
    return len(before) >= 8 and before[-8] in (8, 128)


def _checksum(data: bytes) -> int:
    """Source: RFC 1071."""
    data += b"\0" * (len(data) % 2)
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def answering(addresses: Iterable[str], wait_s: float) -> set[str]:
    """Those that answer pings within that time. Each is asked until it has; all at once.

    Blocks. Raises: OSError, without CAP_NET_RAW.
    """
    waited_for = {address: number for number, address in enumerate(addresses)}
    answered: set[str] = set()
    with ExitStack() as undo:
        selector = undo.enter_context(selectors.DefaultSelector())
        sockets = {}
        for family in {_family(address) for address in waited_for}:
            sockets[family] = undo.enter_context(_replies(family))
            selector.register(sockets[family], selectors.EVENT_READ)
        mark, ident = os.urandom(8), int.from_bytes(os.urandom(2))
        end_s = time.monotonic() + wait_s
        while waited_for and time.monotonic() < end_s:
            for address, number in waited_for.items():
                with contextlib.suppress(OSError):  # no route, or its neighbour does not answer
                    body = mark + struct.pack("!I", number)
                    question = _ping(_family(address), ident, number, body)
                    sockets[_family(address)].sendto(question, (address, 0))
            again_s = min(time.monotonic() + _AGAIN_S, end_s)
            while waited_for and (left_s := again_s - time.monotonic()) > 0:
                for key, _ in selector.select(left_s):
                    assert isinstance(key.fileobj, socket.socket)
                    data, (address, *_) = key.fileobj.recvfrom(_RECEIVED_BYTES)
                    number = waited_for.get(address, -1)
                    if number >= 0 and data.endswith(mark + struct.pack("!I", number)):
                        del waited_for[address]
                        answered.add(address)
    return answered


def _family(address: str) -> int:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _replies(family: int) -> socket.socket:
    """A socket that hears answers alone. Raises: OSError."""
    reply = _REPLIES[family]
    six = family == socket.AF_INET6
    made = socket.socket(
        *(family, socket.SOCK_RAW | socket.SOCK_NONBLOCK),
        socket.IPPROTO_ICMPV6 if six else socket.IPPROTO_ICMP,
    )
    # A bit for each type that is kept away.
    words = [0xFFFFFFFF] * (8 if six else 1)
    words[reply // 32] &= ~(1 << reply % 32)
    level = socket.IPPROTO_ICMPV6 if six else _SOL_RAW
    made.setsockopt(level, _ICMP_FILTER, struct.pack(f"={len(words)}I", *words))
    return made


def _ping(family: int, ident: int, number: int, body: bytes) -> bytes:
    """An echo request; the kernel fills in the checksum of ICMPv6."""
    if family == socket.AF_INET6:
        return struct.pack("!BBHHH", 128, 0, 0, ident, number & 0xFFFF) + body
    head = struct.pack("!BBHHH", 8, 0, 0, ident, number & 0xFFFF)
    return head[:2] + struct.pack("!H", _checksum(head + body)) + head[4:] + body
