"""Attempts as sockets: each has a port of its own, and takes packets of its upstream alone."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
from collections.abc import Callable

from limpet.base import faults
from limpet.dns.forward.effects import AskUpstream
from limpet.dns.forward.health import Upstream
from limpet.dns.wire import LARGEST_TCP

_TCP_S = 4.0
"""A connection, a question and its answer take no longer."""
_AT_ONCE = 64
"""Answers that are taken before others have their turn."""


class UpstreamSockets:
    """Runs on the event loop's thread."""

    def __init__(self, heard: Callable[[int, bytes], None], failed: Callable[[int], None]) -> None:
        self._heard = heard
        self._failed = failed
        self._open: dict[int, socket.socket | asyncio.Task[None]] = {}
        self._attempts: dict[int, int] = {}
        """By the descriptors of their sockets."""
        # In the event loop's own a descriptor costs twice what all else costs about a socket.
        self._epoll: select.epoll | None = None
        self._turn = asyncio.Lock()
        """Answers by TCP, which are large, are heard one by one: others have their turn between."""

    def send(self, asked: AskUpstream, upstream: Upstream) -> None:
        """A failure is told later, never from here."""
        loop = asyncio.get_running_loop()
        if asked.by_tcp:
            self._open[asked.attempt] = loop.create_task(self._by_tcp(asked, upstream))
            return
        if self._epoll is None:
            self._epoll = select.epoll()
            loop.add_reader(self._epoll.fileno(), self._readable, self._epoll)
        family = socket.AF_INET if upstream.address.version == 4 else socket.AF_INET6
        # The kernel chooses the port at random. Source: udp_lib_get_port in net/ipv4/udp.c.
        made = None
        try:
            made = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            made.connect(_place_of(upstream))
            made.send(asked.message)
            self._epoll.register(made, select.EPOLLIN)
        except OSError:
            if made is not None:
                made.close()
            loop.call_soon(self._failed, asked.attempt)
            return
        self._open[asked.attempt] = made
        self._attempts[made.fileno()] = asked.attempt

    def close(self, attempt: int) -> None:
        found = self._open.pop(attempt, None)
        if isinstance(found, socket.socket):
            del self._attempts[found.fileno()]
            found.close()  # that takes it out of the epoll
        elif found is not None:
            found.cancel()

    def close_all(self) -> None:
        for attempt in list(self._open):
            self.close(attempt)
        if self._epoll is not None:
            asyncio.get_running_loop().remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None

    def _readable(self, epoll: select.epoll) -> None:
        for fd, _ in epoll.poll(0, _AT_ONCE):
            # One that was closed meanwhile may have given its number to another, which is silent.
            attempt = self._attempts.get(fd)
            made = self._open.get(attempt) if attempt is not None else None
            if attempt is None or not isinstance(made, socket.socket):
                continue
            try:
                message = made.recv(LARGEST_TCP)
            except BlockingIOError:
                continue
            except OSError:  # nobody listens there, or there is no way
                self._failed(attempt)
            else:
                self._heard(attempt, message)

    async def _by_tcp(self, asked: AskUpstream, upstream: Upstream) -> None:
        try:
            async with asyncio.timeout(_TCP_S):
                message = await _ask_by_tcp(asked.message, upstream)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            self._failed(asked.attempt)
        except Exception as error:  # noqa: BLE001 - the others go on
            faults.note("asking an upstream", error)
            self._failed(asked.attempt)
        else:
            async with self._turn:
                self._heard(asked.attempt, message)
                await asyncio.sleep(0)


def _place_of(upstream: Upstream) -> tuple[str | int, ...]:
    """As `connect` takes it, which knows no name of a link in an address. Links come and go, and
    have other numbers then. Raises: OSError: no link is called so."""
    address = upstream.address
    if address.version == 4 or address.scope_id is None:
        return (str(address), upstream.port)
    zone = address.scope_id
    try:
        number = int(zone) if zone.isascii() and zone.isdigit() else socket.if_nametoindex(zone)
    except ValueError as error:  # no name at all
        raise OSError(str(error)) from error
    return (str(address).partition("%")[0], upstream.port, 0, number)


async def _ask_by_tcp(question: bytes, upstream: Upstream) -> bytes:
    reader, writer = await asyncio.open_connection(str(upstream.address), upstream.port)
    try:
        writer.write(len(question).to_bytes(2, "big") + question)
        await writer.drain()
        length = int.from_bytes(await reader.readexactly(2), "big")
        return await reader.readexactly(length)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
