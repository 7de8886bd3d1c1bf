"""Questions by UDP and TCP, and the answers to them: sockets, with the resolver between them."""

from __future__ import annotations

import asyncio
import math
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from limpet.base.timer import Timer
from limpet.dns.forward.forwarder import Close, Send
from limpet.dns.forward.health import Upstream
from limpet.dns.forward.sockets import UpstreamSockets
from limpet.dns.resolver import Reply, Resolver

_AT_ONCE = 64
"""Questions of one socket that are answered before others have their turn."""
_LARGEST_QUERY_BYTES = 4096
_IDLE_S = 10.0
"""Of a TCP connection, as RFC 7766 section 6.2.3 wants it: seconds."""
_MOST_CONNECTIONS = 256
_MOST_OF_ONE = 32
"""Connections of one client's address: room is left for others."""
_MOST_UNSENT_BYTES = 1 << 18
"""Four of the largest answers; who asks on without taking them is left."""

Client = Callable[[bytes], None]
"""Takes the answer."""


class Server:
    """Runs on the event loop's thread."""

    def __init__(self, resolver: Resolver[Client]) -> None:
        self.resolver = resolver
        self._upstreams: tuple[Upstream, ...] = ()
        self._asked = UpstreamSockets(self._heard, self._failed)
        self._timer = Timer("dns", self._ring)
        self._rings_s = math.inf
        self._sockets: list[socket.socket] = []
        self._is_reading = False
        self.connections: set[_Connection] = set()

    def use(self, upstreams: Sequence[Upstream]) -> None:
        """These are asked from now on."""
        self._upstreams = tuple(upstreams)
        self.resolver.use(self._upstreams, time.monotonic())
        self.carry_out()

    # Listening

    def listen(self, sockets: Sequence[socket.socket]) -> None:
        """They are read from now on, and closed in the end."""
        self._sockets += sockets
        self.resume()

    def resume(self) -> None:
        loop = asyncio.get_running_loop()
        if not self._is_reading:
            for each in self._sockets:
                is_udp = each.type == socket.SOCK_DGRAM
                loop.add_reader(each, self._read if is_udp else self._accept, each)
        self._is_reading = True

    def pause(self) -> None:
        """Somebody else reads them; what was asked here is still answered."""
        for each in self._sockets if self._is_reading else ():
            asyncio.get_running_loop().remove_reader(each)
        self._is_reading = False

    @property
    def sockets(self) -> Sequence[socket.socket]:
        return tuple(self._sockets)

    def close(self) -> None:
        self.pause()
        self._timer.stop()
        self._asked.close_all()
        for connection in list(self.connections):
            connection.close()
        for each in self._sockets:
            each.close()
        self._sockets = []

    def _read(self, at: socket.socket) -> None:
        take, effects = self.resolver.take, self.resolver.effects
        now_s = time.monotonic()
        for _ in range(_AT_ONCE):
            try:
                message, sender = at.recvfrom(_LARGEST_QUERY_BYTES)
            except OSError:  # nothing more; or an earlier answer found nobody
                break
            answer = take(message, partial(_answer, at, sender), now_s, who=sender[0])
            if answer is not None:
                _answer(at, sender, answer)
        if effects or self.resolver.next_s < self._rings_s:
            self.carry_out()

    def _accept(self, at: socket.socket) -> None:
        try:
            accepted, sender = at.accept()
        except OSError:  # another process was faster, or there is no descriptor left
            return
        of_one = sum(each.who == sender[0] for each in self.connections)
        if len(self.connections) >= _MOST_CONNECTIONS or of_one >= _MOST_OF_ONE:
            accepted.close()
            return
        accepted.setblocking(False)
        self.connections.add(_Connection(self, accepted, sender[0]))

    # What the resolver wants done

    def carry_out(self) -> None:
        effects = self.resolver.effects
        for effect in effects:
            match effect:
                case Reply(client, message):
                    client(message)
                case Send():
                    self._asked.send(effect, self._upstreams[effect.upstream])
                case Close(attempt):
                    self._asked.close(attempt)
        effects.clear()
        # Only to what is earlier: most of what is to be done later is answered before, and a timer
        # that rings for nothing is cheaper than one for each question.
        if self.resolver.next_s < self._rings_s:
            self._rings_s = self.resolver.next_s
            self._timer.set(self._rings_s)

    def _heard(self, attempt: int, message: bytes) -> None:
        self.resolver.heard(attempt, message, time.monotonic())
        self.carry_out()

    def _failed(self, attempt: int) -> None:
        self.resolver.failed(attempt, time.monotonic())
        self.carry_out()

    def _ring(self) -> None:
        self._rings_s = math.inf
        self.resolver.due(time.monotonic())
        self.carry_out()

    @property
    def is_idle(self) -> bool:
        """Nobody waits for anything."""
        return self.resolver.next_s == math.inf and not self.connections


def _answer(at: socket.socket, to: tuple[Any, ...], message: bytes) -> None:
    try:
        at.sendto(message, to)
    except OSError:  # it has gone, or its queue is full: it asks again
        return


class _Connection:
    """A client that asks by TCP, one question after the other or many at once."""

    def __init__(self, server: Server, accepted: socket.socket, who: str) -> None:
        self.who = who
        self._server = server
        self._socket = accepted
        self._in, self._out = bytearray(), bytearray()
        self._loop = asyncio.get_running_loop()
        self._idle = self._loop.call_later(_IDLE_S, self.close)
        self._is_writing = False
        self._loop.add_reader(accepted, self._readable)

    def close(self) -> None:
        if self in self._server.connections:
            self._server.connections.discard(self)
            self._idle.cancel()
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._socket.close()

    def _readable(self) -> None:
        try:
            data = self._socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        self._idle.cancel()
        self._idle = self._loop.call_later(_IDLE_S, self.close)
        self._in += data
        self._take()

    def _take(self) -> None:
        """Answers so many of those that have come, and the others after others' turn."""
        take, asked = self._server.resolver.take, 0
        while len(self._in) >= 2 and asked < _AT_ONCE:
            end = 2 + int.from_bytes(self._in[:2], "big")
            if len(self._in) < end:
                break
            message = bytes(self._in[2:end])
            del self._in[:end]
            asked += 1
            answer = take(message, self._reply, time.monotonic(), by_tcp=True, who=self.who)
            if answer is not None:
                self._reply(answer)
        self._server.carry_out()
        if asked == _AT_ONCE and self in self._server.connections:
            # What it sends meanwhile waits in the kernel, and then at the client.
            self._loop.remove_reader(self._socket)
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        if self in self._server.connections:
            self._loop.add_reader(self._socket, self._readable)
            self._take()

    def _reply(self, message: bytes) -> None:
        if self not in self._server.connections:
            return
        self._out += len(message).to_bytes(2, "big") + message
        self._writable()

    def _writable(self) -> None:
        try:
            sent = self._socket.send(self._out)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.close()
            return
        del self._out[:sent]
        if len(self._out) > _MOST_UNSENT_BYTES:
            self.close()
        elif self._out and not self._is_writing:
            self._is_writing = True
            self._loop.add_writer(self._socket, self._writable)
        elif not self._out and self._is_writing:
            self._is_writing = False
            self._loop.remove_writer(self._socket)
