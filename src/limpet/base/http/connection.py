"""One HTTP/1.1 connection, by TLS or in clear: bounded in time and size, whatever the other
speaks."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import h11

from limpet.base.bounds.servers import HTTP_ANSWER, HTTP_HEAD, NAMED_ADDRESSES, RETRY_AFTER_S
from limpet.base.errors import LimpetError
from limpet.base.process.threads import in_thread

_CONNECT_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 20.0
_READ_BYTES = 64 << 10
_VERSIONS = (b"1.1", b"1.0")
"""h11 takes any, and would read what HTTP/0.9 or 2 says as if it were 1.1."""
_SWITCHING = 101
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
"""Seconds, seconds, times: a cut is noticed in 45 s; Kubernetes waits 50 s for a node."""

Headers = Sequence[tuple[str, str]]


class LinkError(LimpetError):
    """A server that cannot be reached, or does not speak as one."""


class SilenceError(LinkError):
    """A server that may be there and does not answer in time."""


class TooLargeError(LinkError):
    """An answer larger than its limit."""


@dataclass(frozen=True, slots=True)
class HttpWords:
    """What a person is told to do when a server is not as it should be, by its kind."""

    not_trusted: str
    """After "it is": why its certificate does not count; `{}` is what TLS says of it."""
    no_tls: str
    """What speaks TLS otherwise, or not at all; `{}` is what TLS says of it."""
    not_it: str
    """What answers, when it does not speak as such a server does."""
    no_listener: str
    no_name: str


@dataclass(frozen=True, slots=True)
class HttpServer:
    """Whom to ask."""

    name: str
    """For a person: "the controller at 192.0.2.1:7470"."""
    host: str
    port: int
    tls: ssl.SSLContext | None
    """None: in clear."""
    tls_name: str
    """Name or address that its certificate is for."""
    host_header: str
    words: HttpWords


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    status: int
    body: bytes
    retry_after_s: float | None = None
    """When to ask again, as it asks for."""
    date: str = ""
    """What time it is there, as it says."""


class Connection:
    """One request after the other; a stream takes the connection for itself."""

    def __init__(
        self, server: HttpServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._server = server
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HTTP_HEAD.most)
        self.answered = False
        """Whether anything has come back to the last request."""
        self.most_answer_bytes = HTTP_ANSWER.most
        self.date = ""
        """Date header of the last answer: what time it is there, as it says."""
        self._early = b""
        """What came with the answer that agreed to another protocol."""

    @classmethod
    async def open(cls, server: HttpServer) -> Connection:
        """Connected, and by TLS the other side has proven who it is. Raises: LinkError."""
        try:
            reader, writer = await _connect(server)
        except TimeoutError as error:
            raise LinkError(
                f"connect to {server.name}: no answer within {_CONNECT_TIMEOUT_S:g} s (is the way "
                "there cut, or does a firewall drop it?)"
            ) from error
        except (OSError, EOFError) as error:
            raise LinkError(f"connect to {server.name}: {_cause(error, server.words)}") from error
        _keep_alive(writer)
        return cls(server, reader, writer)

    @property
    def reusable(self) -> bool:
        """Nothing has ended it, as far as can be told without asking."""
        idle = (self._http.our_state, self._http.their_state) == (h11.IDLE, h11.IDLE)
        return idle and not self._reader.at_eof() and not self._writer.is_closing()

    def close(self) -> None:
        """At once, without a goodbye: the other may be dead."""
        self._writer.transport.abort()

    async def request(
        self,
        verb: str,
        path: str,
        *,
        body: bytes = b"",
        headers: Headers = (),
        timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> HttpAnswer:
        """The whole answer; afterwards the connection serves for the next.

        Raises: LinkError; TooLargeError for what exceeds `most_answer_bytes`.
        """
        with self._closed_on_failure(path, timeout_s):
            async with asyncio.timeout(timeout_s):
                head = await self._ask(verb, path, body, headers)
                body = await self._whole(path)
                if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
                    self._http.start_next_cycle()
                return HttpAnswer(head.status_code, body, _retry_after_s(head), self.date)

    async def stream(
        self,
        path: str,
        *,
        headers: Headers = (),
        timeout_s: float = ANSWER_TIMEOUT_S,
        silence_s: float,
    ) -> tuple[int, AsyncGenerator[bytes, None]]:
        """Status of the answer, and its body as it comes, each time all that is there.

        Raises, and so does the iterator: LinkError, also when nothing comes for `silence_s`.
        """
        with self._closed_on_failure(path, timeout_s):
            async with asyncio.timeout(timeout_s):
                head = await self._ask("GET", path, b"", headers)
        return head.status_code, self._chunks(path, silence_s)

    async def upgrade(
        self, path: str, *, headers: Headers, timeout_s: float = ANSWER_TIMEOUT_S
    ) -> tuple[HttpAnswer, dict[str, str]]:
        """The answer with its headers, whose names are lower case. With status 101 the connection
        speaks the protocol of `headers` from now on, by `read` and `write`.

        Raises: LinkError.
        """
        with self._closed_on_failure(path.partition("?")[0], timeout_s):
            async with asyncio.timeout(timeout_s):
                await self._send("GET", path, b"", headers)
                head = await self._head()
                switched = head.status_code == _SWITCHING
                body = b"" if switched else await self._whole(path)
                self._early = self._http.trailing_data[0]
        said = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
        return HttpAnswer(head.status_code, body), said

    async def read(self, what: str, silence_s: float) -> bytes:
        """What has come after `upgrade`, whatever protocol it is; empty: it has ended.

        Raises: LinkError, also when nothing comes for `silence_s`. `what`: as a path.
        """
        early, self._early = self._early, b""
        with self._closed_on_failure(what, silence_s):
            async with asyncio.timeout(silence_s):
                return early or await self._reader.read(_READ_BYTES)

    def write(self, data: bytes) -> None:
        """After `upgrade`: small things, which are not waited for."""
        self._writer.write(data)

    async def _chunks(self, path: str, silence_s: float) -> AsyncGenerator[bytes, None]:
        with self._closed_on_failure(path, silence_s):
            while True:
                async with asyncio.timeout(silence_s):
                    data = await self._data()
                if data is None:
                    return
                yield data

    async def _ask(self, verb: str, path: str, body: bytes, headers: Headers) -> h11.Response:
        await self._send(verb, path, body, headers)
        while isinstance(head := await self._head(), h11.InformationalResponse):
            pass
        return head

    async def _send(self, verb: str, path: str, body: bytes, headers: Headers) -> None:
        self.answered = False
        head = [
            ("Host", self._server.host_header),
            ("Content-Length", str(len(body))),
            *headers,
        ]
        request = h11.Request(method=verb, target=path, headers=head)
        for event in (request, h11.Data(data=body), h11.EndOfMessage()):
            self._writer.write(self._http.send(event) or b"")
        await self._writer.drain()

    async def _head(self) -> h11.Response | h11.InformationalResponse:
        """Head of the answer, or of what comes before it."""
        answer = await self._event()
        if isinstance(answer, h11.Response | h11.InformationalResponse):
            if answer.http_version not in _VERSIONS:
                version = answer.http_version.decode("ascii")
                raise h11.RemoteProtocolError(f"it answers by HTTP/{version}")
            self.date = _text_of(answer, b"date")
            return answer
        raise h11.RemoteProtocolError("it closed the connection without an answer")

    async def _whole(self, path: str) -> bytes:
        """The body. Raises: TooLargeError."""
        body = bytearray()  # not many small parts, each of which takes more than it holds
        while (data := await self._data()) is not None:
            if len(body) + len(data) > self.most_answer_bytes:
                raise TooLargeError(
                    f"ask {self._server.name} for {path}: it answers with more than "
                    f"{self.most_answer_bytes >> 20} MiB"
                )
            body += data
        return bytes(body)

    async def _data(self) -> bytes | None:
        """The next bytes of the body; None: it is complete."""
        event = await self._event()
        return bytes(event.data) if isinstance(event, h11.Data) else None

    async def _event(self) -> h11.Event | type[h11.PAUSED]:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            data = await self._reader.read(self._room_bytes())
            self.answered = self.answered or bool(data)
            if not self.answered:
                raise ConnectionAbortedError
            self._http.receive_data(data)
        return event  # type: ignore[return-value]

    def _room_bytes(self) -> int:
        """What is read next: of a head no more than there may be. Raises: RemoteProtocolError."""
        if self._http.their_state is not h11.SEND_RESPONSE:
            return _READ_BYTES
        left = HTTP_HEAD.most - len(self._http.trailing_data[0])
        if left <= 0:
            raise h11.RemoteProtocolError("its head is too large")
        return left

    @contextlib.contextmanager
    def _closed_on_failure(self, path: str, timeout_s: float) -> Iterator[None]:
        """Raises: LinkError for what the other side or the network did."""
        what = f"ask {self._server.name} for {path}"
        words = self._server.words
        try:
            yield
        except BaseException as error:  # also cancelled: the rest of the answer is nobody's
            self.close()
            if isinstance(error, TimeoutError):
                raise SilenceError(f"{what}: silent for {timeout_s:g} s") from error
            if isinstance(error, h11.ProtocolError):
                raise LinkError(
                    f"{what}: {words.not_it}, or it stopped half way: {error}"
                ) from error
            if isinstance(error, OSError):
                raise LinkError(f"{what}: {_cause(error, words)}") from error
            raise


def _text_of(head: h11.Response | h11.InformationalResponse, wanted: bytes) -> str:
    """Text of a header; empty: there is none."""
    found = (value for name, value in head.headers if name == wanted)
    return next(found, b"")[:100].decode("latin-1")


def _retry_after_s(head: h11.Response) -> float | None:
    for name, value in head.headers:
        if name == b"retry-after" and value.isdigit():
            return float(min(int(value[:6]), RETRY_AFTER_S.most))
    return None


def _keep_alive(writer: asyncio.StreamWriter) -> None:
    connected = writer.get_extra_info("socket")
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        connected.setsockopt(socket.IPPROTO_TCP, option, value)


async def _connect(server: HttpServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """To the first address of the host that answers. Raises: OSError, TimeoutError."""
    failure: Exception = OSError("no address")
    async with asyncio.timeout(_CONNECT_TIMEOUT_S):
        addresses = await _resolve(server.host, server.port)
        for address in addresses:
            try:
                async with asyncio.timeout(_CONNECT_TIMEOUT_S / len(addresses)):
                    return await _connect_to(address, server)
            except (OSError, EOFError) as error:  # TimeoutError is an OSError
                failure = error
    raise failure


class _Opening(asyncio.StreamReaderProtocol):
    """Knows its transport before the one who opens it does."""

    transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        super().connection_made(transport)


async def _connect_to(
    address: str, server: HttpServer
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """As `asyncio.open_connection`, but who is cancelled as the TLS handshake ends leaves nothing:
    asyncio would say goodbye by TLS and wait half a minute for the answer."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    opening = _Opening(reader)
    try:
        transport, _ = await loop.create_connection(
            lambda: opening,
            address,
            server.port,
            ssl=server.tls,
            server_hostname=_plain(server.tls_name) if server.tls is not None else None,
        )
    except BaseException:
        if opening.transport is not None:
            opening.transport.abort()
        raise
    return reader, asyncio.StreamWriter(transport, opening, reader, loop)


async def _resolve(host: str, port: int) -> list[str]:
    """Numeric addresses. A name server that is cut off must not hold up the agent's end, as a
    thread of the loop's own pool would: they are waited for. Raises: OSError."""
    try:
        found = socket.getaddrinfo(
            _plain(host), port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )
    except socket.gaierror:
        found = await _look_up(host, port)
    addresses = dict.fromkeys(str(address[0]) for *_, address in found)
    return list(addresses)[: NAMED_ADDRESSES.most]


def _plain(name: str) -> Any:
    """As bytes, which is Any because typeshed knows of text only: of a text ssl and socket ask
    whether all of it is ASCII, by a table of Unicode that takes
    0.2 MiB; of bytes they do not."""
    return name.encode("ascii") if name.isascii() else name


async def _look_up(host: str, port: int) -> list[Any]:
    def ask() -> list[Any]:
        return socket.getaddrinfo(_plain(host), port, type=socket.SOCK_STREAM)

    try:
        return await in_thread(ask, "look-up")
    except UnicodeError as error:
        raise socket.gaierror(0, str(error)) from error


def _cause(error: Exception, words: HttpWords) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return words.not_trusted.format(error.verify_message)
    if isinstance(error, ssl.SSLError):
        return words.no_tls.format(error.reason or error)
    if isinstance(error, ConnectionRefusedError):
        return words.no_listener
    if isinstance(error, socket.gaierror):
        return f"{error.strerror} ({words.no_name})"
    if isinstance(error, ConnectionResetError | ConnectionAbortedError | EOFError):
        return "it closed the connection without an answer"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
