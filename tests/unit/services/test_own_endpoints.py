"""Addresses of a node that Services have, kept up as Services change."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from limpet.services.catalog import Catalog
from limpet.services.own_endpoints import OwnEndpoints
from limpet.services.values import Endpoint, EndpointSlice

slices = st.builds(
    EndpointSlice,
    namespace=st.just("shop"),
    name=st.sampled_from(("a", "b", "c")),
    service=st.sampled_from(("web", "ask")),
    version=st.sampled_from((4, 6)),
    endpoints=st.lists(
        st.builds(
            Endpoint,
            address=st.sampled_from(("10.0.0.1", "10.0.0.2", "10.0.0.3")),
            node=st.sampled_from(("here", "far", "")),
        ),
        max_size=3,
    ).map(tuple),
)


@given(st.lists(st.tuples(st.sampled_from(("put", "remove", "move")), slices), max_size=12))
def test_they_are_what_the_catalog_has_whatever_came_before(
    steps: list[tuple[str, EndpointSlice]],
) -> None:
    catalog = Catalog()
    own, node = OwnEndpoints(catalog), "here"
    for what, piece in steps:
        if what == "put":
            own.changed(catalog.put(piece))
        elif what == "remove":
            own.changed(catalog.remove_slice(*piece.key))
        else:
            node = "far" if node == "here" else "here"
        assert set(own.of(node)) == {
            endpoint.address
            for each in catalog.all_slices()
            for endpoint in each.endpoints
            if endpoint.node == node
        }
