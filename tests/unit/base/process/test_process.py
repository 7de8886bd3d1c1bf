"""The end of servers of asyncio, at any moment of a connection's beginning."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from limpet.base.metrics.server import MetricsServer
from limpet.cni.frames import AdminCall, CniCall
from limpet.cni.server import CniServer
from tests.beds.rogue import Authority, serving
from tests.waiting import PATIENCE_S

Stop = Callable[[], Awaitable[object]]
Start = Callable[[Path], Awaitable[tuple[socket.socket, Stop]]]


async def metrics(_folder: Path) -> tuple[socket.socket, Stop]:
    server = MetricsServer([("127.0.0.1", 0)], metrics=bytes, reasons=list)
    await server.start()
    return socket.create_connection(server.addresses[0]), server.stop


async def requests(folder: Path) -> tuple[socket.socket, Stop]:
    async def answer(_call: CniCall | AdminCall, _gone: Callable[[], bool]) -> tuple[int, bytes]:
        return 0, b""

    path = folder / "agent.sock"
    server = CniServer(path, answer)
    await server.start()
    client = socket.socket(socket.AF_UNIX)
    client.connect(str(path))
    return client, server.stop


async def streams(_folder: Path, tls: ssl.SSLContext | None = None) -> tuple[socket.socket, Stop]:
    async def serve(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()

    context = serving(serve, tls)
    host, _, port = (await context.__aenter__()).rpartition(":")
    return socket.create_connection((host, int(port))), lambda: context.__aexit__(None, None, None)


async def handshakes(folder: Path) -> tuple[socket.socket, Stop]:
    return await streams(folder, Authority(folder / "cluster").server_context())


@pytest.mark.parametrize("start", [metrics, requests, streams, handshakes])
@pytest.mark.parametrize("turns", range(6))
def test_a_connection_ends_with_its_server_however_far_it_had_got(
    tmp_path: Path, start: Start, turns: int
) -> None:
    async def scenario() -> socket.socket:
        client, stop = await start(tmp_path)
        for _ in range(turns):
            await asyncio.sleep(0)
        await stop()
        return client

    gc.disable()  # it would close what nobody else does
    try:
        with asyncio.run(scenario()) as client:
            client.settimeout(PATIENCE_S)
            try:
                assert client.recv(1) == b""
            except ConnectionResetError:
                pass
    finally:
        gc.enable()
    gc.collect()
