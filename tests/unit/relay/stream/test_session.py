"""A session between a node and a relay: how much of it is done in one turn of the loop."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Sequence
from typing import cast

import pytest

from limpet.relay.stream.codec import Control, encode_frame
from limpet.relay.stream.session import TlsSession

_RECORD_BYTES = 16 << 10


class FullConnection:
    """As TLS has it: each reading gives one record, until all were read."""

    def __init__(self, records: list[bytes]) -> None:
        self._records = records
        self._readable, self._other = socket.socketpair()
        self._other.send(b"x")

    def fileno(self) -> int:
        return self._readable.fileno()

    def recv(self, _size: int) -> bytes:
        if not self._records:
            self._readable.recv(1)
            raise ssl.SSLWantReadError
        return self._records.pop(0)

    def close(self) -> None:
        self._readable.close()
        self._other.close()


class Side:
    """Keeps how many packets came in each turn."""

    def __init__(self) -> None:
        self.turns: list[int] = []

    def hear(self, _message: Control) -> None: ...

    def deliver(self, _channel: int, packets: Sequence[bytes]) -> None:
        self.turns.append(len(packets))

    def session_ended(self, _why: str) -> None: ...


@pytest.mark.parametrize(
    ("packet", "in_a_turn"),
    [(b"x" * 1400, 8 * (_RECORD_BYTES // 1404)), (b"x", _RECORD_BYTES // 5)],
)
def test_a_turn_has_some_records_of_large_packets_and_one_of_tiny_ones(
    packet: bytes, in_a_turn: int
) -> None:
    """Else a node that sends packets of a byte stops its relay for a fifth of a second each time,
    and others wait."""

    async def turns() -> list[int]:
        frame = encode_frame(1, packet)
        record = frame * (_RECORD_BYTES // len(frame))
        side = Side()
        connection = FullConnection([record] * 16)
        session = TlsSession(cast(ssl.SSLSocket, connection), side)
        while sum(side.turns) < 16 * (_RECORD_BYTES // len(frame)):
            await asyncio.sleep(0)
        session.end("the test is over")
        return side.turns

    assert set(asyncio.run(turns())) == {in_a_turn}
