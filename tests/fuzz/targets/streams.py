"""HTTP and WebSocket as a client hears them, lines in streams, and what outcomes pods have told."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Coroutine, Iterator
from functools import cache
from typing import Any, TypeVar

from limpet.base.errors import LimpetError
from limpet.base.http.connection import Connection, HttpServer, HttpWords, LinkError
from limpet.base.http.lines import read_lines, read_whole
from limpet.base.http.websocket import MessageReader
from limpet.cli.connectivity.tasks import (
    ConnectivityTarget,
    TargetKind,
    TargetOutcome,
    Task,
    decode_outcomes,
    decode_task,
    encode_outcomes,
    encode_task,
)
from limpet.kubernetes.access.server_clock import read_date_s
from tests.fuzz.target import Shape, fuzzed

T = TypeVar("T")
_WORDS = HttpWords("{}", "{}", "it is no such server", "nobody listens", "no name")


@cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


def _run(work: Coroutine[Any, Any, T]) -> T:
    return _loop().run_until_complete(work)


async def _answered(data: bytes) -> None:
    """A request, and what it comes to when `data` is all that the server says."""
    ours, theirs = socket.socketpair()
    with theirs:
        reader, writer = await asyncio.open_connection(sock=ours)
        try:
            theirs.setblocking(False)
            theirs.sendall(data)
            theirs.shutdown(socket.SHUT_WR)
            server = HttpServer("the server", "192.0.2.1", 80, None, "", "server", _WORDS)
            connection = Connection(server, reader, writer)
            connection.most_answer_bytes = 8192
            answer = await connection.request("GET", "/", timeout_s=60.0)
            assert len(answer.body) <= connection.most_answer_bytes
            assert len(answer.date) <= 100
            read_date_s(answer.date)
        finally:
            writer.transport.abort()


def _http_answers() -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n\r\n{}"
    head = b"HTTP/1.1 503 Later\r\nRetry-After: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
    yield head + b"2\r\n{}\r\n0\r\n\r\n"
    yield b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n"
    yield b"HTTP/1.0 200 OK\r\nConnection: close\r\n\r\nuntil its end"


@fuzzed(seeds=_http_answers, errors=(LinkError,), shape=Shape.TEXT, most_bytes=32_768)
def http_answer(data: bytes) -> None:
    _run(_answered(data))


@fuzzed(
    seeds=lambda: [b"Sun, 06 Nov 1994 08:49:37 GMT", b"Thu, 01 Jan 1970 00:00:00 GMT"],
    shape=Shape.TEXT,
    most_bytes=100,
)
def http_date(data: bytes) -> None:
    read_date_s(data.decode("latin-1"))


def _frames() -> Iterator[bytes]:
    yield b"\x82\x05hello\x89\x02hi\x88\x02\x03\xe8"
    yield b"\x02\x01a\x00\x01b\x80\x01c"
    yield b"\x82\x7e" + struct.pack("!H", 300) + bytes(300)
    yield b"\x82\x7f" + struct.pack("!Q", 1 << 62)
    yield b"\x02\x01a" + b"\x00\x00" * 2000


@fuzzed(seeds=_frames, errors=(ValueError,), most_bytes=8192)
def websocket_frames(data: bytes) -> None:
    """Whole, and cut into pieces: the messages are the same."""
    whole = list(MessageReader(most_bytes=4096).take(data))
    pieces, reader = [], MessageReader(most_bytes=4096)
    size = 1 + len(data) // 7
    for at in range(0, len(data), size):
        pieces += list(reader.take(data[at : at + size]))
    assert pieces == whole
    assert sum(len(each.body) for each in whole) <= len(data)


async def _chunks(data: bytes) -> AsyncIterator[bytes]:
    size = 1 + len(data) // 5
    for at in range(0, len(data), size):
        yield data[at : at + size]


@fuzzed(
    seeds=lambda: [b"one\ntwo\n", b'{"type": "ADDED"}\n' * 40],
    errors=(ValueError,),
    most_bytes=16_384,
)
def lines_of_a_stream(data: bytes) -> None:
    async def read() -> list[bytes]:
        found: list[bytes] = []
        async for lines in read_lines(_chunks(data), most_bytes=4096):
            found += lines
        return found

    assert b"".join(each + b"\n" for each in _run(read())) == data
    assert _run(read_whole(_chunks(data), most_bytes=4096)) == data


_TASK = Task((ConnectivityTarget(TargetKind.POD, "edge-1", "10.244.1.5", 7479),), 30.0)
_OUTCOME = TargetOutcome("", "vxlan", 0.7, 1450, 3.1)


@fuzzed(seeds=lambda: [encode_task(_TASK).encode()], errors=(LimpetError,), shape=Shape.JSON)
def connectivity_task(data: bytes) -> None:
    decode_task(data.decode("utf-8", "surrogateescape"))


@fuzzed(
    seeds=lambda: [
        encode_outcomes([_OUTCOME, TargetOutcome("it is silent")]).encode(),
        encode_outcomes([_OUTCOME] * 300).encode(),
    ],
    errors=(LimpetError,),
    shape=Shape.JSON,
)
def connectivity_outcomes(data: bytes) -> None:
    decode_outcomes(data.decode("utf-8", "surrogateescape"))
