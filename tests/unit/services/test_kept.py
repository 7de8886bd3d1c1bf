"""What a node keeps of Services: read back as it was, or not at all."""

from __future__ import annotations

import pytest

from limpet.base.records.version import NewerFormatError
from limpet.services.catalog import Item
from limpet.services.kept import (
    LOST,
    encode_end,
    encode_items,
    encode_lines,
    read_items,
    says_part,
    split_items,
)
from limpet.services.values import (
    Endpoint,
    EndpointPort,
    EndpointSlice,
    Exposure,
    Service,
    ServicePort,
)

ITEMS: list[Item] = [
    Service(
        "default",
        "web",
        cluster_ips=("10.96.0.10",),
        ports=(ServicePort("http", "TCP", 80, 30080),),
        exposure=Exposure(external_ips=("192.0.2.1",)),
    ),
    EndpointSlice(
        "default",
        "web-1",
        "web",
        4,
        (EndpointPort("http", "TCP", 8080),),
        (Endpoint("10.1.0.2", hostname='"\n'), Endpoint("10.1.0.3", 0)),
    ),
]


@pytest.mark.parametrize("count", [0, 1, 2])
def test_what_was_written_is_read_back(count: int) -> None:
    assert read_items(encode_items(ITEMS[:count])) == (ITEMS[:count], "")


def test_a_file_that_was_cut_anywhere_is_told_from_a_whole_one() -> None:
    whole = encode_items(ITEMS)

    for length in range(len(whole)):
        assert "end" in read_items(whole[:length])[1]
        with pytest.raises(ValueError, match="end"):
            split_items(whole[:length])


def test_of_a_damaged_file_each_line_that_can_be_read_counts() -> None:
    whole = encode_items(ITEMS)
    first, second, end = whole.splitlines(keepends=True)

    assert read_items(whole) == (ITEMS, "")
    assert read_items(first + second) == (ITEMS, "it has no end")
    assert read_items(second + end) == (ITEMS[1:], "it has another end")
    items, damage = read_items(bytes(len(first) - 1) + b"\n" + second + end)
    assert items == ITEMS[1:]
    assert damage.startswith("no Service and no EndpointSlice")
    assert read_items(b"") == ([], "it has no end")
    with pytest.raises(NewerFormatError):
        read_items(first + b'{"end":1,"version":2}\n')


def test_a_file_says_of_itself_that_others_were_lost() -> None:
    part = encode_lines(ITEMS) + encode_end(len(ITEMS), is_part=True)

    assert says_part(part)
    assert not says_part(encode_items(ITEMS))
    assert read_items(part) == (ITEMS, LOST)
    assert read_items(part[:-2]) == (ITEMS, "it has no end")
    _, damage = read_items(bytes(20) + b"\n" + part.replace(b'"end":2', b'"end":3'))
    assert damage.startswith("no Service and no EndpointSlice")


def test_words_that_come_again_are_one_text_in_memory() -> None:
    """As in what was heard: there may be 10,000 Services with 50,000 endpoints."""
    ports = (EndpointPort("http-of-it", "TCP", 8080),)
    ends = tuple(Endpoint(f"10.1.0.{n}", node="crane-1", zone="hall-1") for n in (1, 2))
    pieces = [EndpointSlice("shop-1", f"web-{n}", "web-of-it", 4, ports, ends) for n in (1, 2)]
    (one, other), _ = read_items(encode_items(pieces))
    assert [one, other] == pieces
    assert isinstance(one, EndpointSlice)
    assert isinstance(other, EndpointSlice)
    assert one.namespace is other.namespace
    assert one.service is other.service
    assert one.ports[0].name is other.ports[0].name
    assert len({id(each.node) for each in (*one.endpoints, *other.endpoints)}) == 1
    assert len({id(each.zone) for each in (*one.endpoints, *other.endpoints)}) == 1
