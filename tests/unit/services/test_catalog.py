"""A catalog that is changed object by object is the one that is made of what is left."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from limpet.services.catalog import Catalog, left_out_in_words
from limpet.services.values import NONE, Endpoint, EndpointSlice, Service, ServicePort

NAMES = st.sampled_from(("a", "b", "c"))
services = st.builds(
    Service,
    namespace=st.just("default"),
    name=NAMES,
    cluster_ips=st.sampled_from(((), (NONE,), ("10.96.0.1",), ("10.96.0.2", "fd00::2"))),
    ports=st.sampled_from(((), (ServicePort("http", "TCP", 80, 30080),))),
    left_out=st.sampled_from(((), ("a port",))),
)
slices = st.builds(
    EndpointSlice,
    namespace=st.just("default"),
    name=NAMES,
    service=NAMES,
    version=st.sampled_from((4, 6)),
    endpoints=st.sampled_from(((), (Endpoint("10.244.0.1"),))),
    left_out=st.sampled_from(((), ("an address",))),
)
steps = st.lists(
    st.tuples(st.booleans(), services | slices),
    max_size=20,
)


@given(steps)
def test_what_is_left_is_there_and_each_change_tells_the_services_that_it_changes(
    steps: list[tuple[bool, Service | EndpointSlice]],
) -> None:
    catalog = Catalog()
    left: dict[tuple[type, str], Service | EndpointSlice] = {}
    for is_put, item in steps:
        before = {key: parts(catalog, key) for key in ("a", "b", "c")}
        if is_put:
            told = catalog.put(item)
            left[type(item), item.name] = item
        else:
            remove = catalog.remove_service if isinstance(item, Service) else catalog.remove_slice
            told = remove(item.namespace, item.name)
            left.pop((type(item), item.name), None)
        after = {key: parts(catalog, key) for key in ("a", "b", "c")}
        assert {name for _, name in told} == {k for k in after if after[k] != before[k]}
    fresh = Catalog()
    for item in left.values():
        fresh.put(item)
    assert {key: parts(catalog, key) for key in "abc"} == {key: parts(fresh, key) for key in "abc"}
    assert catalog.targets == fresh.targets
    incomplete = [each for each in left.values() if each.left_out]
    assert set(catalog.incomplete) == {(type(each), each.key) for each in incomplete}
    assert all(catalog.incomplete[type(each), each.key] == each for each in incomplete)
    assert len(catalog) == sum(isinstance(each, Service) for each in left.values())
    for address in ("10.96.0.1", "10.96.0.2", "fd00::2"):
        found = catalog.by_address(address)
        assert found is None or address in found.addresses


def parts(catalog: Catalog, name: str) -> tuple[Service | None, list[EndpointSlice]]:
    return catalog.service("default", name), list(catalog.slices("default", name))


def test_what_is_left_out_is_told_by_object_after_what_cannot_be_read() -> None:
    odd = Service("shop", "web", left_out=("ports[0].port 0: no", "and 3 more"))
    piece = EndpointSlice("shop", "web-1", "web", 4, left_out=("endpoints[0]: no",))
    assert left_out_in_words(
        [piece, Service("shop", "fine"), odd], ["Service a cannot be read"]
    ) == [
        "Service a cannot be read",
        "of Service shop/web is left out: ports[0].port 0: no; and 3 more",
        "of EndpointSlice shop/web-1 is left out: endpoints[0]: no",
    ]


@given(services | slices)
def test_values_come_back_from_the_disk_as_they_were(item: Service | EndpointSlice) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(item), type=type(item)) == item
