"""`/metrics` and `/healthz` in clear: a server that does nothing else, so that little can be asked.

Whoever can reach the address may read it; the default is that there is none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from http import HTTPStatus

import structlog

from limpet.base import faults
from limpet.base.addresses import Listen
from limpet.base.bounds.strangers import (
    FIGURES_CONNECTIONS,
    FIGURES_CONNECTIONS_OF_ONE,
    FIGURES_REQUEST,
    FIGURES_S,
)
from limpet.base.http.one_request import RequestServers
from limpet.base.process.listeners import open_listener
from limpet.base.timer import Timer

_log = structlog.get_logger("metrics")

_RETRY_S = 30.0
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
        patience_s: float = FIGURES_S.most,
        retry_s: float = _RETRY_S,
    ) -> None:
        """`metrics`: the exposition. `reasons`: why the agent is not ready; empty: it is."""
        self._metrics = metrics
        self._reasons = reasons
        self._retry_s = retry_s
        self._waiting = list(listen)
        self._servers: list[asyncio.Server] = []
        self._requests = RequestServers(
            FIGURES_CONNECTIONS.most,
            FIGURES_CONNECTIONS_OF_ONE.most,
            request_bytes=FIGURES_REQUEST.most,
            patience_s=patience_s,
        )
        self._retry = Timer("metrics", lambda: self._requests.run(self.start()))
        self._tried = asyncio.Lock()
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
                listener = open_listener(at, may_come_later=True)
                server = await self._requests.start(listener, self._answer)
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
            self._retry.set_in(self._retry_s)

    async def stop(self) -> None:
        self._retry.stop()
        await self._requests.stop(self._servers)

    def _answer(self, request: bytes | None) -> bytes:
        status, content_type, body = self._answer_page(request)
        allow = "Allow: GET\r\n" if status is HTTPStatus.METHOD_NOT_ALLOWED else ""
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\n{allow}"
            f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n"
        )
        return head.encode("ascii") + body

    def _answer_page(self, request: bytes | None) -> Page:
        if request is None:
            too_large = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            return too_large, _TEXT, b"the request is too large\n"
        line = request.partition(b"\r\n")[0].decode("latin-1").split(" ")
        if len(line) != 3 or line[2] not in ("HTTP/1.0", "HTTP/1.1"):
            return HTTPStatus.BAD_REQUEST, _TEXT, b"not an HTTP/1 request\n"
        if line[0] != "GET":
            return HTTPStatus.METHOD_NOT_ALLOWED, _TEXT, b"only GET is served\n"
        try:
            return self._page(line[1])
        except Exception as error:  # noqa: BLE001 - whatever cannot be told, the agent goes on
            faults.note("metrics", error)
            return HTTPStatus.INTERNAL_SERVER_ERROR, _TEXT, b"see the agent's log\n"

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
