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
    delete_elements,
    parse_elements,
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
