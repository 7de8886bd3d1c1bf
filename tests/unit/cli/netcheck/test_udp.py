"""Questions by UDP on loopback, to somebody who answers when the test says so."""

from __future__ import annotations

import asyncio
import socket
from ipaddress import ip_address

from limpet.cli.netcheck.udp import MappingSeen, MappingSocket
from limpet.cluster.datagrams.reflection import encode_answer, is_question

_LARGEST = 2048


def test_an_answer_that_takes_longer_than_a_try_counts() -> None:
    """The first question is answered when the second has come."""

    async def body() -> tuple[MappingSeen | None, int]:
        loop, asker = asyncio.get_running_loop(), MappingSocket(4)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as other:
            other.bind(("127.0.0.1", 0))
            where = (ip_address("127.0.0.1"), other.getsockname()[1])
            asking = asyncio.create_task(asker.ask(where, tries_s=(0.01, 60.0)))
            first, back = await loop.sock_recvfrom(other, _LARGEST)
            second, _ = await loop.sock_recvfrom(other, _LARGEST)
            assert is_question(first)
            assert first != second
            seen_as = (ip_address(back[0]), back[1])
            other.sendto(encode_answer(first, seen_as), back)
            async with asyncio.timeout(30):
                found = await asking
        port = asker.port
        asker.close()
        return found, port

    found, port = asyncio.run(body())

    assert found is not None
    assert found.seen_as == (ip_address("127.0.0.1"), port)
    assert found.rtt_s > 0.01


def test_who_is_not_there_is_told_as_no_answer() -> None:
    async def body() -> MappingSeen | None:
        asker = MappingSocket(4)
        try:
            return await asker.ask((ip_address("127.0.0.1"), 1), tries_s=(0.01, 0.01))
        finally:
            asker.close()

    assert asyncio.run(body()) is None
