"""Elements of maps, as the kernel is told of them and tells of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from limpet.linux.netlink import codec
from limpet.linux.netlink.codec import Message, Request
from limpet.linux.netlink.set_codec import (
    GOTO,
    JUMP,
    add_elements,
    add_keys,
    add_ranges,
    delete_elements,
    delete_ranges,
    parse_elements,
    split_elements,
)

keys = st.integers(1, 10).flatmap(lambda words: st.binary(min_size=4 * words, max_size=4 * words))
plain_values = st.integers(1, 5).flatmap(
    lambda words: st.binary(min_size=4 * words, max_size=4 * words)
)
verdicts = st.builds(
    lambda word, name: word + name.encode(),
    st.sampled_from((GOTO, JUMP)),
    st.from_regex(r"[a-z_0-9]{1,30}", fullmatch=True),
)
values = plain_values.filter(lambda each: each[:5] not in (GOTO, JUMP)) | verdicts


def heard(request: Request) -> Message:
    """As the kernel would send it back."""
    frame = codec.frame(request, 1, ack=False)
    (message,) = codec.parse_messages(frame)
    return message


@given(st.dictionaries(keys, values, max_size=600))
def test_elements_come_back_as_they_were_whatever_stands_beside_them(
    elements: dict[bytes, bytes],
) -> None:
    requests = list(add_elements("t", "m", elements.items()))
    found = [each for request in requests for each in parse_elements(heard(request))]
    assert found == list(elements.items())
    assert all(len(request.body) < 1 << 16 for request in requests)


@given(st.lists(st.binary(min_size=8, max_size=8), unique=True, max_size=600), st.booleans())
def test_elements_that_are_alike_are_read_as_those_that_are_not(
    found: list[bytes], with_another: bool
) -> None:
    elements = [(each, each[:4] + b"\0\0\0\0") for each in found]
    more = [(b"another key of it ...", b"goto elsewhere")] if with_another else []
    more = [(key + b"\0" * (-len(key) % 4), value) for key, value in more]
    requests = add_elements("t", "m", [*elements, *more])
    told = [each for request in requests for each in parse_elements(heard(request))]
    assert told == [*elements, *more]


@given(st.lists(keys, max_size=600))
def test_keys_alone_are_no_elements_of_a_map(found: list[bytes]) -> None:
    requests = list(delete_elements("t", "m", found))
    assert [each for request in requests for each in parse_elements(heard(request))] == []
    assert len(requests) == -(-len(found) // 256)


def test_ranges_of_a_set_are_told_as_nft_tells_them() -> None:
    """Golden: what nft 1.0.6 sends for `add element inet t s { 7.0.0.0/8 }`, but for the padding of
    its strings, and the number that it gives each element of the list in place of a type."""
    (request,) = add_ranges("t", "s", [(bytes([7, 0, 0, 0]), bytes([8, 0, 0, 0]))])
    assert request.type == 2572
    assert request.body.hex(" ", 4) == (
        "01000000 06000100 74000000 06000200 73000000 2c000380 "
        "10000180 0c000180 08000100 07000000 "
        "18000180 08000300 00000001 0c000180 08000100 08000000"
    )
    (request,) = delete_ranges("t", "s", [(bytes([255, 0, 0, 0]), None)])
    assert request.type == 2574
    assert request.body.hex(" ", 4).endswith(
        "73000000 14000380 10000180 0c000180 08000100 ff000000"
    )


@given(st.lists(st.binary(min_size=16, max_size=16), unique=True, max_size=600))
def test_keys_of_a_set_are_split_as_they_were_told(found: list[bytes]) -> None:
    requests = list(add_keys("t", "s", found))
    told = [each for request in requests for each in split_elements(heard(request))]
    assert [each[-16:] for each in told] == found
    assert len({len(each) for each in told}) <= 1
