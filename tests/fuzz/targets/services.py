"""Services as a node keeps them, and what the kernel says of those that it serves."""

from __future__ import annotations

from collections.abc import Iterator

from limpet.services.catalog import Catalog
from limpet.services.kept import decode_change, encode_gone, encode_item, encode_items, read_items
from limpet.services.kept_here import as_of, decode_here, encode_here
from limpet.services.rotation import Here
from limpet.services.values import Endpoint, EndpointPort, EndpointSlice, Service, ServicePort
from tests.fuzz.target import Shape, fuzzed

_WEB = Service(
    "shop", "web", cluster_ips=("10.96.0.7",), ports=(ServicePort("http", "TCP", 80, 30080),)
)
_ENDS = EndpointSlice(
    *("shop", "web-1", "web", 4),
    (EndpointPort("http", "TCP", 8080),),
    (Endpoint("10.244.1.5", node="edge-1", zone="east", for_zones=("east",)),),
)


@fuzzed(
    seeds=lambda: [encode_items([_WEB, _ENDS]), encode_items([])],
    errors=(ValueError,),
    shape=Shape.JSON_LINES,
    most_bytes=16_384,
)
def kept_services(data: bytes) -> None:
    items, _ = read_items(data)
    assert read_items(encode_items(items)) == (items, "")
    catalog = Catalog()
    for each in items:
        catalog.put(each)


def _changes() -> Iterator[bytes]:
    for each in (_WEB, _ENDS):
        yield encode_item(each)
        yield encode_gone(type(each), each.key)


@fuzzed(seeds=_changes, errors=(ValueError,), shape=Shape.JSON)
def change_of_services(data: bytes) -> None:
    decode_change(data).apply(Catalog())


_HERE = Here("edge-1", "east", frozenset({"edge-2"}), frozenset({"10.244.1.7"}), {"edge-2": 3})


@fuzzed(seeds=lambda: [encode_here(_HERE, 5.0)], errors=(ValueError,), shape=Shape.JSON)
def kept_whereabouts(data: bytes) -> None:
    here, at_s = decode_here(data)
    as_of(here, at_s, 10.0)
    assert decode_here(encode_here(here, at_s)) == (here, at_s)
