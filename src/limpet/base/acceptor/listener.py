"""Accepts TCP connections, and hands on those whose turn has come."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import structlog

from limpet.base.acceptor.admission import Admission
from limpet.base.acceptor.places import Source, source_of
from limpet.base.timer import Timer

_log = structlog.get_logger("acceptor")

_TCP_ESTABLISHED = 1
"""Source: include/net/tcp_states.h."""
_BACKLOG = 1024
_ACCEPTED_PER_TURN = 64
_LET_IN_PER_TURN = 4
"""Connections let in per turn of the event loop. A TLS handshake takes 1 to 2 ms, and those that
begin in one turn all come to it in one later turn: whoever is served already waits for them."""
_CLOSED_PER_TURN = 64
"""Overdue connections closed per turn of the event loop; there may be a thousand, and more follows
from the end of each. Whoever is served already waits for that."""
_PAUSE_S = 1.0
"""Pause of accepting after descriptors or memory ran out."""
_NEXT_S, _SWEEP_S = 0.05, 0.5
"""Until whoever is left waiting is looked at again; and between two looks at who stays too long."""


class Visitor:
    """One connection that has proven nothing."""

    __slots__ = ("close", "connection", "source")

    def __init__(self, connection: socket.socket, source: Source) -> None:
        self.connection = connection
        self.source = source
        self.close: Callable[[], None] = connection.close
        """Ends it at once. Whoever has it open by other means puts those here."""


class Acceptor:
    """Runs on the event loop."""

    def __init__(self, admission: Admission[Visitor], let_in: Callable[[Visitor], Any]) -> None:
        """`let_in`: whose turn has come; says `leave` at its end, or once it is known."""
        self._admission = admission
        self._let_in = let_in
        self._listeners: list[socket.socket] = []
        self._left = _LET_IN_PER_TURN
        """How many may still be let in in this turn."""
        self._next = Timer("connections", self._let_next_in)
        self._overdue: deque[Visitor] = deque()
        """Those that the last sweep has found; each that is still there is closed."""
        self._sweep = Timer("connections that stay", self._close_overdue)
        self._clock_s = self._read_at_s = 0.0
        self._again = Timer("accepting", self._resume)

    def listen(self, listener: socket.socket) -> None:
        """Takes over a bound socket. Raises: OSError."""
        listener.setblocking(False)
        listener.listen(_BACKLOG)
        self._listeners.append(listener)
        asyncio.get_running_loop().add_reader(listener.fileno(), self._accept, listener)

    def stop(self) -> None:
        """Nobody is accepted any more; who waits is closed."""
        for timer in (self._next, self._sweep, self._again):
            timer.stop()
        for listener in self._listeners:
            asyncio.get_running_loop().remove_reader(listener.fileno())
            listener.close()
        self._listeners.clear()
        for visitor in self._admission.take_overdue(float("inf")):
            visitor.close()

    def _now_s(self) -> float:
        """A clock that goes slower while this process is kept from its work: nobody is to lose a
        place for that."""
        now_s = asyncio.get_running_loop().time()
        passed_s, self._read_at_s = now_s - self._read_at_s, now_s
        self._clock_s += passed_s if self._admission.is_empty else min(passed_s, 2 * _SWEEP_S)
        return self._clock_s

    # Whoever comes

    def _accept(self, listener: socket.socket) -> None:
        loop, now_s = asyncio.get_running_loop(), self._now_s()
        for _ in range(_ACCEPTED_PER_TURN):
            try:
                connection, address = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                break
            except OSError as error:  # no descriptors or no memory: it would be told for ever
                _log.warning("no connections are taken for a while", error=error.strerror)
                for each in self._listeners:
                    loop.remove_reader(each.fileno())
                self._again.set_in(_PAUSE_S)
                break
            connection.setblocking(False)
            visitor = Visitor(connection, source_of(address[0]))
            visitor.close = partial(self._close_waiting, visitor)
            leaves = self._admission.arrive(visitor, visitor.source, now_s)
            if leaves is not None:
                leaves.close()
            loop.add_reader(connection.fileno(), self._readable, visitor)
        if not self._sweep.is_set:
            self._sweep.set_in(_SWEEP_S)

    def _resume(self) -> None:
        for listener in self._listeners:
            asyncio.get_running_loop().add_reader(listener.fileno(), self._accept, listener)

    def _close_waiting(self, visitor: Visitor) -> None:
        asyncio.get_running_loop().remove_reader(visitor.connection.fileno())
        visitor.connection.close()

    def _readable(self, visitor: Visitor) -> None:
        asyncio.get_running_loop().remove_reader(visitor.connection.fileno())
        try:
            has_sent = visitor.connection.recv(1, socket.MSG_PEEK)
        except OSError:
            has_sent = b""
        if not has_sent:
            visitor.connection.close()
            self._admission.leave(visitor)
            return
        self._admission.has_sent(visitor)
        if not self._next.is_set:  # else nobody's turn comes before that
            self._let_next_in()

    def _let_next_in(self) -> None:
        now_s = self._now_s()
        while self._left and (visitor := self._admission.take(now_s)) is not None:
            visitor.close = visitor.connection.close
            if _is_there(visitor.connection):
                self._note_let_in()
                self._let_in(visitor)
            else:
                visitor.close()
                self._admission.leave(visitor)
        if self._left and self._admission.has_ready:
            self._next.set_in(_NEXT_S)

    def _note_let_in(self) -> None:
        if self._left == _LET_IN_PER_TURN:
            asyncio.get_running_loop().call_soon(self._begin_turn)
        self._left -= 1

    def _begin_turn(self) -> None:
        self._left = _LET_IN_PER_TURN
        if self._admission.has_ready and not self._next.is_set:
            self._let_next_in()

    def _close_overdue(self) -> None:
        if not self._overdue:
            self._overdue.extend(self._admission.overdue(self._now_s()))
        for _ in range(min(_CLOSED_PER_TURN, len(self._overdue))):
            visitor = self._overdue.popleft()
            if self._admission.leave(visitor):
                visitor.close()
        if self._overdue:
            self._sweep.set_in(0)
        elif not self._admission.is_empty:
            self._sweep.set_in(_SWEEP_S)

    # Whoever is inside

    def has_asked(self, visitor: Visitor) -> None:
        self._admission.has_asked(visitor)

    def leave(self, visitor: Visitor) -> None:
        """It has ended, or nobody has to bound it any more."""
        self._admission.leave(visitor)

    def know(self, source: Source) -> None:
        """A member has come from there."""
        self._admission.know(source)


def _is_there(connection: socket.socket) -> bool:
    """The other end has not closed it, as far as is known; what it has sent is not read yet."""
    try:
        state = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    except OSError:
        return False
    return state == _TCP_ESTABLISHED
