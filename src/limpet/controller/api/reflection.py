"""Tells machines that have not joined yet where their UDP comes from (`limpet netcheck`)."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Iterable
from functools import partial
from ipaddress import IPv6Address, ip_address

import structlog

from limpet.base.addresses import Listen, endpoint_text
from limpet.cluster.datagrams.reflection import AddressReflector
from limpet.cluster.datagrams.udp_sockets import Arrive, UdpSockets

_log = structlog.get_logger("reflection")


class Reflection:
    """On UDP ports of the numbers that the API has on TCP; runs on the event loop."""

    def __init__(self) -> None:
        self._reflector = AddressReflector()
        self._sockets: list[UdpSockets] = []
        self._transports: list[asyncio.DatagramTransport] = []

    async def listen(self, at: Iterable[Listen]) -> None:
        """Where a port is another's, it is said, and the controller does without."""
        for each in at:
            try:
                await self._open(each)
            except OSError as error:
                _log.warning(
                    "limpet netcheck is not answered over UDP",
                    listen=endpoint_text(each),
                    error=error.strerror,
                )

    def close(self) -> None:
        for sockets in self._sockets:
            sockets.close()
        for transport in self._transports:
            transport.close()

    async def _open(self, at: Listen) -> None:
        """Raises: OSError."""
        address = ip_address(at[0])
        if address.is_unspecified:
            # An answer has to leave from the address that was asked.
            sockets = UdpSockets(lambda data, arrive: self._hear(sockets, data, arrive))
            self._sockets.append(sockets)
            sockets.open(4, at[1])
            if isinstance(address, IPv6Address):
                try:
                    sockets.open(6, at[1])
                except OSError as error:
                    if error.errno != errno.EAFNOSUPPORT:
                        raise  # else the kernel has no IPv6, and nobody asks over it
            return
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(
            partial(_Answering, self._reflector), local_addr=at
        )
        self._transports.append(transport)

    def _hear(self, sockets: UdpSockets, data: bytes, arrive: Arrive) -> bool:
        arrival = arrive()
        source = (arrival.address, arrival.port)
        answer = self._reflector.answer(data, source, time.monotonic())
        if answer is None:
            return False
        return sockets.send(answer, *source, source=arrival.to_address)


class _Answering(asyncio.DatagramProtocol):
    """At one address."""

    def __init__(self, reflector: AddressReflector) -> None:
        self._reflector = reflector
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self._transport = transport

    def datagram_received(self, data: bytes, where: tuple[str, int]) -> None:
        source = (ip_address(where[0].partition("%")[0]), where[1])
        answer = self._reflector.answer(data, source, time.monotonic())
        if answer is not None and self._transport is not None:
            self._transport.sendto(answer, where)
