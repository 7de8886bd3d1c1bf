"""Frames in a relay's TLS connection: any split gives the same, any bytes frames or an error."""

from __future__ import annotations

import base64
import itertools
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.relay.messages import Refusal
from limpet.relay.stream.codec import (
    CONTROL,
    HEADER_BYTES,
    MAX_CHANNEL,
    MAX_PACKET_BYTES,
    Close,
    Control,
    Frame,
    FrameParser,
    Open,
    Opened,
    Ping,
    Pong,
    Refused,
    StreamError,
    Wanted,
    encode_control,
    encode_frame,
    parse_control,
)

_uids = st.binary(min_size=15, max_size=15).map(lambda raw: base64.b32encode(raw).decode().lower())
_channels = st.integers(1, MAX_CHANNEL)
_frames = st.lists(
    st.tuples(st.integers(0, MAX_CHANNEL), st.binary(min_size=1, max_size=200)), max_size=8
)


def _controls() -> st.SearchStrategy[Control]:
    return st.one_of(
        st.builds(Open, _channels, _uids),
        st.builds(Opened, _channels),
        st.builds(Refused, _channels, st.sampled_from(Refusal)),
        st.builds(Close, _channels),
        st.builds(Wanted, _uids),
        st.builds(Ping),
        st.builds(Pong),
    )


def _fed(parts: list[bytes]) -> list[Frame]:
    parser = FrameParser()
    return [frame for part in parts for frame in parser.feed(part)]


@given(frames=_frames, cuts=st.lists(st.integers(0, 2000), max_size=10))
def test_any_split_of_the_bytes_gives_the_same_frames(frames: list[Frame], cuts: list[int]) -> None:
    data = b"".join(encode_frame(*frame) for frame in frames)
    places = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    parts = [data[start:stop] for start, stop in itertools.pairwise(places)]

    assert _fed(parts) == frames
    assert _fed([data[at : at + 1] for at in range(len(data))]) == frames


@given(parts=st.lists(st.binary(max_size=400), max_size=10))
def test_any_bytes_give_frames_or_one_clear_error_and_are_not_kept(parts: list[bytes]) -> None:
    parser = FrameParser()
    with suppress(StreamError):
        for part in parts:
            for channel, body in parser.feed(part):
                assert 0 < len(body) <= MAX_PACKET_BYTES
                assert 0 <= channel <= MAX_CHANNEL
            assert len(parser._rest) < HEADER_BYTES + MAX_PACKET_BYTES


def test_a_frame_that_never_ends_is_refused_before_it_is_waited_for() -> None:
    with pytest.raises(StreamError, match="9217 bytes instead of 1 to 9216"):
        FrameParser().feed(b"\x24\x01\x00\x01")


def test_an_empty_frame_is_refused() -> None:
    with pytest.raises(StreamError, match="0 bytes"):
        FrameParser().feed(bytes(HEADER_BYTES))


def test_the_largest_packet_passes() -> None:
    packet = bytes(MAX_PACKET_BYTES)
    assert _fed([encode_frame(7, packet)]) == [(7, packet)]


@given(_controls())
def test_control_is_read_as_it_was_written(message: Control) -> None:
    ((channel, body),) = _fed([encode_control(message)])
    assert channel == CONTROL
    assert parse_control(body) == message


@given(st.binary(max_size=40))
def test_any_bytes_are_control_that_is_written_the_same_or_an_error(body: bytes) -> None:
    with suppress(StreamError):
        assert encode_control(parse_control(body))[HEADER_BYTES:] == body


@pytest.mark.parametrize(
    "message", [Open(0, "a" * 24), Opened(0), Close(0), Refused(0, Refusal.FULL), Open(1, "a" * 16)]
)
def test_what_no_parser_takes_is_not_written(message: Control) -> None:
    with pytest.raises(ValueError, match=r"channel 0|no uid"):
        encode_control(message)
