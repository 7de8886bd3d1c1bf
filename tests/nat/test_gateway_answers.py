"""Whoever is on the link may answer in the gateway's place, as often as it likes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from ipaddress import IPv4Address

import pytest

from limpet.nat import port_control, upnp

_AT_ONCE = 100


def _opened(undo: ExitStack, address: str) -> socket.socket:
    opened = undo.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    opened.bind((address, 0))
    opened.setblocking(False)
    return opened


async def _turns_of_others(asks: Callable[[socket.socket], Awaitable[object]]) -> int:
    """How often others had their turn while so many datagrams of somebody else were looked at."""
    loop, turns = asyncio.get_running_loop(), 0

    def turn() -> None:
        nonlocal turns
        turns += 1
        loop.call_soon(turn)

    with ExitStack() as undo:
        asking, other = _opened(undo, "127.0.0.1"), _opened(undo, "127.0.0.1")
        asking.connect(other.getsockname())
        for _ in range(_AT_ONCE):
            other.sendto(b"no answer", asking.getsockname())
        loop.call_soon(turn)
        task = asyncio.ensure_future(asks(asking))
        while not task.done():
            with suppress(BlockingIOError):
                asking.recv(1, socket.MSG_PEEK)
                await asyncio.sleep(0)
                continue
            break
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return turns


@pytest.mark.parametrize(
    "asks",
    [
        pytest.param(lambda at: upnp._location(at, IPv4Address("192.0.2.1")), id="upnp"),
        pytest.param(lambda at: port_control._ask(at, b"?", lambda _: None), id="pcp, nat-pmp"),
    ],
)
def test_datagrams_that_are_no_answer_keep_nobody_from_their_turn(
    asks: Callable[[socket.socket], Awaitable[object]],
) -> None:
    assert asyncio.run(_turns_of_others(asks)) >= _AT_ONCE
