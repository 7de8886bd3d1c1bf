"""A catalog that is changed object by object is the one that is made of what is left."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from limpet.services.catalog import Catalog
from limpet.services.values import NONE, EndpointSlice, Service

NAMES = st.sampled_from(("a", "b", "c"))
services = st.builds(
    Service,
    namespace=st.just("default"),
    name=NAMES,
    cluster_ips=st.sampled_from(((), (NONE,), ("10.96.0.1",), ("10.96.0.2", "fd00::2"))),
)
slices = st.builds(
    EndpointSlice,
    namespace=st.just("default"),
    name=NAMES,
    service=NAMES,
    version=st.sampled_from((4, 6)),
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
    assert len(catalog) == sum(isinstance(each, Service) for each in left.values())
    for address in ("10.96.0.1", "10.96.0.2", "fd00::2"):
        found = catalog.by_address(address)
        assert found is None or address in found.addresses


def parts(catalog: Catalog, name: str) -> tuple[Service | None, list[EndpointSlice]]:
    return catalog.service("default", name), list(catalog.slices("default", name))


@given(services | slices)
def test_values_come_back_from_the_disk_as_they_were(item: Service | EndpointSlice) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(item), type=type(item)) == item
