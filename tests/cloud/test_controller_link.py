"""A controller that is away, hangs, or speaks rubbish costs the agent a line of words."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import ssl
import threading
import warnings
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from limpet.base.http.connection import LinkError
from limpet.cloud.https import parse_controller
from limpet.cloud.link import ControllerLink, ControllerRefusedError
from limpet.cluster.api import (
    Code,
    PodAnswer,
    PodReport,
    Refused,
    WatchKind,
    WatchLine,
    encode,
    encode_line,
)
from limpet.cluster.identity import Identity
from tests.beds.rogue import STREAM, Authority, Serve, answer, chunk, says, serving, take_request
from tests.effort import examples

REPORT = PodReport(7, ())
BOOKMARK = encode_line(WatchLine(WatchKind.BOOKMARK, "v1"))

T = TypeVar("T")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "cluster")


def against(
    authority: Authority,
    serve: Serve,
    work: Callable[[ControllerLink], Awaitable[T]],
    *,
    context: ssl.SSLContext | None = None,
    tls: bool = True,
    patience_s: float = 10.0,
) -> T:
    """What `work` returns with a link to a server that does as `serve` says."""

    async def run() -> T:
        behind = (context or authority.server_context()) if tls else None
        async with serving(serve, behind) as at:
            link = ControllerLink(authority.identity(at), answer_s=patience_s, silence_s=patience_s)
            try:
                return await work(link)
            finally:
                link.close()

    return asyncio.run(run())


async def report(link: ControllerLink) -> PodAnswer:
    return await link.ask("POST", "/v1/pods", REPORT, PodAnswer, revision=3)


async def watch(link: ControllerLink, lines: int | None = None) -> list[WatchLine]:
    """So many lines, or all."""
    found: list[WatchLine] = []
    async with aclosing(link.watch(None, revision=3)) as parts:
        async for part in parts:
            found += part
            if lines is not None and len(found) >= lines:
                break
    return found


def failure(
    authority: Authority,
    serve: Serve,
    work: Callable[[ControllerLink], Awaitable[object]] = report,
    *,
    patience_s: float = 10.0,
    context: ssl.SSLContext | None = None,
    tls: bool = True,
) -> str:
    with pytest.raises(LinkError) as caught:
        against(authority, serve, work, patience_s=patience_s, context=context, tls=tls)
    return str(caught.value)


# What a controller says


def test_an_answer_is_understood_although_all_certificates_expired_long_ago(
    authority: Authority,
) -> None:
    requests: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await take_request(reader))
        writer.write(answer(encode(PodAnswer(7))))
        await writer.drain()

    assert against(authority, serve, report) == PodAnswer(7)
    head, _, body = requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/pods HTTP/1.1\r\n")
    assert b"limpet-revision: 3" in head.lower()
    assert body == encode(REPORT)


def test_a_refusal_comes_with_its_code_and_words(authority: Authority) -> None:
    refused = Refused(Code.STALE, "send all pods", version=5)
    serve = says(answer(encode(refused), "409 Conflict"))

    with pytest.raises(ControllerRefusedError, match="send all pods") as caught:
        against(authority, serve, report)
    assert caught.value.refused == refused


def test_requests_share_a_connection_and_outlive_one_that_the_server_closed(
    authority: Authority,
) -> None:
    served: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(0)
        for _ in range(2):  # then it closes the connection, while nobody asks
            await take_request(reader)
            served[-1] += 1
            writer.write(answer(encode(PodAnswer(7))))
            await writer.drain()

    async def work(link: ControllerLink) -> None:
        for _ in range(5):
            assert await report(link) == PodAnswer(7)

    against(authority, serve, work)
    assert served == [2, 2, 1]


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_lines_of_a_watch_come_whole_however_they_were_cut(authority: Authority, size: int) -> None:
    told = [WatchLine(WatchKind.BOOKMARK, f"v{number}") for number in range(40)]
    stream = b"".join(map(encode_line, told))
    parts = [stream[at : at + size] for at in range(0, len(stream), size)]

    found = against(authority, says(STREAM + b"".join(map(chunk, parts)) + chunk(b"")), watch)
    assert found == told


def test_a_watch_that_is_refused_says_why(authority: Authority) -> None:
    refused = Refused(Code.TOO_OLD, "no longer known")
    serve = says(answer(encode(refused), "410 Gone"))
    with pytest.raises(ControllerRefusedError) as caught:
        against(authority, serve, watch)
    assert caught.value.refused == refused


def test_a_controller_is_found_by_its_name(authority: Authority) -> None:
    async def run() -> None:
        serve = says(answer(encode(PodAnswer(7))))
        async with serving(serve, authority.server_context()) as at:
            by_name = at.replace("127.0.0.1", "localhost")
            assert await report(ControllerLink(authority.identity(by_name))) == PodAnswer(7)

    asyncio.run(run())


# What no controller says


def test_where_nobody_listens_a_person_is_told_what_to_look_at(authority: Authority) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        at = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(LinkError) as caught:
            asyncio.run(report(ControllerLink(authority.identity(at))))
    assert at in str(caught.value)
    assert "is `limpet controller` running" in str(caught.value)


def test_certificates_that_are_damaged_are_named_with_what_to_do(authority: Authority) -> None:
    identity = authority.identity("127.0.0.1:1")
    identity.certificate_path.write_text("x")
    for _ in range(2):
        with pytest.raises(LinkError, match="put the folder back from a back-up"):
            asyncio.run(report(ControllerLink(identity)))
        identity.ca_path.unlink(missing_ok=True)


def test_another_clusters_controller_is_not_believed(authority: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other")
    said = failure(authority, says(b""), context=other.server_context())
    assert "not of this node's cluster" in said


def test_who_speaks_no_tls_is_named(authority: Authority) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(64)
        writer.write(b"220 mail.example ESMTP\r\n")
        await writer.drain()

    assert "does not speak TLS as a controller does" in failure(authority, serve, tls=False)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "it closed the connection without an answer"),
        (b"220 mail.example ESMTP\r\n\r\n", "no controller"),
        (bytes(range(256)) * 8, "no controller"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", "stopped half way"),
        (b"HTTP/0.9 200 OK\r\nContent-Length: 2\r\n\r\n{}", "it answers by HTTP/0.9"),
        (b"HTTP/2.0 200 OK\r\nContent-Length: 2\r\n\r\n{}", "it answers by HTTP/2.0"),
        (STREAM + chunk(b'{"sequence":'), "stopped half way"),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 100_000, "no controller"),
        (answer(b"<html>"), "HTTP status 200 with what no controller says"),
        (answer(b"<html>", "502 Bad Gateway"), "HTTP status 502 with what no controller says"),
        (answer(b'{"sequence":"x"}'), "HTTP status 200 with what no controller says"),
        (answer(b'{"code":"new_code","error":""}', "409 Conflict"), "HTTP status 409"),
        (answer(b"x" * (5 << 20)), "more than 4 MiB"),
        (STREAM + chunk(b"x" * (1 << 20)) * 5, "more than 4 MiB"),
    ],
)
def test_rubbish_in_place_of_an_answer_is_an_error_in_words(
    authority: Authority, data: bytes, words: str
) -> None:
    said = failure(authority, says(data))
    assert words in said
    assert "\n" not in said
    assert len(said) < 600


@settings(
    max_examples=examples(40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    head=st.sampled_from([b"", b"HTTP/1.1 200 OK\r\n\r\n", STREAM, answer(b"")[:-2]]),
    data=st.binary(max_size=300),
)
def test_no_bytes_lead_to_anything_but_an_error_in_words(
    authority: Authority, head: bytes, data: bytes
) -> None:
    for work in (report, watch):
        try:
            against(authority, says(head + data), work)
        except (LinkError, ControllerRefusedError):
            pass
        else:
            assert work is watch
            # What ends the head of an answer without a body makes it whole.
            assert data == b"" or head == answer(b"")[:-2]


def test_a_controller_that_hangs_is_given_up(authority: Authority) -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    assert "silent for 0.1 s" in failure(authority, hang, patience_s=0.1)
    assert "silent for 0.1 s" in failure(authority, hang, watch, patience_s=0.1)


def test_who_gives_up_as_the_tls_handshake_ends_leaves_no_connection(
    authority: Authority,
) -> None:
    """A controller that hangs then would not answer the goodbye of TLS."""

    async def give_up(at: str) -> None:
        asking = asyncio.create_task(report(ControllerLink(authority.identity(at))))
        for _ in ("connected by TCP", "connected by TLS"):
            awaited = await next_step(asking)
        assert awaited.done()
        asking.cancel()
        await asyncio.wait((asking,))

    over = threading.Event()

    def hang(listener: socket.socket) -> None:
        connected, _ = listener.accept()
        context = authority.server_context()
        with connected, contextlib.suppress(OSError), context.wrap_socket(connected, True):
            over.wait()

    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        warnings.catch_warnings(record=True) as unclosed,
    ):
        warnings.simplefilter("always")
        thread = threading.Thread(target=hang, args=(listener,))
        thread.start()
        try:
            asyncio.run(give_up(f"127.0.0.1:{listener.getsockname()[1]}"))
            gc.collect()
        finally:
            over.set()
            thread.join()
    assert [str(each.message) for each in unclosed] == []


async def next_step(task: asyncio.Task[Any]) -> asyncio.Future[Any]:
    """What the task waits for next, when it has come and the task has not gone on yet."""

    def awaited() -> asyncio.Future[Any] | None:
        return getattr(task, "_fut_waiter", None)

    before = awaited()
    while (found := awaited()) is None or (found is before and not task.done()):
        await asyncio.sleep(0)
    while not found.done():
        await asyncio.sleep(0)
    return found


def test_a_watch_that_falls_silent_is_dead(authority: Authority) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take_request(reader)
        writer.write(STREAM + chunk(BOOKMARK))
        await writer.drain()
        await asyncio.Event().wait()

    said = failure(authority, serve, lambda link: watch(link, 2), patience_s=0.1)
    assert "silent for 0.1 s" in said
    assert len(against(authority, serve, lambda link: watch(link, 1))) == 1


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        (chunk(BOOKMARK[:-5]), "stopped half way"),
        (chunk(b"hello\n"), "not for a node"),
        (chunk(b'{"kind":"entry","grant":5}\n'), "not for a node"),
        (chunk(b"x" * (64 << 10)) * 40, "has no end"),
    ],
)
def test_rubbish_in_a_watch_ends_it_with_words(
    authority: Authority, stream: bytes, words: str
) -> None:
    assert words in failure(authority, says(STREAM + stream), watch)


# Addresses


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("192.0.2.1:80", ("192.0.2.1", 80)),
        ("192.0.2.1", ("192.0.2.1", 7470)),
        ("[2001:db8::1]:80", ("2001:db8::1", 80)),
        ("[2001:db8::1]", ("2001:db8::1", 7470)),
        ("2001:db8::1", ("2001:db8::1", 7470)),
        ("cloud.example:443", ("cloud.example", 443)),
    ],
)
def test_an_address_of_a_controller_is_read(text: str, found: tuple[str, int]) -> None:
    assert parse_controller(text) == found


@pytest.mark.parametrize(
    "text", ["", ":80", "a:0", "a:65536", "a:x", "[::1", "[::1]80", "https://a:80", "a b", "ü:1"]
)
def test_what_is_no_address_of_a_controller_is_refused_in_words(text: str) -> None:
    with pytest.raises(LinkError, match="not an address as"):
        parse_controller(text)


def test_another_order_of_the_same_controllers_is_not_written(tmp_path: Path) -> None:
    controllers = ("a:7470", "b:7470")
    identity = Identity(tmp_path, b"k" * 32, "edge-1", b"p" * 32, controllers, by_account=True)
    link = ControllerLink(identity)

    assert link.follow(controllers[::-1])
    assert link.controller == "b:7470"
    assert not list(tmp_path.iterdir())

    assert link.follow(("c:7470", "a:7470"))
    assert b"c:7470" in (tmp_path / "cluster.json").read_bytes()
