"""The agent's socket: frames in, answers out, one request for each connection.

A shim has sent its request when its connection is accepted, so it is read at once, and its answer
fits the socket: only what is not ready has to wait for the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog

from limpet.base.bounds.tenants import CNI_CONNECTIONS
from limpet.base.process.listeners import UnixServer
from limpet.base.timer import Timer
from limpet.cni import frames as shim

_log = structlog.get_logger("server")

Call = shim.CniCall | shim.AdminCall
Handler = Callable[[Call, Callable[[], bool]], Awaitable[tuple[int, bytes]]]
"""Answers exit code and body. The second argument tells whether the one who asked has gone."""

_PATIENCE_S = 30.0
"""For a request to come in, and for an answer to be taken; both are at once with a live shim."""
_BACKLOG = 1024
_RECEIVE_BYTES = 256 << 10


class _Connection:
    """Reads one request, writes one answer, closes."""

    def __init__(self, connection: socket.socket, server: CniServer) -> None:
        self._socket = connection
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._received = bytearray()
        self._unsent = memoryview(b"")
        self._patience: Timer | None = None
        """None: nothing is waited for, as with almost every connection."""

    def read(self) -> None:
        """Takes what has come in; the rest of the request is waited for."""
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            self._wait(self._loop.add_reader, self.read)
            return
        except OSError:
            data = b""
        self._received += data
        try:
            request = self._request()
        except shim.FrameError as error:
            _log.warning("dropped a connection", error=str(error))
            self.close()
            return
        if request is not None:
            self._stop_waiting()
            task = self._loop.create_task(self._answer(request))
            self._server.tasks.add(task)
            task.add_done_callback(self._server.tasks.discard)
        elif data:
            self._wait(self._loop.add_reader, self.read)
        else:
            self.close()

    def _request(self) -> Call | None:
        """None: it is not whole yet. Raises: FrameError."""
        begin = shim.REQUEST_HEADER_BYTES
        if len(self._received) < begin:
            return None
        end = begin + shim.request_length(bytes(self._received[:begin]))
        if len(self._received) < end:
            return None
        return shim.decode_request(bytes(self._received[begin:end]))

    async def _answer(self, request: Call) -> None:
        try:
            exit_code, body = await self._server.handler(request, self._is_gone)
        except BaseException:
            self.close()  # or the one who asked would wait for all of its limit
            raise
        self._unsent = memoryview(shim.encode_answer(exit_code, body))
        self._write()

    def _is_gone(self) -> bool:
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def _write(self) -> None:
        with contextlib.suppress(OSError):  # nobody is there any more
            try:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
            except BlockingIOError:
                pass
            if self._unsent:
                self._wait(self._loop.add_writer, self._write)
                return
        self.close()

    def _wait(
        self, add: Callable[[socket.socket, Callable[[], None]], None], then: Callable[[], None]
    ) -> None:
        if self._patience is None:
            add(self._socket, then)
            self._patience = Timer("requests", self.close)
            self._patience.set_in(_PATIENCE_S)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.stop()
            self._patience = None
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)

    def close(self) -> None:
        self._stop_waiting()
        self._socket.close()
        self._server.left(self)


class CniServer:
    """Listens on a unix socket that only root may connect to."""

    def __init__(self, path: Path, handler: Handler) -> None:
        self._path = path
        self.handler = handler
        self.tasks: set[asyncio.Task[None]] = set()
        """Requests that are being answered."""
        self.connections: set[_Connection] = set()
        self._accepting = UnixServer(path, _BACKLOG, self._connected)
        self._is_full = False

    async def start(self) -> None:
        """Raises: StorageError."""
        self._accepting.start()

    def _connected(self, connection: socket.socket) -> None:
        served = _Connection(connection, self)
        self.connections.add(served)
        if len(self.connections) >= CNI_CONNECTIONS.most:
            self._is_full = True
            self._accepting.pause()
        served.read()

    def left(self, connection: _Connection) -> None:
        """It is closed, and makes room."""
        self.connections.discard(connection)
        if self._is_full:
            self._is_full = False
            self._accepting.resume()

    async def stop(self) -> None:
        """Takes no more requests; those that were taken are answered."""
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("the socket file stays", path=str(self._path), error=str(error))
        self._accepting.close()
        while self.tasks:
            await asyncio.wait(self.tasks)
        for connection in list(self.connections):
            connection.close()
