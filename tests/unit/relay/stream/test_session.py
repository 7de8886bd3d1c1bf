"""A session between a node and a relay: how much of it is done in one turn of the loop."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Sequence
from typing import cast

import pytest

from limpet.base.bounds.members import RELAY_TINY_PACKETS_PER_S
from limpet.relay.stream.codec import HEADER_BYTES, Control, encode_frame
from limpet.relay.stream.session import TlsSession, rest_after

_RECORD_BYTES = 16 << 10


class FullConnection:
    """As TLS has it: each reading gives one record, until all were read."""

    def __init__(self, records: list[bytes]) -> None:
        self._records = records
        self._readable, self._other = socket.socketpair()
        self._other.send(b"x")
        self._is_asked_again = False

    def fileno(self) -> int:
        return self._readable.fileno()

    def recv(self, _size: int) -> bytes:
        if not self._records:
            self._readable.recv(1)
            raise ssl.SSLWantReadError
        return self._records.pop(0)

    def send(self, _record: bytes) -> None:
        """Takes each record when it is asked again."""
        self._is_asked_again = not self._is_asked_again
        if self._is_asked_again:
            raise ssl.SSLWantWriteError

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
    ("packet", "records", "in_a_turn"),
    [(b"x" * 1400, 16, 8 * (_RECORD_BYTES // 1404)), (b"x", 2, _RECORD_BYTES // 5)],
)
def test_a_turn_has_some_records_of_large_packets_and_one_of_tiny_ones(
    packet: bytes, records: int, in_a_turn: int
) -> None:
    """Else a node that sends packets of a byte stops its relay for a fifth of a second each time,
    and others wait."""

    async def turns() -> list[int]:
        frame = encode_frame(1, packet)
        record = frame * (_RECORD_BYTES // len(frame))
        side = Side()
        connection = FullConnection([record] * records)
        session = TlsSession(cast(ssl.SSLSocket, connection), side)
        while sum(side.turns) < records * (_RECORD_BYTES // len(frame)):
            await asyncio.sleep(0)
        session.end("the test is over")
        return side.turns

    assert set(asyncio.run(turns())) == {in_a_turn}


@pytest.mark.parametrize("in_a_record", [1, _RECORD_BYTES // 5])
def test_who_sends_tiny_packets_is_read_more_seldom_also_while_it_is_written_to(
    in_a_record: int,
) -> None:
    """Else a node with 6 Mbit/s of them keeps its relay's processor busy."""
    packets = 2_000

    async def took_s() -> tuple[float, list[int]]:
        side = Side()
        record = encode_frame(1, b"x") * in_a_record
        connection = FullConnection([record] * max(3, packets // in_a_record))
        session = TlsSession(cast(ssl.SSLSocket, connection), side)
        began_s = time.monotonic()
        while sum(side.turns) < max(3 * in_a_record, packets):
            session.send_packet(1, b"y")
            await asyncio.sleep(0)
        session.end("the test is over")
        return time.monotonic() - began_s, side.turns

    passed_s, turns = asyncio.run(took_s())

    tiny = sum(turns[:-1]) * (1 - (HEADER_BYTES + 1) / 64)
    assert tiny <= passed_s * RELAY_TINY_PACKETS_PER_S.most


@pytest.mark.parametrize("size", [60, 96, 1400])
def test_who_sends_acknowledgements_only_is_read_at_once(size: int) -> None:
    records = 8 * (_RECORD_BYTES // (HEADER_BYTES + size))
    assert rest_after(records, records * (HEADER_BYTES + size)) == 0.0


def test_a_lone_keepalive_of_a_tunnel_is_no_burden() -> None:
    assert rest_after(1, HEADER_BYTES + 32) < 1e-4
