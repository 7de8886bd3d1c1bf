"""The frames between shim and agent."""

from __future__ import annotations

import os
import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.cni.frames import (
    ANSWER_HEADER_BYTES,
    MAX_REQUEST_BYTES,
    MAX_STDIN_BYTES,
    REQUEST_HEADER_BYTES,
    AdminCall,
    CniCall,
    FrameError,
    decode_answer_header,
    decode_request,
    encode_admin_call,
    encode_answer,
    request_length,
)
from tests.beds.traffic.shim_frames import cni_frame

raw = st.binary(max_size=20).map(lambda b: os.fsdecode(b.replace(b"\0", b"")))
names = raw.map(lambda name: "CNI_" + name.replace("=", "-"))
cni_calls = st.builds(CniCall, st.dictionaries(names, raw), st.binary(), st.integers(0, 255))
json_values = st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text()
admin_calls = st.builds(
    AdminCall,
    st.text(min_size=1),
    st.dictionaries(st.text().filter(lambda key: key != "verb"), json_values),
)


def decode(frame: bytes) -> CniCall | AdminCall:
    rest = frame[REQUEST_HEADER_BYTES:]
    assert request_length(frame[:REQUEST_HEADER_BYTES]) == len(rest)
    return decode_request(rest)


@given(cni_calls)
def test_a_cni_call_arrives_as_it_was_sent(call: CniCall) -> None:
    assert decode(cni_frame(call)) == call


@given(admin_calls)
def test_an_admin_call_arrives_as_it_was_sent(call: AdminCall) -> None:
    assert decode(encode_admin_call(call)) == call


@given(st.integers(0, 2**32 - 1), st.binary())
def test_an_answer_arrives_as_it_was_sent(exit_code: int, body: bytes) -> None:
    frame = encode_answer(exit_code, body)

    assert decode_answer_header(frame[:ANSWER_HEADER_BYTES]) == (exit_code, len(body))
    assert frame[ANSWER_HEADER_BYTES:] == body


def test_the_frame_is_laid_out_as_the_shim_writes_it() -> None:
    frame = cni_frame(CniCall({"CNI_COMMAND": "ADD", "CNI_ARGS": ""}, b"{}", 255))

    rest = b"C\xffCNI_COMMAND=ADD\0CNI_ARGS=\0\0{}"
    assert frame == b"LMP1" + struct.pack("<I", len(rest)) + rest
    assert decode_request(b"C\0\0{}") == CniCall({}, b"{}")


@given(st.binary())
def test_any_bytes_are_a_request_or_a_frame_error(data: bytes) -> None:
    for rest in (data, b"C\0" + data, b"A\0" + data, b"C\0CNI_A=" + data):
        with suppress(FrameError):
            decode_request(rest)


@given(st.binary(max_size=12))
def test_any_bytes_are_a_header_or_a_frame_error(header: bytes) -> None:
    for data in (header, (b"LMP1" + header)[:8], (b"LMP1" + header)[:12]):
        try:
            assert 2 <= request_length(data) <= MAX_REQUEST_BYTES - REQUEST_HEADER_BYTES
        except FrameError:
            assert (
                len(data) != 8
                or data[:4] != b"LMP1"
                or not 2 <= int.from_bytes(data[4:8], "little") <= MAX_REQUEST_BYTES - 8
            )
        try:
            decode_answer_header(data)
        except FrameError:
            assert len(data) != 12 or data[:4] != b"LMP1"


@pytest.mark.parametrize("length", [0, 1, MAX_REQUEST_BYTES - 7, 2**32 - 1])
def test_a_length_outside_the_limits_is_refused_before_anything_is_read(length: int) -> None:
    with pytest.raises(FrameError, match=str(length)):
        request_length(b"LMP1" + struct.pack("<I", length))


@pytest.mark.parametrize(
    "rest",
    [
        b"",
        b"C",
        b"X\0{}",
        b"C\0",
        b"C\0CNI_COMMAND=ADD",
        b"C\0CNI_COMMAND=ADD\0",
        b"C\0CNI_COMMAND\0\0",
        b"C\0PATH=/bin\0\0",
        b"A\0",
        b"A\0[]",
        b"A\0{}",
        b'A\0{"verb":5}',
        b"A\0" + b"[" * 100_000,
        b"C\0\0" + b" " * (MAX_STDIN_BYTES + 1),
    ],
)
def test_a_cut_off_foreign_or_oversized_request_is_refused(rest: bytes) -> None:
    with pytest.raises(FrameError):
        decode_request(rest)


def test_what_cannot_be_framed_is_refused() -> None:
    with pytest.raises(FrameError):
        encode_admin_call(AdminCall("put", {"text": "x" * MAX_REQUEST_BYTES}))
