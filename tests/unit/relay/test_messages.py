"""What nodes and relays say to each other, as bytes."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.base.addresses import Address
from limpet.cluster.datagrams.peer_datagram import BodyKind, DatagramError, DropReason
from limpet.relay.messages import (
    KIND_OF,
    AskPair,
    Bound,
    Check,
    FreePair,
    Hello,
    Pair,
    Refusal,
    RelayMessage,
    Seen,
    Token,
    encode,
    parse,
)


def _plain(address: Address) -> bool:
    return address.version == 4 or address.ipv4_mapped is None


nonces = st.binary(min_size=8, max_size=8)
tokens = st.binary(min_size=16, max_size=16).filter(any)  # zeros say that there is none
ports = st.integers(1, 0xFFFF)
shorts = st.integers(0, 0xFFFF)
uids = st.binary(min_size=15, max_size=15).map(lambda raw: base64.b32encode(raw).decode().lower())
endpoints = st.tuples(st.ip_addresses(v=4) | st.ip_addresses(v=6).filter(_plain), ports)
refusals = st.sampled_from([each for each in Refusal if each is not Refusal.NONE])
messages: st.SearchStrategy[RelayMessage] = st.one_of(
    st.builds(Hello, nonces),
    st.builds(Seen, nonces, endpoints, shorts),
    st.builds(AskPair, nonces, uids),
    st.builds(Pair, nonces, uids, ports, st.just(Refusal.NONE), shorts, st.integers(0, 0xFFFFFFFF)),
    st.builds(Pair, nonces, uids, st.just(0), refusals),
    st.builds(Check, nonces, ports, st.just(b"") | tokens),
    st.builds(Token, nonces, ports, tokens),
    st.builds(Bound, nonces, ports, endpoints),
    st.builds(FreePair, nonces, uids),
)
relay_kinds = st.sampled_from(sorted(KIND_OF.values()))


@given(messages)
def test_a_message_comes_back_as_it_was(message: RelayMessage) -> None:
    assert parse(KIND_OF[type(message)], encode(message)) == message


@given(relay_kinds, st.binary(max_size=64))
def test_any_body_is_a_message_that_encodes_to_it_or_is_malformed(
    kind: BodyKind, body: bytes
) -> None:
    drop = None
    try:
        message = parse(kind, body)
    except DatagramError as error:
        drop = error.drop
    else:
        assert KIND_OF[type(message)] is kind
        assert encode(message) == body
    assert drop in (None, DropReason.MALFORMED)


@given(messages, st.data())
def test_a_message_that_is_cut_short_or_goes_on_is_malformed(
    message: RelayMessage, data: st.DataObject
) -> None:
    kind, body = KIND_OF[type(message)], encode(message)
    cut = body[: data.draw(st.integers(0, len(body) - 1))]
    longer = body + data.draw(st.binary(min_size=1, max_size=8))
    for other in (cut, longer):
        with pytest.raises(DatagramError):
            parse(kind, other)


@pytest.mark.parametrize(
    ("kind", "body", "words"),
    [
        (BodyKind.RELAY_PAIR, bytes(8 + 15 + 2 + 1 + 2 + 4), "port 0 with the refusal 0"),
        (
            BodyKind.RELAY_PAIR,
            bytes(8 + 15) + b"\0\7\3" + bytes(6),
            "port 7 with the refusal 3",
        ),
        (BodyKind.RELAY_PAIR, bytes(8 + 15 + 2) + b"\x63" + bytes(6), "99 is not a valid Refusal"),
        (BodyKind.RELAY_CHECK, bytes(8 + 2 + 16), "a port is missing"),
        (BodyKind.PROBE, bytes(8), "kind 16 is nothing of relays"),
    ],
)
def test_what_makes_no_sense_is_malformed(kind: BodyKind, body: bytes, words: str) -> None:
    with pytest.raises(DatagramError, match=words):
        parse(kind, body)
