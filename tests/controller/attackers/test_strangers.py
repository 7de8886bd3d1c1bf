"""What strangers hold open costs the controller little, and no node its place."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TypeVar

import aiohttp
import pytest

from limpet.base.bounds import strangers
from limpet.base.bounds.members import MEMBER_CONNECTIONS
from limpet.cluster.api import SERVER_NAME
from tests.beds.traffic.hostile_connections import hostile_connections
from tests.controller.machines import Controller, Node, join_all
from tests.controller.test_api import resident_bytes, tls
from tests.waiting import until

T = TypeVar("T")


@pytest.fixture(autouse=True)
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 16384), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def sooner_or_later(do: Callable[[], Awaitable[T]]) -> T:
    """As agents do: on a busy machine a connection may take longer than a stranger's may."""
    while True:
        try:
            return await do()
        except (OSError, EOFError, IndexError, aiohttp.ClientError):
            await asyncio.sleep(0.1)


async def join_one(controller: Controller, name: str) -> Node:
    token = await asyncio.to_thread(controller.token)
    node = Node(controller.url, name)
    await sooner_or_later(lambda: node.join(token))
    return node


def test_two_thousand_hostile_connections_cost_little_and_keep_no_node_out(
    controller: Controller,
) -> None:
    async def body() -> None:
        node = await join_one(controller, "member")
        await sooner_or_later(node.hello)
        before = resident_bytes(controller.pid)
        await asyncio.to_thread(undo.enter_context, hostile)
        await node.hello()  # on the connection that it has
        # One that is known by nothing but where it comes from, and one more of its site.
        await node.close()
        await sooner_or_later(node.hello)
        await node.close()
        await join_one(controller, "other")
        assert resident_bytes(controller.pid) - before < 40 << 20

    with contextlib.ExitStack() as undo:
        hostile = hostile_connections(
            controller.port, sources=50, silent=900, hello=500, head=300, body=300
        )
        asyncio.run(body())


def test_of_a_site_behind_one_nat_all_join_and_come_back_at_once(controller: Controller) -> None:
    """More of them than there are places for those without a certificate."""
    names = [f"n{number}" for number in range(2 * strangers.API_INSIDE_OF_ONE.most)]

    async def body() -> None:
        nodes = await asyncio.gather(*(join_one(controller, name) for name in names))
        for _ in range(2):
            await asyncio.gather(*(sooner_or_later(node.hello) for node in nodes))
            await asyncio.gather(*(node.close() for node in nodes))

    asyncio.run(body())
    assert len(controller.ask("node.list")["nodes"]) == len(names)


async def answer_to(controller: Controller, request: bytes) -> bytes:
    """To a stranger; empty: the connection was ended."""
    async with tls(controller) as (reader, writer):
        with contextlib.suppress(ConnectionError):
            writer.write(request)
            return await reader.read()
    return b""


def padded_head(size: int) -> bytes:
    """A whole request of so many bytes, of lines that are not too long by themselves."""
    head = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
    while size - len(head) - 2 > 4000:
        head += b"Padding: " + b"x" * 3000 + b"\r\n"
    return head + b"Padding: " + b"x" * (size - len(head) - 13) + b"\r\n\r\n"


def test_a_stranger_s_head_is_read_as_far_as_its_bound(controller: Controller) -> None:
    async def body() -> None:
        most = strangers.API_HEAD.most
        assert len(padded_head(most)) == most
        assert b" 200 " in await answer_to(controller, padded_head(most))
        assert await answer_to(controller, padded_head(most + 1)) == b""

    asyncio.run(body())


def test_the_body_of_a_join_is_read_as_far_as_its_bound(controller: Controller) -> None:
    async def body() -> None:
        most = strangers.JOIN_BODY.most
        head = "POST /v1/join HTTP/1.1\r\nHost: x\r\n"
        for size, status in ((most, b" 400 "), (most + 1, b" 413 ")):
            told = f"{head}Content-Length: {size}\r\n\r\n".encode() + b"x" * size
            assert status in (await answer_to(controller, told)).partition(b"\r\n")[0]
            chunk = f"{head}Transfer-Encoding: chunked\r\n\r\n{size:x}\r\n".encode()
            untold = chunk + b"x" * size + b"\r\n0\r\n\r\n"
            assert status in (await answer_to(controller, untold)).partition(b"\r\n")[0]

    asyncio.run(body())


def test_a_request_has_no_more_headers_than_its_bound(controller: Controller) -> None:
    async def body() -> None:
        most = strangers.HEADERS.most
        for count, status in ((most, b" 200 "), (most + 1, b" 400 ")):
            more = b"".join(b"X-%d: y\r\n" % number for number in range(count - 1))
            asked = b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + more + b"\r\n"
            assert status in (await answer_to(controller, asked)).partition(b"\r\n")[0]

    asyncio.run(body())


def test_a_stranger_is_answered_once_on_each_connection(controller: Controller) -> None:
    async def body() -> None:
        answered = await answer_to(controller, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 40)
        assert answered.count(b"HTTP/1.1 200") == 1

    asyncio.run(body())


@pytest.mark.parametrize(
    "line", [b"GET /healthz", b"GET /healthz HTTP/0.9", b"GET /healthz HTTP/2.0"]
)
def test_what_is_no_http_1_is_told_so(controller: Controller, line: bytes) -> None:
    async def body() -> None:
        answer = await answer_to(controller, line + b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 505 ")

    asyncio.run(body())


def test_a_node_that_asks_nothing_has_no_more_connections_either(controller: Controller) -> None:
    async def body() -> None:
        (node,) = await join_all(controller, "a")
        assert node.joined is not None
        context = node.context(node.joined.ca, node.joined.certificate)
        async with contextlib.AsyncExitStack() as undo:
            opened = [
                await undo.enter_async_context(connected(controller.port, context))
                for _ in range(MEMBER_CONNECTIONS.most + 1)
            ]
            await until(lambda: opened[0][0].at_eof() or opened[0][0].exception() is not None)
            for reader, writer in opened[1:]:
                assert await is_answered(reader, writer)

    asyncio.run(body())


@contextlib.asynccontextmanager
async def connected(
    port: int, context: ssl.SSLContext
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=context, server_hostname=SERVER_NAME
    )
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()


async def is_answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    with contextlib.suppress(ConnectionError):
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return False
        await reader.readexactly(len(b'{"ok": true}'))
        return head.startswith(b"HTTP/1.1 200 ")
    return False


def test_refusals_of_strangers_do_not_fill_the_log(controller: Controller) -> None:
    async def body() -> None:
        for _ in range(100):
            assert b" 404 " in await answer_to(controller, b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n")

    asyncio.run(body())
    assert 0 < controller.log.read_text().count("event=refused") < 50
