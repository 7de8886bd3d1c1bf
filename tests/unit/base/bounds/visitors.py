"""Probes of what is taken from those who look at the page."""

from __future__ import annotations

import asyncio
import http.client
import itertools
import socket
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from urllib.parse import urlsplit

from aiohttp import web

from limpet.base.bounds.strangers import (
    HEADERS,
    PAGE_SIGN_INS,
    PAGE_SIGN_INS_PER_MINUTE,
    PAGE_SOURCES,
)
from limpet.base.bounds.visitors import (
    PAGE_ASKED,
    PAGE_BODY,
    PAGE_CONNECTIONS,
    PAGE_CONNECTIONS_OF_ONE,
    PAGE_IDLE_S,
    PAGE_LONGEST_S,
    PAGE_MADE,
    PAGE_QUERY,
    PAGE_REVIEWED_PER_S,
    PAGE_SESSIONS,
    PAGE_SESSIONS_OF_ONE,
    PAGE_STREAMS,
    PAGE_UNTAKEN_S,
)
from limpet.web.access.sessions import LoginRefused, PageToken, Sessions, digest_of
from limpet.web.access.turns import OwnTurns
from limpet.web.live.source import FAR_REST_S, ControllerSource
from limpet.web.pages import write_in_time
from limpet.web.server import Serving, served
from tests.beds.page import PictureSource, page
from tests.beds.pictured import world
from tests.unit.base.bounds.probes import is_remembered, probe
from tests.unit.base.bounds.times.clock import StoppedClock, on_stopped_clock

_TOKEN = PageToken(name="ann", digest=digest_of("read"), expires_at_s=1e12)
Ask = Callable[[str, str, str], http.client.HTTPResponse]


def _sessions() -> Sessions:
    numbers = itertools.count()
    return Sessions(lambda: f"secret-{next(numbers)}", lambda: {_TOKEN.digest: _TOKEN})


@probe(PAGE_SIGN_INS)
def _wrong_tokens(count: int) -> bool:
    book = _sessions()
    return all(book.enter("wrong", "192.0.2.1", 1.0) == LoginRefused() for _ in range(count))


def _all_stay(book: Sessions, secrets: Iterable[str]) -> bool:
    cookies = []
    for secret in secrets:
        entered = book.enter(secret, "192.0.2.1", 1.0)
        assert not isinstance(entered, LoginRefused)
        cookies.append(entered[0])
    return all(book.find(cookie, 2.0) is not None for cookie in cookies)


@probe(PAGE_SESSIONS)
def _at_once(count: int) -> bool:
    numbers = itertools.count()
    tokens = [
        PageToken(name=f"ann-{number}", digest=digest_of(f"read-{number}"), expires_at_s=1e12)
        for number in range(count)
    ]
    by_digest = {each.digest: each for each in tokens}
    book = Sessions(lambda: f"secret-{next(numbers)}", lambda: by_digest)
    return _all_stay(book, (f"read-{number}" for number in range(count)))


@probe(PAGE_SESSIONS_OF_ONE)
def _of_one_token(count: int) -> bool:
    return _all_stay(_sessions(), ["read"] * count)


@probe(PAGE_SESSIONS_OF_ONE)
def _of_links(count: int) -> bool:
    book = _sessions()
    return _all_stay(book, (book.new_link() for _ in range(count)))


def _signed_in(look: Callable[[Ask], bool]) -> bool:
    """What `look` finds, as one session."""
    with ExitStack() as open_till_the_end:
        source = PictureSource(world(5))
        address, _ = open_till_the_end.enter_context(page(source, lambda: {_TOKEN.digest: _TOKEN}))
        cookie = ""

        def ask(method: str, path: str, body: str) -> http.client.HTTPResponse:
            connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=30)
            open_till_the_end.callback(connection.close)
            headers = {"Cookie": cookie, "Origin": address}
            headers["Content-Type"] = "application/x-www-form-urlencoded"
            connection.request(method, path, body or None, headers)
            return connection.getresponse()

        cookie = (ask("POST", "/enter", "secret=read").getheader("Set-Cookie") or "").partition(
            ";"
        )[0]
        return look(ask)


@probe(PAGE_STREAMS)
def _streams(count: int) -> bool:
    return _signed_in(lambda ask: all(ask("GET", "/live", "").status == 200 for _ in range(count)))


@probe(PAGE_CONNECTIONS)
def _connections(count: int) -> bool:
    return _stays(count, of_one_session=count)


@probe(PAGE_CONNECTIONS_OF_ONE)
def _connections_of_one_token(count: int) -> bool:
    return _stays(count, of_one_session=PAGE_CONNECTIONS.most)


def _stays(count: int, *, of_one_session: int) -> bool:
    """Whether the first connection is open still, after all have asked."""
    with ExitStack() as open_till_the_end:
        source = PictureSource(world(5))
        address, _ = open_till_the_end.enter_context(page(source, lambda: {_TOKEN.digest: _TOKEN}))
        cookie, opened = "", []

        def ask(connection: http.client.HTTPConnection, method: str, path: str, body: str) -> str:
            headers = {"Cookie": cookie, "Origin": address}
            headers["Content-Type"] = "application/x-www-form-urlencoded"
            connection.request(method, path, body or None, headers)
            response = connection.getresponse()
            response.read()
            return response.getheader("Set-Cookie") or ""

        def connect() -> http.client.HTTPConnection:
            connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=30)
            open_till_the_end.callback(connection.close)
            return connection

        for number in range(count):
            if not number % of_one_session:
                cookie = ""
                cookie = ask(connect(), "POST", "/enter", "secret=read").partition(";")[0]
            opened.append(connect())
            ask(opened[-1], "GET", "/nodes", "")
        opened[0].auto_open = 0
        try:
            ask(opened[0], "GET", "/nodes", "")
        except (OSError, http.client.HTTPException):
            return False
        return True


@probe(PAGE_ASKED)
def _asked(count: int) -> bool:
    """Whether all of so many questions are asked before one is answered."""

    async def scenario() -> bool:
        asked, answered = 0, asyncio.Event()

        async def call(verb: str, *, by: str = "", **arguments: object) -> dict[str, object]:
            nonlocal asked
            asked += 1
            await answered.wait()
            return {}

        source = ControllerSource(call)
        questions = [asyncio.create_task(source.act("label", "ann")) for _ in range(count)]
        for _ in range(4):
            await asyncio.sleep(0)
        was_asked = asked
        answered.set()
        await asyncio.gather(*questions)
        assert asked == count
        return was_asked == count

    return asyncio.run(scenario())


@probe(PAGE_MADE)
def _made(count: int) -> bool:
    """Whether all of so many pages of one token are made before one of them is whole."""

    async def scenario() -> bool:
        turns, made, whole = OwnTurns(), 0, asyncio.Event()

        async def make() -> None:
            nonlocal made
            async with turns.turn("token ann"):
                made += 1
                await whole.wait()

        pages = [asyncio.create_task(make()) for _ in range(count)]
        for _ in range(4):
            await asyncio.sleep(0)
        were_made = made
        whole.set()
        await asyncio.gather(*pages)
        return were_made == count

    return asyncio.run(scenario())


@probe(PAGE_REVIEWED_PER_S)
def _passed_on(count: int) -> bool:
    """Whether all of so many pairs that one token asks for at once are asked for in a second."""

    async def body(loop: StoppedClock) -> bool:
        source = PictureSource(world(5))
        source.rest_s = FAR_REST_S
        one, other = (each.uid for each in source.now.nodes[:2])
        tokens = {_TOKEN.digest: _TOKEN}
        async with served(source, Serving(("127.0.0.1", 0), tokens=lambda: tokens)) as (address, _):
            place = urlsplit(address).netloc

            async def ask(method: str, path: str, body: str, cookie: str = "") -> bytes:
                """The head of the answer."""
                reader, writer = await asyncio.open_connection(*place.split(":"))
                writer.write(
                    f"{method} {path} HTTP/1.1\r\nHost: {place}\r\nOrigin: {address}\r\n"
                    f"Cookie: {cookie}\r\nContent-Length: {len(body)}\r\n"
                    f"Content-Type: application/x-www-form-urlencoded\r\n\r\n{body}".encode()
                )
                try:
                    return await reader.readuntil(b"\r\n\r\n")
                finally:
                    writer.close()

            async def sign_in() -> str:
                head = await ask("POST", "/enter", "secret=read")
                return head.partition(b"Set-Cookie: ")[2].partition(b";")[0].decode()

            cookie = await sign_in()
            pages = [f"/pairs/{one}/{other}", "/timeline"]
            asking = [
                asyncio.create_task(ask("GET", pages[number % 2], "", cookie))
                for number in range(count)
            ]
            await loop.until(lambda: source.asked)
            for _ in range(10):
                await sign_in()  # what came before it has been read
                await loop.pass_by(0.0999)
            in_time = source.asked
            while source.asked < count:
                await loop.pass_by(1.0)
            answers = await asyncio.gather(*asking)
            assert all(b" 200 " in each for each in answers)
        return in_time == count

    return on_stopped_clock(body)


class _Unread(web.StreamResponse):
    """What is written is taken once it says so."""

    def __init__(self) -> None:
        super().__init__()
        self.is_taken = asyncio.Event()

    async def write(self, data: object) -> None:
        await self.is_taken.wait()


@probe(PAGE_UNTAKEN_S)
def _untaken(seconds: int) -> bool:
    """The browser takes it half a second before so many are over."""

    async def body(loop: StoppedClock) -> bool:
        response = _Unread()
        writing = asyncio.create_task(write_in_time(response, b"data: {}"))
        await loop.pass_by(0)
        await loop.pass_by(seconds - 0.5)
        response.is_taken.set()
        await asyncio.wait((writing,))
        return writing.exception() is None

    return on_stopped_clock(body)


@probe(PAGE_BODY)
def _body(size: int) -> bool:
    begin = "proof="
    return _signed_in(
        lambda ask: ask("POST", "/leave", begin + "x" * (size - len(begin))).status == 403
    )


@probe(PAGE_QUERY)
def _query(size: int) -> bool:
    return _signed_in(
        lambda ask: (
            f'value="{"x" * size}"' in ask("GET", f"/nodes?q={'x' * size}", "").read().decode()
        )
    )


@probe(PAGE_SOURCES)
def _sources(count: int) -> bool:
    return is_remembered(count, _sessions()._wrong)


@probe(PAGE_SIGN_INS_PER_MINUTE)
def _wrong_tokens_later(count: int) -> bool:
    book = _sessions()
    while book.enter("wrong", "192.0.2.1", 1.0) == LoginRefused():
        pass
    return all(book.enter("wrong", "192.0.2.1", 61.001) == LoginRefused() for _ in range(count))


def _is_in(used_each_s: int, for_s: int) -> bool:
    book = _sessions()
    entered = book.enter("read", "192.0.2.1", 0.0)
    assert not isinstance(entered, LoginRefused)
    cookie = entered[0]
    at_s = range(used_each_s, for_s, used_each_s)
    return all(book.find(cookie, float(each)) for each in (*at_s, for_s))


@probe(PAGE_IDLE_S)
def _unused(seconds: int) -> bool:
    return _is_in(seconds, seconds)


@probe(PAGE_LONGEST_S)
def _since(seconds: int) -> bool:
    return _is_in(3600, seconds)


@probe(HEADERS)
def _headers(count: int) -> bool:
    source = PictureSource(world(5))
    with (
        page(source) as (address, _),
        socket.create_connection((urlsplit(address).hostname, urlsplit(address).port)) as asking,
    ):
        others = "".join(f"X-{number}: x\r\n" for number in range(count - 2))
        asking.sendall(
            f"GET /static/style.css HTTP/1.1\r\nHost: {urlsplit(address).netloc}\r\n"
            f"Connection: close\r\n{others}\r\n".encode()
        )
        asking.settimeout(30)
        return b" 400 " not in asking.recv(100)
