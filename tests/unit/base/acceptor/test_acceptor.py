"""Who is handed on in one turn of the event loop, over real connections on loopback."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace

from limpet.base.acceptor.admission import Admission, Patience, SourceCapacity
from limpet.base.acceptor.listener import Acceptor, Visitor
from tests.unit.base.bounds.times.clock import StoppedClock, on_stopped_clock
from tests.unit.cluster.test_membership import on_a_loop
from tests.waiting import until

_ROOM = SourceCapacity(
    waiting=99,
    waiting_of_one=99,
    inside=99,
    inside_of_one=99,
    rate=(1e9, 1e9),
    rate_of_one=(1e9, 1e9),
)
_PATIENCE = Patience(first_s=60, turn_s=60, hurried_s=60, longest_s=60)
_COME = 50
_MOST_AT_ONCE = 4
_OVERDUE = 150
_CLOSED_AT_ONCE = 64
"""Handshakes of 2 ms before whoever is served already has a turn."""


@on_a_loop
async def test_of_many_who_come_at_once_a_few_are_handed_on_in_a_turn_and_none_is_left() -> None:
    loop = asyncio.get_running_loop()
    turn = 0
    handed_on: Counter[int] = Counter()

    def begin_turn() -> None:
        nonlocal turn
        turn += 1
        loop.call_soon(begin_turn)

    def let_in(visitor: Visitor) -> None:
        handed_on[turn] += 1
        undo.callback(visitor.close)

    acceptor = Acceptor(Admission(_ROOM, _ROOM, _PATIENCE), let_in)
    with ExitStack() as undo:
        listener = socket.create_server(("127.0.0.1", 0))
        acceptor.listen(listener)
        undo.callback(acceptor.stop)
        for _ in range(_COME):  # before the loop has its next turn
            client = undo.enter_context(socket.create_connection(listener.getsockname()))
            client.sendall(b"\x16")
        begin_turn()
        await until(lambda: handed_on.total() == _COME)
    assert max(handed_on.values()) <= _MOST_AT_ONCE


def test_of_many_who_are_overdue_at_once_some_are_closed_in_a_turn_and_none_is_left() -> None:
    """Who is served waited for all of them: up to a thousand silent strangers."""
    closed: Counter[int] = Counter()

    async def come_and_stay(loop: StoppedClock) -> bool:
        turn = inside = 0

        def begin_turn() -> None:
            nonlocal turn
            turn += 1
            loop.call_soon(begin_turn)

        def let_in(visitor: Visitor) -> None:
            nonlocal inside

            def close() -> None:
                closed[turn] += 1
                visitor.connection.close()

            inside += 1
            visitor.close = close

        room = replace(_ROOM, waiting=999, waiting_of_one=999, inside=999, inside_of_one=999)
        acceptor = Acceptor(Admission(room, room, replace(_PATIENCE, first_s=5)), let_in)
        with ExitStack() as undo:
            listener = socket.create_server(("127.0.0.1", 0))
            acceptor.listen(listener)
            undo.callback(acceptor.stop)
            begin_turn()
            for _ in range(_OVERDUE):
                client = undo.enter_context(socket.create_connection(listener.getsockname()))
                client.sendall(b"\x16")
                await asyncio.sleep(0)
            await loop.until(lambda: inside == _OVERDUE)
            for _ in range(20):
                await loop.pass_by(0.5)
            assert closed.total() == _OVERDUE
        return True

    assert on_stopped_clock(come_and_stay)
    assert max(closed.values()) <= _CLOSED_AT_ONCE
