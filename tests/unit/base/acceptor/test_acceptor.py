"""Who is handed on in one turn of the event loop, over real connections on loopback."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from contextlib import ExitStack

from limpet.base.acceptor.admission import Admission, Patience, SourceCapacity
from limpet.base.acceptor.listener import Acceptor, Visitor
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
