"""Requests to take a tunnel anew are what they say, and nothing else is one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.cluster.datagrams.peer_datagram import DatagramError
from limpet.datapath.tunnel.handshake_reset import TOKEN_BYTES, Step, encode, parse


@given(st.sampled_from(Step), st.binary(min_size=TOKEN_BYTES, max_size=TOKEN_BYTES))
def test_what_was_encoded_is_read_again(step: Step, token: bytes) -> None:
    assert parse(encode(step, token)) == (step, token)


@given(st.binary(max_size=12))
def test_any_bytes_are_a_request_or_malformed(body: bytes) -> None:
    try:
        step, token = parse(body)
    except DatagramError:
        assert len(body) != 1 + TOKEN_BYTES or body[0] not in (1, 2, 3)
    else:
        assert encode(step, token) == body


def test_a_token_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="a token of 3 bytes"):
        encode(Step.ASK, b"abc")
