"""Reflections: what strangers are told, and that it is of no use to who forges a source."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

from hypothesis import given
from hypothesis import strategies as st

from limpet.base.addresses import Address
from limpet.cluster.datagrams.reflection import (
    QUESTION_BYTES,
    AddressReflector,
    encode_answer,
    encode_question,
    is_question,
    parse_answer,
)

NONCE = bytes(range(16))
addresses = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6))


@given(address=addresses, port=st.integers(1, 65535), size=st.integers(QUESTION_BYTES, 1472))
def test_the_asker_learns_where_it_was_seen_and_what_size_came(
    address: Address, port: int, size: int
) -> None:
    question = encode_question(NONCE, size)

    found = parse_answer(encode_answer(question, (address, port)))

    plain = getattr(address, "ipv4_mapped", None) or address
    assert is_question(question)
    assert len(question) == size
    assert (found.nonce, found.question_bytes, found.seen_as) == (NONCE, size, (plain, port))


@given(data=st.binary(max_size=200), address=addresses)
def test_no_answer_is_as_long_as_its_question(data: bytes, address: Address) -> None:
    for asked in (data, encode_question(NONCE)[: len(data)], encode_question(NONCE) + data):
        answer = AddressReflector().answer(asked, (address, 7471), 0.0)
        assert answer is None or len(answer) < len(asked)
        if answer is not None:
            assert AddressReflector().answer(answer, (address, 7471), 0.0) is None, (
                "two would play ball"
            )


def test_who_has_a_64_counts_as_one_and_others_are_not_held_up() -> None:
    reflector = AddressReflector()
    question = encode_question(NONCE)
    one = [IPv6Address(f"2001:db8:1:1::{number:x}") for number in range(1, 400)]

    answered = [each for each in one if reflector.answer(question, (each, 1), 0.0)]

    assert len(answered) == 200
    assert reflector.answer(question, (ip_address("2001:db8:1:2::1"), 1), 0.0)
    assert reflector.answer(question, (IPv4Address("192.0.2.1"), 1), 0.0)
