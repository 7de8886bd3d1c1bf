"""Questions by UDP and TCP, and the answers to them: sockets, with the resolver between them."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from limpet.base.acceptor.places import PlacesByAddress
from limpet.base.bounds.strangers import (
    DNS_CONNECTIONS,
    DNS_CONNECTIONS_OF_ONE,
    DNS_QUESTION,
    DNS_QUESTION_S,
    DNS_UNSENT,
    DNS_WAITING,
    DNS_WAITING_OF_ONE,
)
from limpet.base.timer import Timer
from limpet.dns.clients.far import FarClients
from limpet.dns.clients.turns import ClientTurns
from limpet.dns.forward.effects import AskUpstream, CloseAttempt
from limpet.dns.forward.health import Upstream
from limpet.dns.forward.sockets import UpstreamSockets
from limpet.dns.resolver import Reply, Resolver
from limpet.linux.source_filter import leave_out
from limpet.linux.underlay import is_beyond

_AT_ONCE = 64
"""Questions of one socket that are answered before others have their turn."""
_SAID_AT_ONCE = 16 << 10
"""Bytes of answers on one TCP connection before others have their turn: one answer may be larger
than that, of a thousand records."""
_READ_AT_ONCE = 1024
"""Questions that are read, and answered later or not at all: a flood of 300,000 a second."""
_IDLE_S = float(DNS_QUESTION_S.most)
"""Idle time of a TCP connection; source: RFC 7766, section 6.2.3. A question that has not come
whole is none, or somebody with a byte now and then would keep the place for ever."""
_READ_BYTES = 8 << 10
_REST_S = 0.2
"""Pause of accepting after descriptors or memory ran out."""

Client = Callable[[bytes], None]
"""Takes the answer."""


class DnsServer:
    """Runs on the event loop's thread."""

    def __init__(self, resolver: Resolver[Client]) -> None:
        self.resolver = resolver
        self._upstreams: tuple[Upstream, ...] = ()
        self._asked = UpstreamSockets(self._heard, self._failed)
        self._timer = Timer("dns", self._ring)
        self._rings_s = math.inf
        self._sockets: list[socket.socket] = []
        self._turns: dict[socket.socket, ClientTurns[tuple[bytes, tuple[Any, ...]]]] = {}
        """Questions by UDP that wait for their turn, while more come than are answered."""
        self._left_out: dict[socket.socket, frozenset[str]] = {}
        """Clients of whom the kernel takes nothing more for a socket."""
        self._is_reading = False
        self._far = FarClients(is_beyond)
        self.connections: PlacesByAddress[_Connection] = PlacesByAddress(
            DNS_CONNECTIONS.most, DNS_CONNECTIONS_OF_ONE.most
        )

    def use(self, upstreams: Sequence[Upstream]) -> None:
        """These are asked from now on."""
        self._upstreams = tuple(upstreams)
        self.resolver.use(self._upstreams, time.monotonic())
        self.carry_out()

    def look_again(self) -> None:
        """Routes, and links, may be others by now."""
        self._far.forget()

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
            self._leave_out(each, ())
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
        self._turns.clear()
        for each in self._sockets:
            each.close()
        self._sockets = []
        self._left_out.clear()

    def _read(self, at: socket.socket) -> None:
        if at in self._turns:
            return  # it is read there
        for _ in range(_AT_ONCE):
            try:
                message, sender = at.recvfrom(DNS_QUESTION.most)
            except OSError:  # nothing more; or an earlier answer found nobody
                break
            self._take(at, message, sender)
        else:
            self._take_turns(at)
        self._carry_out_what_is_new()

    def _take(self, at: socket.socket, message: bytes, sender: tuple[Any, ...]) -> None:
        if self._far.has(sender[0]):
            answer = self.resolver.send_to_tcp(message)
        else:
            answer = self.resolver.take(
                message, partial(_answer, at, sender), time.monotonic(), who=sender[0]
            )
        if answer is not None:
            _answer(at, sender, answer)

    def _take_turns(self, at: socket.socket) -> None:
        """More come than are answered. What waits in the kernel waits for whoever sends most: it
        is read, which is quick, and each client's questions are answered in turn. While too many
        of one wait the kernel drops what else it sends: a process that has to wait for a processor
        would find the queue full of them."""
        turns = self._turns.setdefault(at, ClientTurns(DNS_WAITING.most, DNS_WAITING_OF_ONE.most))
        counts = self.resolver.counts
        for _ in range(_READ_AT_ONCE if self._is_reading else 0):
            try:
                message, sender = at.recvfrom(DNS_QUESTION.most)
            except OSError:
                break
            counts.dropped += not turns.put(sender[0], (message, sender))
        try:
            for _ in range(_AT_ONCE):
                if (waiting := turns.take()) is None:
                    break
                self._take(at, *waiting)
        finally:  # whatever one of them brings about, the others have their turn
            self._leave_out(at, turns.full if self._is_reading else ())
            if turns:
                asyncio.get_running_loop().call_soon(self._go_on, at)
            else:
                del self._turns[at]

    def _leave_out(self, at: socket.socket, clients: Collection[str]) -> None:
        wanted = frozenset(clients)
        if self._left_out.get(at, frozenset()) == wanted:
            return
        # Where the kernel has no memory for it the flood is read as it comes.
        with contextlib.suppress(OSError):
            leave_out(at, wanted)
            self._left_out[at] = wanted

    def _go_on(self, at: socket.socket) -> None:
        if at in self._turns:
            self._take_turns(at)
            self._carry_out_what_is_new()

    def _carry_out_what_is_new(self) -> None:
        if self.resolver.effects or self.resolver.next_s < self._rings_s:
            self.carry_out()

    def _accept(self, at: socket.socket) -> None:
        try:
            accepted, sender = at.accept()
        except (BlockingIOError, InterruptedError, ConnectionError):
            return  # another process was faster, or who came has gone
        except OSError:  # no descriptor is left: it would be asked for again at once, and so on
            loop = asyncio.get_running_loop()
            loop.remove_reader(at)
            loop.call_later(_REST_S, self._accept_again, at)
            return
        accepted.setblocking(False)
        connection = _Connection(self, accepted, sender[0])
        leaves = self.connections.put(connection, sender[0])
        if leaves is not None:
            leaves.end()

    def _accept_again(self, at: socket.socket) -> None:
        if self._is_reading and at in self._sockets:
            asyncio.get_running_loop().add_reader(at, self._accept, at)

    # What the resolver wants done

    def carry_out(self) -> None:
        effects = self.resolver.effects
        for effect in effects:
            match effect:
                case Reply(client, message):
                    client(message)
                case AskUpstream():
                    self._asked.send(effect, self._upstreams[effect.upstream])
                case CloseAttempt(attempt):
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
        return self.resolver.next_s == math.inf and not self.connections and not self._turns


def _answer(at: socket.socket, to: tuple[Any, ...], message: bytes) -> None:
    try:
        at.sendto(message, to)
    except OSError:  # it has gone, or its queue is full: it asks again
        return


class _Connection:
    """A client that asks by TCP, one question after the other or many at once."""

    def __init__(self, server: DnsServer, accepted: socket.socket, who: str) -> None:
        self.who = who
        self._server = server
        self._socket = accepted
        self._in, self._out = bytearray(), bytearray()
        self._loop = asyncio.get_running_loop()
        # A handle that is cancelled lets go what it calls; by a `Timer` this would refer to itself,
        # and each connection that has ended would wait for the garbage collector.
        self._idle = self._loop.call_later(_IDLE_S, self.close)
        self._is_writing = False
        self._waiting = 0
        """Questions whose answers are still to come."""
        self._has_ended = False
        """The client asks nothing more, and may still take answers."""
        self._said = 0
        """Bytes of answers since the connection was made."""
        self._loop.add_reader(accepted, self._readable)

    def close(self) -> None:
        if self._server.connections.drop(self):
            self.end()

    def end(self) -> None:
        """It has no place any more."""
        self._idle.cancel()
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()

    def _readable(self) -> None:
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        if not data:
            # It may wait for answers. Source: RFC 1035 section 4.2.2.
            self._has_ended = True
            self._loop.remove_reader(self._socket)
            self._close_if_done()
            return
        self._in += data
        self._take()

    def _take(self) -> None:
        """Answers so many of those that have come, and the others after others' turn."""
        take, asked = self._server.resolver.take, 0
        enough = self._said + _SAID_AT_ONCE
        while len(self._in) >= 2 and asked < _AT_ONCE and self._said < enough:
            end = 2 + int.from_bytes(self._in[:2], "big")
            if end - 2 > DNS_QUESTION.most:
                self.close()
                return
            if len(self._in) < end:
                break
            message = bytes(self._in[2:end])
            del self._in[:end]
            asked += 1
            answer = take(message, self._reply_later, time.monotonic(), by_tcp=True, who=self.who)
            if answer is not None:
                self._reply(answer)
            else:
                self._waiting += 1
                self._server.carry_out()  # what was remembered is told now
        if asked and self in self._server.connections:
            self._idle.cancel()
            self._idle = self._loop.call_later(_IDLE_S, self.close)
        self._server.carry_out()
        if (asked == _AT_ONCE or self._said >= enough) and self in self._server.connections:
            # What it sends meanwhile waits in the kernel, and then at the client.
            self._loop.remove_reader(self._socket)
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        if self in self._server.connections:
            self._loop.add_reader(self._socket, self._readable)
            self._take()

    def _close_if_done(self) -> None:
        if self._has_ended and not self._waiting and not self._out:
            self.close()

    def _reply_later(self, message: bytes) -> None:
        self._waiting -= 1
        self._reply(message)

    def _reply(self, message: bytes) -> None:
        if self not in self._server.connections:
            return
        self._said += len(message)
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
        if len(self._out) > DNS_UNSENT.most:
            self.close()
        elif self._out and not self._is_writing:
            self._is_writing = True
            self._loop.add_writer(self._socket, self._writable)
        elif not self._out and self._is_writing:
            self._is_writing = False
            self._loop.remove_writer(self._socket)
        self._close_if_done()
