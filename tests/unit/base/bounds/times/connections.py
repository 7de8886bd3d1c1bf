"""Probes of the time that who has proven nothing has for a request, or for a greeting: the last of
it comes half a second before so many are over."""

from __future__ import annotations

import asyncio
import socket
import ssl
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web

from limpet.agent.serving.health import ServiceHealth
from limpet.base.bounds import strangers
from limpet.base.metrics.server import MetricsServer
from limpet.base.process.listeners import open_listener
from limpet.controller.api.server import Api
from limpet.controller.figures.metrics import Metrics
from limpet.controller.settings import ControllerSettings, WaitSettings
from limpet.controller.state.cluster import Cluster
from limpet.controller.store.sqlite import SqliteStore
from limpet.relay.server.tls_server import RelayTlsServer
from limpet.services.catalog import Catalog
from limpet.services.rotation import Here
from tests.beds.member import member_without_disk
from tests.unit.base.bounds.probes import probe
from tests.unit.base.bounds.times.clock import StoppedClock, on_stopped_clock

_BEFORE_S = 0.5
_ASKED = (b"GET /healthz HTTP/1.1\r\nHost: node\r\n", b"\r\n")


async def answer_later(
    loop: StoppedClock,
    at: tuple[str, int],
    parts: tuple[bytes, bytes],
    is_begun: Callable[[], bool],
    seconds: float,
) -> bytes:
    """What is answered to a request whose second part comes so much later."""
    reader, writer = await asyncio.open_connection(*at)
    try:
        writer.write(parts[0])
        await loop.until(is_begun)
        await loop.pass_by(seconds)
        writer.write(parts[1])
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.transport.abort()


@probe(strangers.FIGURES_S)
def _(amount: int) -> bool:
    async def body(loop: StoppedClock) -> bool:
        server = MetricsServer([("127.0.0.1", 0)], metrics=lambda: b"", reasons=list)
        await server.start()
        try:
            answer = await answer_later(
                *(loop, server.addresses[0], _ASKED),
                is_begun=lambda: server._requests.connections == 1,
                seconds=amount - _BEFORE_S,
            )
        finally:
            await server.stop()
        return answer.startswith(b"HTTP/1.1 200 ")

    return on_stopped_clock(body)


@probe(strangers.HEALTH_S)
def _(amount: int) -> bool:
    async def body(loop: StoppedClock) -> bool:
        health = ServiceHealth(Catalog(), lambda: Here("here"))
        server = await health._requests.start(
            open_listener(("127.0.0.1", 0)), partial(health._answer, 31234)
        )
        try:
            answer = await answer_later(
                *(loop, server.sockets[0].getsockname()[:2], _ASKED),
                is_begun=lambda: health._requests.connections == 1,
                seconds=amount - _BEFORE_S,
            )
        finally:
            server.close()
            await health.stop()
        return answer.startswith(b"HTTP/1.1 503 ")

    return on_stopped_clock(body)


@probe(strangers.API_BODY_S)
def _(amount: int) -> bool:
    """The controller waits longer for its members, by what it is set to."""

    async def body(loop: StoppedClock) -> bool:
        begun: list[str] = []

        @web.middleware
        async def note(request: web.Request, handler: Any) -> web.StreamResponse:
            begun.append(request.path)
            answer: web.StreamResponse = await handler(request)
            return answer

        store = SqliteStore(Path(folder, "controller.db"))
        cluster = Cluster(store, ControllerSettings())
        application = Api(cluster, "", Metrics(), WaitSettings().patience_s).application()
        application.middlewares.append(note)
        runner = web.AppRunner(application)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            head = b"POST /v1/join HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            answer = await answer_later(
                *(loop, runner.addresses[0]),
                (head + b'Content-Length: 10\r\n\r\n{"tok', b"en!!!"),
                is_begun=lambda: bool(begun),
                seconds=amount - _BEFORE_S,
            )
        finally:
            await runner.cleanup()
            await store.close()
        assert answer.startswith(b"HTTP/1.1 400 ")
        is_late = b"no whole body came within" in answer
        assert is_late is not (b"JoinRequest" in answer)
        return not is_late

    with tempfile.TemporaryDirectory() as folder:
        return on_stopped_clock(body)


@probe(strangers.RELAY_GREETING_S)
def _(amount: int) -> bool:
    """The connection is still there, on which nothing was said."""

    async def body(loop: StoppedClock) -> bool:
        relay = RelayTlsServer(_nobody, member_without_disk(), (), _nobody)
        relay._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            silent = socket.create_connection(listener.getsockname())
            relay._admit(listener.accept()[0], b"source")
        with silent:
            await loop.pass_by(0.0)
            await loop.pass_by(amount - _BEFORE_S)
            is_let_go = relay.counters["silent"] == 1
            assert is_let_go is not (relay.report().greeting == 1)
            await relay.stop()
        return not is_let_go

    return on_stopped_clock(body)


def _nobody(*_: object) -> Any: ...
