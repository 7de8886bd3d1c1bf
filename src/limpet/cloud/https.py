"""One HTTPS/1.1 connection to a controller: bounded in time and size, whatever the other speaks."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import h11

from limpet.base.errors import LimpetError
from limpet.base.process import in_thread
from limpet.cluster.api import SERVER_NAME

CONNECT_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 20.0
MAX_ANSWER_BYTES = 4 << 20
"""Size of one answer: the pods of a whole machine take one mebibyte."""
_MAX_HEAD_BYTES = 16 << 10
_READ_BYTES = 64 << 10
_DEFAULT_PORT = 7470

Headers = Sequence[tuple[str, str]]


class LinkError(LimpetError):
    """A controller that cannot be reached, or does not speak as one."""


class SilenceError(LinkError):
    """A controller that may be there and does not answer in time."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes


def parse_controller(text: str) -> tuple[str, int]:
    """Host and port of `host`, `host:port`, `[IPv6]:port`. Raises: LinkError."""
    host, port = text, str(_DEFAULT_PORT)
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        port = rest[1:] if rest.startswith(":") else port
        if not bracket or (rest and not rest.startswith(":")):
            host = ""
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    number = int(port) if port.isascii() and port.isdigit() and len(port) < 6 else 0
    if not host or not 0 < number < 65536 or not host.isascii() or set(host) & set(" /@[]"):
        raise LinkError(
            f"controller {text!r}: not an address as 192.0.2.1:{_DEFAULT_PORT}, "
            f"[2001:db8::1]:{_DEFAULT_PORT} or controller.example:{_DEFAULT_PORT}"
        )
    return host, number


class HttpsConnection:
    """One request after the other; a stream of lines takes the connection for itself."""

    def __init__(self, at: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._at = at
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD_BYTES)
        self.answered = False
        """Whether anything has come back to the last of them."""

    @classmethod
    async def open(
        cls, at: str, context: ssl.SSLContext, *, timeout_s: float = CONNECT_TIMEOUT_S
    ) -> HttpsConnection:
        """Connected, and the other side has proven who it is. Raises: LinkError."""
        try:
            reader, writer = await _connect(*parse_controller(at), context, timeout_s)
        except TimeoutError as error:
            raise LinkError(
                f"connect to the controller at {at}: no answer within {timeout_s:g} s (is the way "
                "there cut, or does a firewall drop it?)"
            ) from error
        except (OSError, EOFError) as error:
            raise LinkError(f"connect to the controller at {at}: {_cause(error)}") from error
        return cls(at, reader, writer)

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
    ) -> Answer:
        """The whole answer; afterwards the connection serves for the next. Raises: LinkError."""
        with self._closed_on_failure(path, timeout_s):
            async with asyncio.timeout(timeout_s):
                head = await self._ask(verb, path, body, headers)
                parts: list[bytes] = []
                size = 0
                while (data := await self._data()) is not None:
                    size += len(data)
                    if size > MAX_ANSWER_BYTES:
                        raise h11.RemoteProtocolError(
                            f"it answers with more than {MAX_ANSWER_BYTES >> 20} MiB"
                        )
                    parts.append(data)
                if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
                    self._http.start_next_cycle()
                return Answer(head.status_code, b"".join(parts))

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

    async def _chunks(self, path: str, silence_s: float) -> AsyncGenerator[bytes, None]:
        with self._closed_on_failure(path, silence_s):
            while True:
                async with asyncio.timeout(silence_s):
                    data = await self._data()
                if data is None:
                    return
                yield data

    async def _ask(self, verb: str, path: str, body: bytes, headers: Headers) -> h11.Response:
        self.answered = False
        head = [("Host", SERVER_NAME), ("Content-Length", str(len(body))), *headers]
        request = h11.Request(method=verb, target=path, headers=head)
        for event in (request, h11.Data(data=body), h11.EndOfMessage()):
            self._writer.write(self._http.send(event) or b"")
        await self._writer.drain()
        while True:
            answer = await self._event()
            if isinstance(answer, h11.Response):
                return answer
            if not isinstance(answer, h11.InformationalResponse):
                raise h11.RemoteProtocolError("it closed the connection without an answer")

    async def _data(self) -> bytes | None:
        """The next bytes of the body; None: it is complete."""
        event = await self._event()
        return bytes(event.data) if isinstance(event, h11.Data) else None

    async def _event(self) -> h11.Event | type[h11.PAUSED]:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            data = await self._reader.read(_READ_BYTES)
            self.answered = self.answered or bool(data)
            if not self.answered:
                raise ConnectionAbortedError
            self._http.receive_data(data)
        return event  # type: ignore[return-value]

    @contextlib.contextmanager
    def _closed_on_failure(self, path: str, timeout_s: float) -> Iterator[None]:
        """Raises: LinkError for what the other side or the network did."""
        what = f"ask the controller at {self._at} for {path}"
        try:
            yield
        except BaseException as error:  # also cancelled: the rest of the answer is nobody's
            self.close()
            if isinstance(error, TimeoutError):
                raise SilenceError(f"{what}: silent for {timeout_s:g} s") from error
            if isinstance(error, h11.ProtocolError):
                raise LinkError(
                    f"{what}: what answers is no controller, or it stopped half way: {error}"
                ) from error
            if isinstance(error, OSError):
                raise LinkError(f"{what}: {_cause(error)}") from error
            raise


async def _connect(
    host: str, port: int, context: ssl.SSLContext, timeout_s: float
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """To the first address of the host that answers. Raises: OSError, TimeoutError."""
    failure: Exception = OSError("no address")
    async with asyncio.timeout(timeout_s):
        addresses = await _resolve(host, port)
        for address in addresses:
            try:
                async with asyncio.timeout(timeout_s / len(addresses)):
                    return await asyncio.open_connection(
                        address, port, ssl=context, server_hostname=SERVER_NAME
                    )
            except (OSError, EOFError) as error:  # TimeoutError is an OSError
                failure = error
    raise failure


async def _resolve(host: str, port: int) -> list[str]:
    """Numeric addresses. A name server that is cut off must not hold up the agent's end, as a
    thread of the loop's own pool would: they are waited for. Raises: OSError."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        found = await _look_up(host, port)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


async def _look_up(host: str, port: int) -> list[Any]:
    def ask() -> list[Any]:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)

    try:
        return await in_thread(ask, "look-up")
    except UnicodeError as error:
        raise socket.gaierror(0, str(error)) from error


def _cause(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"it is not of this node's cluster: {error.verify_message} (does another cluster's "
            "controller answer there, or somebody in between?)"
        )
    if isinstance(error, ssl.SSLError):
        return f"it does not speak TLS as a controller does: {error.reason or error}"
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there (is `limpet controller` running, and is the port right?)"
    if isinstance(error, socket.gaierror):
        return f"{error.strerror} (is there a DNS server? The controller's address works without)"
    if isinstance(error, ConnectionResetError | ConnectionAbortedError | EOFError):
        return "it closed the connection without an answer"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
