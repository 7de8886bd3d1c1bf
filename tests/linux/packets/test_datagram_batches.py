"""Many datagrams in one system call, between two sockets on loopback."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limpet.linux.packets.datagram_batches import receive_batch, send_batch, takes_batches
from tests.effort import examples

DATA, PROBE = b"\x04\x00\x00\x00", b"Lmp\x01"
_LIMIT_S = 20

packets = st.builds(
    lambda head, size: head + bytes(size),
    st.sampled_from([DATA, DATA, DATA, PROBE, b""]),
    st.sampled_from([1, 28, 1400, 1400, 1400, 9000]),
)


@contextmanager
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other,
    ):
        for each in (one, other):
            each.bind(("127.0.0.1", 0))
            each.settimeout(_LIMIT_S)
            each.setsockopt(socket.SOL_SOCKET, 33, 8 << 20)  # SO_RCVBUFFORCE
        one.connect(other.getsockname())
        other.connect(one.getsockname())
        yield one, other


@settings(max_examples=examples(60))
@given(sent=st.lists(packets, min_size=1, max_size=90), together=st.booleans())
def test_packets_come_as_they_were_sent_and_only_tunnels_data_comes_together(
    sent: list[bytes], together: bool
) -> None:
    with connected() as (one, other):
        assert takes_batches(other)
        assert send_batch(one, sent, together=together) == 0
        got: list[bytes] = []
        while len(got) < len(sent):
            batch = receive_batch(other)
            assert len(batch) == 1 or all(packet.startswith(DATA) for packet in batch)
            got += batch
        assert got == sent


def test_a_run_of_equal_packets_takes_one_call() -> None:
    with connected() as (one, other):
        takes_batches(other)
        sent = [DATA + bytes(1400)] * 40 + [DATA + bytes(9)]
        assert send_batch(one, sent, together=True) == 0
        assert receive_batch(other) == sent


def test_a_receiver_that_takes_no_batches_gets_each_packet_by_itself() -> None:
    with connected() as (one, other):
        sent = [DATA + bytes([number]) + bytes(1400) for number in range(40)]
        assert send_batch(one, sent, together=True) == 0
        assert [other.recv(1 << 16) for _ in sent] == sent


def test_what_nobody_listens_for_is_counted_as_lost() -> None:
    with connected() as (one, other):
        one.setblocking(False)
        other.close()
        # The first one is refused by an ICMP error, which the next call is told of.
        assert send_batch(one, [b"one"], together=True) == 0
        assert send_batch(one, [DATA + bytes(60), DATA + bytes(60)], together=True) == 2
        with pytest.raises(OSError, match="Resource temporarily unavailable"):
            receive_batch(one)
