"""Servers that read one request of a connection, write one answer and close, so that little can be
asked of them. Source: RFC 9112."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Coroutine, Iterable
from functools import partial

from limpet.base.acceptor.places import Places, source_of
from limpet.base.process.listeners import close_server, start_server

_HEAD_ENDS = b"\r\n\r\n"

Answer = Callable[[bytes | None], bytes]
"""What is written for a request's head; None: that was too large. Empty: it is only closed."""


class RequestServers:
    """For one event loop. All its servers share their places, of which the oldest connection of who
    has most makes room for another."""

    def __init__(
        self, most: int, most_of_one: int, *, request_bytes: int, patience_s: float
    ) -> None:
        """`most_of_one`: connections of one source. `request_bytes`: of a whole request.
        `patience_s`: from a connection to its end."""
        self._places: Places[asyncio.StreamWriter] = Places(most, most_of_one)
        self._request_bytes = request_bytes
        self._patience_s = patience_s
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def connections(self) -> int:
        """Number of those that are open."""
        return len(self._places)

    async def start(self, listener: socket.socket, answer: Answer) -> asyncio.Server:
        """Takes over a bound socket, and closes it where no server comes of it. Raises: OSError."""
        return await start_server(
            partial(self._connected, answer),
            listener,
            limit_bytes=self._request_bytes - len(_HEAD_ENDS),
        )

    def run(self, work: Coroutine[None, None, None]) -> None:
        """Beside what is served, until it ends or `stop`."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self, servers: Iterable[asyncio.Server]) -> None:
        """Ends these, every connection, and all work."""
        for task in list(self._tasks):
            task.cancel()
        for server in servers:
            await close_server(server)
        for writer in list(self._places):
            writer.transport.abort()
        for task in list(self._tasks):  # of those that came while the servers were closed
            task.cancel()

    def _connected(
        self, answer: Answer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        leaves = self._places.put(writer, source_of(writer.get_extra_info("peername")[0]))
        if leaves is not None:
            leaves.transport.abort()
        self.run(self._serve(answer, reader, writer))

    async def _serve(
        self, answer: Answer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            with contextlib.suppress(OSError, EOFError):  # TimeoutError is an OSError
                async with asyncio.timeout(self._patience_s):
                    request: bytes | None
                    try:
                        request = await reader.readuntil(_HEAD_ENDS)
                    except asyncio.LimitOverrunError:
                        request = None
                    writer.write(answer(request))
                    writer.close()
                    await writer.wait_closed()
        finally:
            self._places.drop(writer)
            writer.transport.abort()
