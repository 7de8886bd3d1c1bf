"""What a node keeps of Services: read back as it was, or not at all."""

from __future__ import annotations

import pytest

from limpet.services.catalog import Item
from limpet.services.kept import decode_items, encode_items
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
    assert decode_items(encode_items(ITEMS[:count])) == ITEMS[:count]


def test_a_file_that_was_cut_anywhere_is_refused() -> None:
    whole = encode_items(ITEMS)

    for length in range(len(whole)):
        with pytest.raises(ValueError, match="end"):
            decode_items(whole[:length])


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="no Service"):
        decode_items(b'{"a": 1}\n["end",1]\n')
