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
    GrantRank,
    Item,
    Listing,
    Message,
    NetworkRank,
    PresenceRank,
    Push,
    Want,
    body_bytes,
)
from limpet.cluster.seal import uid_of

nonces = st.binary(min_size=NONCE_BYTES, max_size=NONCE_BYTES)
marks = st.integers(0, 2**32 - 1)
numbers = st.integers(0, 2**64 - 1)
uids = st.binary(min_size=32, max_size=32).map(uid_of)
network_ranks = st.builds(NetworkRank, numbers, marks)
items = st.builds(
    Item,
    uids,
    st.builds(GrantRank, st.booleans(), numbers, marks),
    st.builds(PresenceRank, numbers, marks),
)
sealed = st.builds(Sealed, st.binary(max_size=300), st.binary(min_size=64, max_size=64))
digests = st.builds(
    Digest,
    nonces,
    network_ranks,
    st.lists(marks, min_size=BUCKETS, max_size=BUCKETS).map(tuple),
)
listings = st.builds(
    Listing,
    nonces,
    nonces,
    network_ranks,
    st.booleans(),
    st.frozensets(st.integers(0, BUCKETS - 1)),
    st.lists(items, max_size=30).map(tuple),
)
wants = st.builds(Want, nonces, st.booleans(), st.lists(uids, max_size=70).map(tuple))
pushes = st.builds(
    Push,
    st.lists(st.tuples(sealed, st.none() | sealed), max_size=64).map(tuple),
    st.none() | sealed,
)

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
        assert found.pairs == message.pairs[: len(found.pairs)]
    else:
        assert encode(found) == cut


def test_a_push_of_very_many_nodes_is_refused() -> None:
    small = Sealed(b"{}", bytes(64))
    with pytest.raises(MessageError, match="more than 64"):
        parse_push(encode(Push(tuple((small, None) for _ in range(65)))))


def test_a_document_that_fits_no_datagram_is_refused() -> None:
    with pytest.raises(ValueError, match="70000 bytes"):
        encode(Push(((Sealed(bytes(70_000), bytes(64)), None),)))


def test_a_digest_fits_a_packet_that_no_path_fragments() -> None:
    assert body_bytes(Digest(bytes(8), NetworkRank(0, 0), (0,) * BUCKETS)) <= GOOD_BODY_BYTES
