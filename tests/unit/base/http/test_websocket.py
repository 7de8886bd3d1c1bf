"""Frames of WebSockets at a client's side."""

from __future__ import annotations

import contextlib
import itertools
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.base.http.websocket import (
    MessageReader,
    Opcode,
    WebSocketMessage,
    accept_of,
    encode_frame,
)


def served(opcode: int, body: bytes, *, final: bool = True) -> bytes:
    """A frame as servers send it: nothing is masked."""
    size = len(body)
    if size < 126:
        length = bytes([size])
    elif size < 1 << 16:
        length = bytes([126]) + size.to_bytes(2, "big")
    else:
        length = bytes([127]) + size.to_bytes(8, "big")
    return bytes([(0x80 if final else 0) | opcode]) + length + body


def test_the_answer_to_a_key_is_that_of_the_specification() -> None:
    assert accept_of("dGhlIHNhbXBsZSBub25jZQ==") == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


def test_a_masked_frame_is_that_of_the_specification() -> None:
    """Source: RFC 6455, section 5.7."""
    frame = encode_frame(Opcode.TEXT, b"Hello", bytes.fromhex("37fa213d"))

    assert frame == bytes.fromhex("818537fa213d7f9f4d5158")


@given(
    bodies=st.lists(
        st.one_of(st.binary(max_size=200), st.integers(100, 70_000).map(bytes)), max_size=4
    ),
    parts=st.integers(1, 4),
    cuts=st.lists(st.integers(1, 4000), min_size=1, max_size=10),
)
def test_messages_come_out_whole_however_they_are_cut(
    bodies: list[bytes], parts: int, cuts: list[int]
) -> None:
    stream = b""
    expected = []
    for body in bodies:
        step = len(body) // parts + 1
        pieces = [body[at : at + step] for at in range(0, max(len(body), 1), step)]
        for at, piece in enumerate(pieces):
            opcode = Opcode.CONTINUATION if at else Opcode.BINARY
            stream += served(opcode, piece, final=at == len(pieces) - 1)
            stream += served(Opcode.PING, b"?")  # may come between parts
            expected.append(WebSocketMessage(Opcode.PING, b"?"))
        expected.insert(len(expected) - 1, WebSocketMessage(Opcode.BINARY, body))
    reader = MessageReader(most_bytes=1 << 20)

    found: list[WebSocketMessage] = []
    steps = itertools.cycle(cuts)
    while stream:
        cut = next(steps)
        found += reader.take(stream[:cut])
        stream = stream[cut:]

    assert found == expected


@pytest.mark.parametrize(
    ("stream", "said"),
    [
        (served(0x3, b""), "3 is not a valid"),
        (bytes([0x82, 0x81]) + bytes(5), "no server sets"),
        (bytes([0xC2, 0x00]), "no server sets"),
        (served(Opcode.CONTINUATION, b"x"), "missing"),
        (served(Opcode.BINARY, b"x", final=False) + served(Opcode.BINARY, b"x"), "missing"),
        (served(Opcode.PING, bytes(126)), "too large"),
        (served(Opcode.CLOSE, b"", final=False), "in parts"),
        (served(Opcode.BINARY, bytes(1025))[:4], "larger than 1 KiB"),
        (served(Opcode.BINARY, bytes(600), final=False) + served(0, bytes(600)), "larger"),
    ],
)
def test_what_no_server_sends_is_refused_in_words(stream: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        list(MessageReader(most_bytes=1 << 10).take(stream))


@given(st.binary(max_size=300))
def test_garbage_is_messages_or_refused(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        for message in MessageReader(most_bytes=1 << 10).take(data):
            assert len(message.body) <= 1 << 10


def test_parts_of_nothing_take_no_memory() -> None:
    reader = MessageReader(most_bytes=4096)
    list(reader.take(b"\x02\x01a"))
    tracemalloc.start()
    try:
        for _ in range(10):
            list(reader.take(b"\x00\x00" * 10_000))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert held < 20_000
    assert list(reader.take(b"\x80\x01b")) == [WebSocketMessage(Opcode.BINARY, b"ab")]
