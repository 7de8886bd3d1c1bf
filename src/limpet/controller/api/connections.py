"""Connections to the API: a node is known by its certificate, and everybody else is a stranger, who
is heard for one request within `base.bounds.strangers`.

What strangers hold can never keep a node out: a node that has proven itself has places of its own,
and one that is about to has those of the addresses that nodes come from.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import structlog
from aiohttp import web

from limpet.base.acceptor.admission import Admission, Patience, SourceCapacity
from limpet.base.acceptor.listener import Acceptor, Visitor
from limpet.base.acceptor.places import Source
from limpet.base.bounds import strangers
from limpet.base.bounds.members import MEMBER_CONNECTIONS
from limpet.controller.api.owned_connections import OwnedConnections
from limpet.controller.state.authority import uid_of_certificate

_log = structlog.get_logger("api")

_GOODBYE_S = 2.0
"""For the other end's goodbye by TLS: asyncio would wait half a minute."""
_HEAD_ENDS = b"\r\n\r\n"
_HTTP_1 = {(1, 0), (1, 1)}
_NOT_SPOKEN = (
    b"HTTP/1.1 505 HTTP Version Not Supported\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
)

ELSEWHERE = SourceCapacity(
    waiting=strangers.API_WAITING.most,
    waiting_of_one=strangers.API_WAITING_OF_ONE.most,
    inside=strangers.API_INSIDE.most,
    inside_of_one=strangers.API_INSIDE_OF_ONE.most,
    rate=(strangers.API_HANDSHAKES_PER_S.most, strangers.API_HANDSHAKES.most),
    rate_of_one=(
        strangers.API_HANDSHAKES_OF_ONE_PER_S.most,
        strangers.API_HANDSHAKES_OF_ONE.most,
    ),
)
KNOWN = SourceCapacity(
    waiting=strangers.API_WAITING.most,
    waiting_of_one=strangers.API_WAITING_OF_ONE.most,
    inside=strangers.API_INSIDE.most,
    inside_of_one=strangers.API_INSIDE_OF_ONE.most,
    rate=(strangers.API_KNOWN_HANDSHAKES_PER_S.most, strangers.API_KNOWN_HANDSHAKES.most),
    rate_of_one=(
        strangers.API_KNOWN_HANDSHAKES_OF_ONE_PER_S.most,
        strangers.API_KNOWN_HANDSHAKES_OF_ONE.most,
    ),
)
PATIENCE = Patience(
    first_s=strangers.API_FIRST_S.most,
    turn_s=strangers.API_TURN_S.most,
    hurried_s=strangers.API_HURRIED_S.most,
    longest_s=strangers.API_LONGEST_S.most,
)
MONITORS = SourceCapacity(
    waiting=strangers.FIGURES_CONNECTIONS.most,
    waiting_of_one=strangers.FIGURES_CONNECTIONS_OF_ONE.most,
    inside=strangers.FIGURES_CONNECTIONS.most,
    inside_of_one=strangers.FIGURES_CONNECTIONS_OF_ONE.most,
    rate=(strangers.FIGURES_ASKED_PER_S.most, strangers.FIGURES_ASKED.most),
    rate_of_one=(
        strangers.FIGURES_ASKED_OF_ONE_PER_S.most,
        strangers.FIGURES_ASKED_OF_ONE.most,
    ),
)


class ApiConnection(asyncio.Protocol):
    """Hands on to aiohttp what comes, as long as it is within what its end may send."""

    def __init__(self, server: ApiServer, visitor: Visitor) -> None:
        self.visitor = visitor
        self.is_bounded = True
        """A stranger's; False: a node's, or a person's who has shown a token."""
        self.transport: asyncio.Transport | None = None
        self._server = server
        self._handler = server.new_handler()
        self._end = b""
        """End of what has come, while the head is not whole."""
        self._has_asked = False
        self._bytes = 0
        """Size of the head; then of what comes behind it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._handler.connection_made(transport)
        self._server.greet(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._handler.connection_lost(error)
        self._server.leave(self)

    def pause_writing(self) -> None:
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        self._handler.resume_writing()

    def eof_received(self) -> None:
        self._handler.eof_received()

    def data_received(self, data: bytes) -> None:
        if self.is_bounded and not self._is_within(data):
            self.close()
            return
        self._handler.data_received(data)

    def _is_within(self, data: bytes) -> bool:
        assert self.transport is not None
        self._bytes += len(data)
        if not self._has_asked:
            seen = self._end + data
            ends = seen.find(_HEAD_ENDS)
            if ends < 0:
                self._end = seen[1 - len(_HEAD_ENDS) :]
                return self._bytes <= strangers.API_HEAD.most
            behind = len(seen) - ends - len(_HEAD_ENDS)
            if self._bytes - behind > strangers.API_HEAD.most:
                return False
            self._has_asked, self._end, self._bytes = True, b"", behind
            self._server.has_asked(self)
        if self._bytes > strangers.JOIN_BODY.most:
            self.transport.pause_reading()  # more is read of nobody who has shown nothing
        return True

    def free(self) -> None:
        """Who asks has shown that they may."""
        if self.is_bounded and self.transport is not None:
            self.is_bounded = False
            self.transport.resume_reading()
            self._server.leave(self)

    def belongs_to(self, owner: str, connections: OwnedConnections) -> None:
        """Who has so many more loses the oldest."""
        if self.transport is not None:
            connections.note(owner, self.transport)

    def is_of_member(self) -> None:
        """Who asks has joined by it: others of its site may come."""
        self._server.know(self)

    def close(self) -> None:
        """At once, without a goodbye."""
        if self.transport is not None:
            self.transport.abort()


def connection_of(request: web.Request) -> ApiConnection | None:
    """None: it came by the socket on the machine, or has ended."""
    transport = request.transport
    protocol = transport.get_protocol() if transport is not None else None
    return protocol if isinstance(protocol, ApiConnection) else None


def source_of_request(request: web.Request) -> Source:
    """Empty: it came by the socket on the machine, or has ended."""
    connection = connection_of(request)
    return connection.visitor.source if connection is not None else b""


class ApiServer:
    """Runs on the event loop."""

    def __init__(
        self,
        server: web.Server,
        context: ssl.SSLContext | None,
        is_member: Callable[[str], bool],
        of_members: OwnedConnections | None = None,
        *,
        rooms: tuple[SourceCapacity, SourceCapacity] = (ELSEWHERE, KNOWN),
        patience_s: float,
    ) -> None:
        """`context`: None: in clear, where nobody can show a certificate. `is_member`: of a uid
        that the cluster has certified. `of_members`: where their connections are noted, also by who
        answers them. `patience_s`: for a head, where that is less than a stranger's."""
        self._server = server
        self._context = context
        self._is_member = is_member
        self._of_members = of_members or OwnedConnections(MEMBER_CONNECTIONS)
        self._first_s = min(PATIENCE.first_s, patience_s)
        patience = replace(
            PATIENCE, first_s=self._first_s, hurried_s=min(PATIENCE.hurried_s, patience_s)
        )
        self._acceptor = Acceptor(Admission(*rooms, patience), self._let_in)
        self._tasks: set[asyncio.Task[None]] = set()

    def listen(self, listener: socket.socket) -> None:
        """Takes over a bound socket. Raises: OSError."""
        self._acceptor.listen(listener)

    def stop(self) -> None:
        """Nobody new is heard; what is open is aiohttp's to end."""
        self._acceptor.stop()
        for task in list(self._tasks):
            task.cancel()

    def new_handler(self) -> asyncio.Protocol:
        return self._server()

    def _let_in(self, visitor: Visitor) -> None:
        task = asyncio.get_running_loop().create_task(self._open(visitor))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

        def close() -> None:
            task.cancel()

        visitor.close = close

    async def _open(self, visitor: Visitor) -> None:
        connection = ApiConnection(self, visitor)
        loop = asyncio.get_running_loop()
        options = (
            {"ssl_handshake_timeout": self._first_s, "ssl_shutdown_timeout": _GOODBYE_S}
            if self._context is not None
            else {}
        )
        try:
            await loop.connect_accepted_socket(
                lambda: connection, visitor.connection, ssl=self._context, **options
            )
        except OSError as error:
            _log.debug("a connection failed", error=str(error), by_others=True)
        finally:
            if connection.transport is None:
                visitor.connection.close()
                self._acceptor.leave(visitor)

    # What a connection says

    def greet(self, connection: ApiConnection) -> None:
        connection.visitor.close = connection.close
        uid = uid_of_connection(connection.transport)
        if uid is None or not self._is_member(uid):
            return
        connection.is_bounded = False
        self._acceptor.know(connection.visitor.source)
        self._acceptor.leave(connection.visitor)
        if connection.transport is not None:
            self._of_members.note(uid, connection.transport)

    def has_asked(self, connection: ApiConnection) -> None:
        self._acceptor.has_asked(connection.visitor)

    def leave(self, connection: ApiConnection) -> None:
        self._acceptor.leave(connection.visitor)

    def know(self, connection: ApiConnection) -> None:
        self._acceptor.know(connection.visitor.source)


@lru_cache(maxsize=8192)
def _uid_of(certificate: bytes) -> str | None:
    return uid_of_certificate(certificate)


def uid_of_connection(transport: asyncio.BaseTransport | None) -> str | None:
    """Uid of the node whose certificate TLS has proven; None: no node's."""
    tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object") if transport else None
    certificate = tls.getpeercert(binary_form=True) if tls is not None else None
    return _uid_of(certificate) if certificate else None


@web.middleware
async def only_one_of_http_1(
    request: web.Request, handler: Callable[[web.Request], Any]
) -> web.StreamResponse:
    """Refuses versions that the parser takes and nobody speaks here; a stranger asks once."""
    if request.version not in _HTTP_1:
        if request.transport is not None:
            request.transport.write(_NOT_SPOKEN)
            request.transport.close()
        return web.Response()  # which nobody gets any more
    response: web.StreamResponse = await handler(request)
    connection = connection_of(request)
    if connection is not None and connection.is_bounded:
        response.force_close()
    return response
