"""`/metrics` and `/healthz` in clear: a server that does nothing else, so that little can be asked.

Whoever can reach the address may read it; the default is that there is none.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable
from http import HTTPStatus

import structlog

from limpet.base import faults
from limpet.base.addresses import Listen
from limpet.base.process import close_server

_log = structlog.get_logger("metrics")

_MOST_BYTES = 8192
"""Of a request; a scraper's has some two hundred."""
_MOST_CONNECTIONS = 32
_PATIENCE_S = 10.0
"""For a request to come in and its answer to be taken."""
_RETRY_S = 30.0
_IP_FREEBIND = 15
"""The address may come later than we do. Source: ip(7), include/uapi/linux/in.h."""
_TEXT = "text/plain; charset=utf-8"
EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"
"""Source: Prometheus, text-based exposition format."""

Page = tuple[HTTPStatus, str, bytes]
"""Status, content type, body."""


class MetricsServer:
    """Runs on the event loop. What it cannot do now it tries again; the agent goes on without."""

    def __init__(
        self,
        listen: Iterable[Listen],
        *,
        metrics: Callable[[], bytes],
        reasons: Callable[[], list[str]],
        patience_s: float = _PATIENCE_S,
        retry_s: float = _RETRY_S,
    ) -> None:
        """`metrics`: the exposition. `reasons`: why the agent is not ready; empty: it is."""
        self._metrics = metrics
        self._reasons = reasons
        self._patience_s = patience_s
        self._retry_s = retry_s
        self._waiting = list(listen)
        self._servers: list[asyncio.Server] = []
        self._connections: set[_Connection] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._tried = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self.troubles: dict[Listen, str] = {}
        """Where it does not listen, and why."""
        self.addresses: list[Listen] = []
        """Where it does."""

    async def start(self) -> None:
        """Raises nothing: where it cannot listen it tries again."""
        async with self._tried:
            await self._listen()

    async def _listen(self) -> None:
        for at in list(self._waiting):
            try:
                server = await self._open(at)
            except OSError as error:
                why = error.strerror or str(error)
                if self.troubles.get(at) != why:
                    _log.error(
                        "metrics are not served",
                        listen=f"{at[0]}:{at[1]}",
                        error=why,
                        what_to_do="free the port, or set another metrics_listen and restart",
                    )
                self.troubles[at] = why
                continue
            self._waiting.remove(at)
            self.troubles.pop(at, None)
            self._servers.append(server)
            self.addresses += [each.getsockname()[:2] for each in server.sockets]
        if self._waiting:
            self._retry = asyncio.get_running_loop().call_later(self._retry_s, self._again)

    def _again(self) -> None:
        task = asyncio.get_running_loop().create_task(self.start())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _open(self, at: Listen) -> asyncio.Server:
        """Raises: OSError."""
        family = socket.AF_INET6 if ":" in at[0] else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listener.bind(at)
            return await asyncio.get_running_loop().create_server(
                lambda: _Connection(self._page, self._connections, self._patience_s),
                sock=listener,
            )
        except OSError:
            listener.close()
            raise

    async def stop(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
        for task in self._tasks:
            task.cancel()
        for server in self._servers:
            await close_server(server)
        for connection in list(self._connections):
            connection.abort()

    def _page(self, path: str) -> Page:
        match path.partition("?")[0]:
            case "/metrics":
                return HTTPStatus.OK, EXPOSITION, self._metrics()
            case "/healthz":
                reasons = self._reasons()
                if not reasons:
                    return HTTPStatus.OK, _TEXT, b"ready\n"
                text = "".join(f"{reason}\n" for reason in reasons)
                return HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, text.encode()
            case _:
                return HTTPStatus.NOT_FOUND, _TEXT, b"there are /metrics and /healthz\n"


class _Connection(asyncio.Protocol):
    """Reads one request, writes one answer, closes. Source: RFC 9112."""

    def __init__(
        self, page: Callable[[str], Page], connections: set[_Connection], patience_s: float
    ) -> None:
        self._page = page
        self._patience_s = patience_s
        self._connections = connections
        self._received = bytearray()
        self._answered = False
        self._transport: asyncio.Transport | None = None
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if len(self._connections) >= _MOST_CONNECTIONS:
            transport.abort()
            return
        self._connections.add(self)
        self._patience = asyncio.get_running_loop().call_later(self._patience_s, transport.abort)

    def connection_lost(self, _error: Exception | None) -> None:
        self._connections.discard(self)
        if self._patience is not None:
            self._patience.cancel()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._answered:
            return
        self._received += data
        if b"\r\n\r\n" in self._received:
            self._answer(*self._asked())
        elif len(self._received) > _MOST_BYTES:
            too_large = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            self._answer(too_large, _TEXT, b"the request is too large\n")

    def _asked(self) -> Page:
        line = bytes(self._received).partition(b"\r\n")[0].decode("latin-1").split(" ")
        if len(line) != 3 or not line[2].startswith("HTTP/1."):
            return HTTPStatus.BAD_REQUEST, _TEXT, b"not an HTTP/1 request\n"
        if line[0] != "GET":
            return HTTPStatus.METHOD_NOT_ALLOWED, _TEXT, b"only GET is served\n"
        try:
            return self._page(line[1])
        except Exception as error:  # noqa: BLE001 - whatever cannot be told, the agent goes on
            faults.note("metrics", error)
            return HTTPStatus.INTERNAL_SERVER_ERROR, _TEXT, b"see the agent's log\n"

    def _answer(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
        assert self._transport is not None
        self._answered = True
        allow = "Allow: GET\r\n" if status is HTTPStatus.METHOD_NOT_ALLOWED else ""
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\n{allow}Content-Type: {content_type}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self._transport.write(head.encode("ascii") + body)
        self._transport.close()
