"""Datagrams between nodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.cluster.datagrams.peer_datagram import (
    MAX_BODY_BYTES,
    OVERHEAD_BYTES,
    Codec,
    DatagramError,
    DropReason,
)
from limpet.cluster.exchange.messages import GOOD_BODY_BYTES
from limpet.cluster.keys import public_key_of, uid_of
from tests.unit.cluster_values import PINNED, node_key

ONE, TWO = Codec(node_key(1), PINNED), Codec(node_key(2), PINNED)
UID_ONE, UID_TWO, UID_THREE = (uid_of(public_key_of(node_key(n))) for n in (1, 2, 3))


def dropped(codec: Codec, data: bytes) -> DropReason | None:
    try:
        codec.parse(data).check()
    except DatagramError as error:
        return error.drop
    return None


@given(st.integers(0, 255), st.binary(max_size=2000), st.booleans())
def test_a_datagram_arrives_as_it_was_sent(kind: int, body: bytes, to_anybody: bool) -> None:
    data = ONE.encode(kind, body, to_uid="" if to_anybody else UID_TWO)
    found = TWO.parse(data)
    found.check()
    assert (found.kind, found.body, found.uid, found.to_anybody) == (
        kind,
        body,
        UID_ONE,
        to_anybody,
    )
    assert len(data) == OVERHEAD_BYTES + len(body)


@given(st.data())
def test_no_changed_bit_is_accepted(data: st.DataObject) -> None:
    whole = bytearray(ONE.encode(1, b"body", to_uid=UID_TWO))
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert dropped(TWO, bytes(whole)) is not None


@given(st.binary(max_size=300), st.integers(0, OVERHEAD_BYTES + 3))
def test_bytes_that_are_no_datagram_are_dropped(junk: bytes, kept: int) -> None:
    assert dropped(TWO, junk) is not None
    assert dropped(TWO, ONE.encode(1, b"body")[:kept]) is not None


def test_what_is_for_another_or_of_another_cluster_or_our_own_is_told_apart() -> None:
    stranger = Codec(node_key(1), public_key_of(node_key(50)))
    assert dropped(TWO, stranger.encode(1, b"")) is DropReason.FOREIGN
    assert dropped(TWO, ONE.encode(1, b"", to_uid=UID_THREE)) is DropReason.NOT_FOR_US
    assert dropped(TWO, TWO.encode(1, b"")) is DropReason.OWN
    assert dropped(TWO, ONE.encode(1, b"")[:50]) is DropReason.MALFORMED
    assert dropped(TWO, ONE.encode(1, b"") + bytes(MAX_BODY_BYTES + 1)) is DropReason.TOO_BIG


def test_nobody_signs_for_another() -> None:
    data = ONE.encode(1, b"body")
    key_two = public_key_of(node_key(2))
    three = Codec(node_key(3), PINNED)
    forged = data[:13] + key_two + data[45:]
    assert dropped(three, forged) is DropReason.BAD_SIGNATURE


def test_a_body_that_no_datagram_holds_is_refused() -> None:
    assert len(ONE.encode(1, bytes(MAX_BODY_BYTES))) < 65_507 - 100
    with pytest.raises(DatagramError, match="60001"):
        ONE.encode(1, bytes(MAX_BODY_BYTES + 1))


@pytest.mark.parametrize("uid", ["x", "!" * 24, "a" * 32])
def test_what_is_no_uid_is_refused(uid: str) -> None:
    with pytest.raises(ValueError, match="no uid"):
        ONE.encode(1, b"", to_uid=uid)


def test_a_good_body_fits_the_smallest_packet_of_ipv6() -> None:
    assert GOOD_BODY_BYTES + OVERHEAD_BYTES + 40 + 8 == 1280
