"""The server of `/metrics` and `/healthz`, over real connections on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limpet.base.bounds.strangers import (
    FIGURES_CONNECTIONS,
    FIGURES_CONNECTIONS_OF_ONE,
    FIGURES_REQUEST,
)
from limpet.base.metrics.server import MetricsServer
from tests.effort import examples
from tests.unit.cluster.test_membership import on_a_loop
from tests.waiting import until

FIGURES = b"limpet_agent_ready 1.0\n"
GET = b"GET %s HTTP/1.1\r\nHost: node\r\n\r\n"


@asynccontextmanager
async def serving(
    *reasons: str, host: str = "127.0.0.1", patience_s: float = 10.0
) -> AsyncIterator[MetricsServer]:
    server = MetricsServer(
        [(host, 0)],
        metrics=lambda: FIGURES,
        reasons=lambda: list(reasons),
        patience_s=patience_s,
    )
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def ask(server: MetricsServer, request: bytes) -> tuple[bytes, bytes]:
    """Status line and body; both empty when the connection was dropped."""
    reader, writer = await asyncio.open_connection(*server.addresses[0])
    writer.write(request)
    try:
        answer = await asyncio.wait_for(reader.read(), 10)
    except ConnectionResetError:
        answer = b""
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.partition(b"\r\n")[0], body


@on_a_loop
async def test_figures_are_served_as_they_are_made() -> None:
    async with serving() as server:
        assert await ask(server, GET % b"/metrics") == (b"HTTP/1.1 200 OK", FIGURES)
        assert await ask(server, GET % b"/metrics?x=1") == (b"HTTP/1.1 200 OK", FIGURES)


@on_a_loop
async def test_figures_are_served_over_ipv6() -> None:
    async with serving(host="::1") as server:
        assert await ask(server, GET % b"/metrics") == (b"HTTP/1.1 200 OK", FIGURES)


@on_a_loop
async def test_a_healthy_agent_is_200_and_one_that_takes_no_pods_is_503_with_reasons() -> None:
    async with serving() as server:
        assert await ask(server, GET % b"/healthz") == (b"HTTP/1.1 200 OK", b"ready\n")
    async with serving("no segments", "disk full") as server:
        assert await ask(server, GET % b"/healthz") == (
            b"HTTP/1.1 503 Service Unavailable",
            b"no segments\ndisk full\n",
        )


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (GET % b"/", b"404"),
        (GET % b"/metrics/../x", b"404"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", b"405"),
        (b"GET /metrics HTTP/2.0\r\n\r\n", b"400"),
        (b"\r\n\r\n", b"400"),
        (b"\xff\xfe\x00 \r\n\r\n", b"400"),
        (b"x" * 9000, b"431"),
    ],
)
@on_a_loop
async def test_all_else_is_refused_with_its_status(request_: bytes, status: bytes) -> None:
    async with serving() as server:
        assert (await ask(server, request_))[0].split(b" ")[1] == status


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(st.binary(max_size=400), max_size=4))
def test_garbage_in_any_pieces_never_stops_the_server(pieces: list[bytes]) -> None:
    async def check() -> None:
        async with serving() as server:
            _, writer = await asyncio.open_connection(*server.addresses[0])
            for piece in pieces:
                writer.write(piece)
            await writer.drain()
            writer.close()
            assert (await ask(server, GET % b"/metrics"))[1] == FIGURES

    asyncio.run(check())


@on_a_loop
async def test_a_request_may_come_byte_by_byte() -> None:
    async with serving() as server:
        reader, writer = await asyncio.open_connection(*server.addresses[0])
        for byte in GET % b"/healthz":
            writer.write(bytes([byte]))
            await writer.drain()
        assert (await reader.read()).endswith(b"\r\n\r\nready\n")
        writer.close()


@on_a_loop
async def test_whoever_asks_nothing_is_dropped() -> None:
    async with serving(patience_s=0.01) as server:
        reader, writer = await asyncio.open_connection(*server.addresses[0])
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()


async def held(server: MetricsServer, amount: int, sources: int = 32) -> int:
    """How many connections of so many addresses are answered when all are open."""
    opened = [
        await asyncio.open_connection(
            *server.addresses[0], local_addr=(f"127.0.2.{number % sources + 1}", 0)
        )
        for number in range(amount)
    ]
    answered = 0
    for reader, writer in opened:
        with contextlib.suppress(ConnectionError):
            writer.write(GET % b"/metrics")
            answered += (await reader.read()).endswith(FIGURES)
        writer.close()
    return answered


@on_a_loop
async def test_beyond_the_most_connections_the_oldest_makes_room_and_later_ones_are_served() -> (
    None
):
    for bound, sources in ((FIGURES_CONNECTIONS, 32), (FIGURES_CONNECTIONS_OF_ONE, 1)):
        async with serving() as server:
            assert await held(server, bound.most, sources) == bound.most
        async with serving() as server:
            assert await held(server, bound.most + 1, sources) == bound.most
            assert (await ask(server, GET % b"/metrics"))[1] == FIGURES


@on_a_loop
async def test_a_request_is_read_as_far_as_its_bound() -> None:
    async with serving() as server:
        head = b"GET /metrics HTTP/1.1\r\nHost: "
        for size, status in ((FIGURES_REQUEST.most, b"200"), (FIGURES_REQUEST.most + 1, b"431")):
            padding = b"x" * (size - len(head) - 4)
            assert status in (await ask(server, head + padding + b"\r\n\r\n"))[0]


@on_a_loop
async def test_figures_that_cannot_be_made_are_an_error_and_the_server_goes_on() -> None:
    def fail() -> bytes:
        raise RuntimeError("a mistake of ours")

    server = MetricsServer([("127.0.0.1", 0)], metrics=fail, reasons=list)
    await server.start()
    assert (await ask(server, GET % b"/metrics"))[0].split(b" ")[1] == b"500"
    assert (await ask(server, GET % b"/healthz"))[0].split(b" ")[1] == b"200"
    await server.stop()


@on_a_loop
async def test_a_port_that_another_has_is_taken_when_it_is_free() -> None:
    other = socket.create_server(("127.0.0.1", 0))
    at = other.getsockname()
    server = MetricsServer([at], metrics=lambda: FIGURES, reasons=list, retry_s=0.01)

    await server.start()
    assert server.troubles == {at: "Address already in use"}

    other.close()
    await until(lambda: not server.troubles)
    assert (await ask(server, GET % b"/metrics"))[1] == FIGURES
    await server.stop()


@on_a_loop
async def test_an_address_that_the_node_does_not_have_yet_is_no_trouble() -> None:
    server = MetricsServer([("192.0.2.77", 0)], metrics=lambda: FIGURES, reasons=list)
    await server.start()

    assert server.troubles == {}
    assert [host for host, _ in server.addresses] == ["192.0.2.77"]
    await server.stop()
