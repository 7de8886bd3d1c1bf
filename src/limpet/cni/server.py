"""The agent's socket: frames in, answers out, one request for each connection."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog

from limpet.base.errors import StorageError
from limpet.base.server import close_server
from limpet.cni import frames as shim

_log = structlog.get_logger("server")

Call = shim.CniCall | shim.AdminCall
Handler = Callable[[Call, Callable[[], bool]], Awaitable[tuple[int, bytes]]]
"""Answers exit code and body. The second argument tells whether the one who asked has gone."""

_PATIENCE_S = 30.0
"""For a request to come in, and for an answer to be taken; both are at once with a live shim."""
_BACKLOG = 1024


class _Connection(asyncio.Protocol):
    """Reads one request, writes one answer, closes."""

    def __init__(
        self, handler: Handler, tasks: set[asyncio.Task[None]], silent: set[_Connection]
    ) -> None:
        self._handler = handler
        self._tasks = tasks
        self._silent = silent
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self._asked = False
        self._gone = False
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._silent.add(self)
        self._patience = asyncio.get_running_loop().call_later(_PATIENCE_S, transport.abort)

    def connection_lost(self, _error: Exception | None) -> None:
        self._gone = True
        self._silent.discard(self)
        self._end_patience()

    def abort(self) -> None:
        assert self._transport is not None
        self._transport.abort()

    def _end_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()

    def data_received(self, data: bytes) -> None:
        if self._asked or self._transport is None:
            return
        self._received += data
        if len(self._received) < shim.REQUEST_HEADER_BYTES:
            return
        try:
            header = shim.REQUEST_HEADER_BYTES
            end = header + shim.request_length(bytes(self._received[:header]))
            if len(self._received) < end:
                return
            request = shim.decode_request(bytes(self._received[header:end]))
        except shim.FrameError as error:
            _log.warning("dropped a connection", error=str(error))
            self._transport.abort()
            return
        self._asked = True
        self._silent.discard(self)
        self._end_patience()
        task = asyncio.get_running_loop().create_task(self._answer(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, request: Call) -> None:
        assert self._transport is not None
        try:
            exit_code, body = await self._handler(request, lambda: self._gone)
        except BaseException:
            self._transport.abort()  # or the one who asked would wait for all of its limit
            raise
        if not self._gone:
            loop = asyncio.get_running_loop()
            self._patience = loop.call_later(_PATIENCE_S, self._transport.abort)
            self._transport.write(shim.encode_answer(exit_code, body))
            self._transport.close()


class Server:
    """Listens on a unix socket that only root may connect to."""

    def __init__(self, path: Path, handler: Handler) -> None:
        self._path = path
        self._handler = handler
        self._tasks: set[asyncio.Task[None]] = set()
        self._silent: set[_Connection] = set()
        """Those from which no whole request has come yet."""
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Raises: StorageError."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        temporary = f"{self._path}.new"
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            Path(temporary).unlink(missing_ok=True)
            listener.bind(temporary)
            os.chmod(temporary, 0o600)
            listener.listen(_BACKLOG)
            # Whoever waits for the socket finds one that answers, never a half-made one.
            os.rename(temporary, self._path)
        except OSError as error:
            listener.close()
            raise StorageError(
                "listen on", str(self._path), error.strerror or str(error)
            ) from error
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(
            lambda: _Connection(self._handler, self._tasks, self._silent),
            sock=listener,
            backlog=_BACKLOG,
        )

    async def stop(self) -> None:
        """Takes no more requests; those that were taken are answered, other connections end."""
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("the socket file stays", path=str(self._path), error=str(error))
        if self._server is not None:
            await close_server(self._server)
        for connection in self._silent:
            connection.abort()
        while self._tasks:
            await asyncio.wait(self._tasks)
