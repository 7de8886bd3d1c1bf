"""Bodies of the neighbour exchange."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.cluster.documents import Sealed
from limpet.cluster.exchange.codec import (
    MessageError,
    encode,
    parse_digest,
    parse_listing,
    parse_push,
    parse_want,
)
from limpet.cluster.exchange.messages import (
    BUCKETS,
    GOOD_BODY_BYTES,
    NONCE_BYTES,
    Digest,
    Item,
    Listing,
    Message,
    Push,
    Want,
    body_bytes,
)

nonces = st.binary(min_size=NONCE_BYTES, max_size=NONCE_BYTES)
digests32 = st.integers(0, 2**32 - 1)
marks = st.integers(0, 2**64 - 1)
items = st.builds(Item, marks, marks, digests32)
kinds = st.text("abcdefghijklmnopqrstuvwxyz", max_size=12)
signatures = st.binary(min_size=64, max_size=64)
sealed = st.builds(Sealed, kinds, st.binary(max_size=300), signatures)
digests = st.builds(
    Digest, nonces, st.lists(digests32, min_size=BUCKETS, max_size=BUCKETS).map(tuple)
)
listings = st.builds(
    Listing,
    nonces,
    nonces,
    st.booleans(),
    st.frozensets(st.integers(0, BUCKETS - 1)),
    st.lists(items, max_size=30).map(tuple),
)
wants = st.builds(Want, nonces, st.lists(marks, max_size=70).map(tuple))
pushes = st.builds(Push, st.lists(sealed, max_size=64).map(tuple))

Parser = Callable[[bytes], Message]
PARSERS: dict[type[Message], Parser] = {
    Digest: parse_digest,
    Listing: parse_listing,
    Want: parse_want,
    Push: parse_push,
}


@given(digests | listings | wants | pushes)
def test_a_message_arrives_as_it_was_sent_and_is_as_large_as_was_reckoned(message: Message) -> None:
    body = encode(message)
    assert PARSERS[type(message)](body) == message
    assert len(body) == body_bytes(message)


@given(st.binary(max_size=1200), st.sampled_from(list(PARSERS.values())))
def test_any_bytes_are_a_message_or_refused_in_words(body: bytes, parse: Parser) -> None:
    try:
        message = parse(body)
    except MessageError:
        return
    assert parse(encode(message)) == message


@given(digests | listings | wants | pushes, st.data())
def test_a_message_cut_short_never_gives_another_documents_bytes(
    message: Message, data: st.DataObject
) -> None:
    body = encode(message)
    cut = body[: data.draw(st.integers(0, max(0, len(body) - 1)))]
    try:
        found = PARSERS[type(message)](cut)
    except MessageError:
        return
    if isinstance(found, Push) and isinstance(message, Push):
        assert found.documents == message.documents[: len(found.documents)]
    else:
        assert encode(found) == cut


def test_a_push_of_very_many_documents_is_refused() -> None:
    small = Sealed("toy", b"{}", bytes(64))
    with pytest.raises(MessageError, match="more than 128"):
        parse_push(encode(Push((small,) * 129)))


def test_a_document_that_fits_no_datagram_is_refused() -> None:
    with pytest.raises(ValueError, match="70000 bytes"):
        encode(Push((Sealed("toy", bytes(70_000), bytes(64)),)))


def test_a_digest_fits_a_packet_that_no_path_fragments() -> None:
    assert body_bytes(Digest(bytes(8), (0,) * BUCKETS)) <= GOOD_BODY_BYTES
