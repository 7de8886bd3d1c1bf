"""What runs in a pod that answers: it sends back what it gets, by UDP and TCP."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from typing import Any

from limpet.base.process.lifetime import for_ever
from limpet.linux.packets.echo import HEADERS_BYTES, forbid_fragments, path_mtu_bytes

_CHUNK_BYTES = 1 << 16


async def answer(port: int, *by_tcp: int) -> None:
    """Until it is cancelled; at ports `by_tcp` by TCP alone. Raises: OSError."""
    loop = asyncio.get_running_loop()
    servers = [await asyncio.start_server(_serve, None, each) for each in (port, *by_tcp)]
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):  # a pod of one family alone
            udp = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            if family == socket.AF_INET6:
                udp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            forbid_fragments(udp)
            udp.bind(("", port))
            await loop.create_datagram_endpoint(lambda of=udp: _Echo(of), sock=udp)  # type: ignore[misc]
    try:
        await for_ever()
    finally:
        for each in servers:
            each.close()


class _Echo(asyncio.DatagramProtocol):
    """Sends a datagram back, or as much of it as one packet of the way back holds."""

    def __init__(self, own: socket.socket) -> None:
        """`own`: on which datagrams come, and go back without delay: a full buffer loses them."""
        self._socket = own

    def datagram_received(self, data: bytes, address: Any) -> None:
        try:
            self._socket.sendto(data, address)
        except OSError as error:
            if error.errno == errno.EMSGSIZE:
                family = self._socket.family
                with contextlib.suppress(OSError):
                    room = path_mtu_bytes(family, address) - HEADERS_BYTES[family]
                    self._socket.sendto(data[: max(room, 0)], address)


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
        writer.close()
        await writer.wait_closed()
