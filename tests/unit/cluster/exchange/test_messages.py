"""Messages of the neighbour exchange as bytes."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.cluster.documents import Sealed
from limpet.cluster.exchange.messages import (
    BUCKET_BYTES,
    BUCKETS,
    GOOD_BODY_BYTES,
    ITEM_BYTES,
    LISTING_BYTES,
    NONCE_BYTES,
    SUM_BYTES,
    Digest,
    Item,
    Listing,
    Message,
    MessageError,
    Push,
    Want,
    decode,
    encode,
)

nonces = st.binary(min_size=NONCE_BYTES, max_size=NONCE_BYTES)
digests32 = st.integers(0, 2**32 - 1)
marks = st.integers(0, 2**64 - 1)
items = st.builds(Item, marks, marks, digests32)
kinds = st.text("abcdefghijklmnopqrstuvwxyz", max_size=12)
signatures = st.binary(min_size=64, max_size=64)
sealed = st.builds(Sealed, kinds, st.binary(max_size=300), signatures)
sums = st.binary(min_size=SUM_BYTES * BUCKETS, max_size=SUM_BYTES * BUCKETS)
digests = st.builds(Digest, nonces, sums)
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


@given(digests | listings | wants | pushes)
def test_a_message_arrives_as_it_was_sent(message: Message) -> None:
    assert decode(encode(message)) == message


@given(listings)
def test_a_listing_is_no_larger_than_was_reckoned(listing: Listing) -> None:
    most = LISTING_BYTES + BUCKET_BYTES * len(listing.buckets) + ITEM_BYTES * len(listing.items)
    assert len(encode(listing)) <= most


@given(st.binary(max_size=1200))
def test_any_bytes_are_a_message_or_refused_in_words(body: bytes) -> None:
    try:
        message = decode(body)
    except MessageError:
        return
    assert decode(encode(message)) == message


@given(digests | listings | wants | pushes, st.data())
def test_a_message_cut_short_is_none(message: Message, data: st.DataObject) -> None:
    body = encode(message)
    with pytest.raises(MessageError):
        decode(body[: data.draw(st.integers(0, len(body) - 1))])


@pytest.mark.parametrize(
    "wrong",
    [
        Push((Sealed("toy", b"{}", bytes(64)),) * 129),
        Digest(bytes(7), bytes(SUM_BYTES * BUCKETS)),
        Digest(bytes(8), bytes(SUM_BYTES * BUCKETS - 1)),
        Listing(bytes(8), bytes(8), False, frozenset({BUCKETS}), ()),
        Listing(bytes(8), bytes(8), False, frozenset(), (Item(1, -1, 1),)),
        Listing(bytes(8), bytes(8), False, frozenset(), (Item(1, 1, 1),) * 4097),
        Want(bytes(8), (-1,)),
        Want(bytes(8), (1,) * 129),
    ],
)
def test_a_message_that_exceeds_its_bounds_is_refused(wrong: Message) -> None:
    with pytest.raises(MessageError, match="Expected"):
        decode(encode(wrong))


def test_a_message_that_is_nested_without_end_is_refused() -> None:
    with pytest.raises(MessageError):
        decode(b"\x92\xa4push" + b"\x91" * 50_000 + b"\xc0")


def test_of_a_message_that_has_more_than_we_know_that_is_left_out_however_nested() -> None:
    # Before 3.14 Python goes a thousand deep, since then as deep as the stack is.
    with contextlib.suppress(MessageError):
        assert decode(b"\x93\xa4push\x90" + b"\x91" * 50_000 + b"\xc0") == Push(())
    assert decode(b"\x93\xa4push\x90" + b"\x91" * 50 + b"\xc0") == Push(())


def test_a_digest_fits_a_packet_that_no_path_fragments() -> None:
    assert len(encode(Digest(bytes(8), bytes(SUM_BYTES * BUCKETS)))) <= GOOD_BODY_BYTES
