"""Who is in rotation: whom to try where nothing is sure, who is near, who stays on the node."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from limpet.services.rotation import (
    MOST_SHARE,
    MOST_SLOTS_EACH,
    Here,
    OfferedPorts,
    Rotation,
    endpoint_words,
    rotate,
)
from limpet.services.values import (
    READY,
    SERVING,
    TERMINATING,
    Endpoint,
    EndpointPort,
    EndpointSlice,
    Exposure,
    Service,
    ServicePort,
)

PORT = ServicePort("http", "TCP", 80)
WEB = Service("shop", "web", cluster_ips=("10.96.0.7",), ports=(PORT,))
NODES = ("here", "beside", "far", "farther", "")
ENDING = SERVING | TERMINATING

endpoints = st.builds(
    Endpoint,
    address=st.integers(1, 30).map(lambda n: f"10.244.0.{n}"),
    conditions=st.integers(0, 15),
    node=st.sampled_from(NODES),
    zone=st.sampled_from(("", "hall", "yard")),
    for_zones=st.sampled_from(((), ("hall",), ("yard",))),
    for_nodes=st.sampled_from(((), ("here",), ("far",))),
)
unhinted = endpoints.map(lambda each: structs.replace(each, for_zones=(), for_nodes=()))
services = st.builds(
    Service,
    namespace=st.just("shop"),
    name=st.just("web"),
    distribution=st.sampled_from(("", "Even", "PreferClose", "PreferSameZone", "PreferSameNode")),
    is_internal_local=st.booleans(),
    exposure=st.builds(Exposure, is_local=st.booleans()),
)
heres = st.builds(
    Here,
    node=st.sampled_from(("here", "")),
    zone=st.sampled_from(("", "hall")),
    silent=st.frozensets(st.sampled_from(NODES[:-1])),
    gone=st.frozensets(st.integers(1, 30).map(lambda n: f"10.244.0.{n}"), max_size=5),
    distances=st.fixed_dictionaries({"beside": st.integers(1, 3), "far": st.integers(1, 3)}),
)


def slice_of(*found: Endpoint, name: str = "web-1", port: int = 8080) -> EndpointSlice:
    return EndpointSlice("shop", name, "web", 4, (EndpointPort("http", "TCP", port),), found)


def used(service: Service, here: Here, *found: Endpoint) -> Rotation:
    return rotate(service, OfferedPorts([slice_of(*found)]).candidates(PORT, 4), here)


def addresses(rotation: Rotation) -> list[str]:
    return [each.address for each in rotation.near]


@given(st.lists(endpoints, max_size=6), st.lists(endpoints, max_size=6))
def test_an_endpoint_of_two_slices_serves_if_it_does_by_either(
    some: list[Endpoint], others: list[Endpoint]
) -> None:
    pieces = [slice_of(*some), slice_of(*others, name="web-2")]
    found = OfferedPorts(pieces).candidates(PORT, 4)
    assert OfferedPorts(pieces[::-1]).candidates(PORT, 4) == found
    ready = {each.address for each in (*some, *others) if each.is_ready}
    assert {each.address for each, _ in found if each.is_ready} == ready


@given(services, st.lists(endpoints, max_size=12), heres)
def test_nobody_is_refused_for_a_doubt_and_nobody_is_used_who_does_not_serve(
    service: Service, found: list[Endpoint], here: Here
) -> None:
    all_found = OfferedPorts([slice_of(*found)]).candidates(PORT, 4)
    rotation = rotate(service, all_found, here)

    by_address = {endpoint.address: endpoint for endpoint, _ in all_found}
    ready = {a for a, each in by_address.items() if each.is_ready}
    ending = {
        a
        for a, each in by_address.items()
        if (each.is_serving and each.is_terminating) or each.is_doubted
    }
    expected = ready or ending
    assert bool(rotation.near) == bool(expected)
    assert {each.address for each in rotation.near} <= expected
    sure = {a for a in expected if not here.doubts(by_address[a])}
    if sure:
        assert {each.address for each in rotation.near} <= sure
    for target in rotation.local:
        assert target.is_local
        assert by_address[target.address].node == here.node
    own = {a for a, each in by_address.items() if here.node and each.node == here.node}
    assert bool(rotation.local) == bool((ready & own) or (ending & own))
    for candidate in all_found:
        why = endpoint_words(candidate, service, rotation.near, here)
        is_tried = why.endswith("(tried, since all are in doubt)")
        is_used = candidate[0].address in addresses(rotation)
        assert (why == "" or is_tried) == is_used
        assert is_tried == (is_used and here.doubts(candidate[0]))


@given(st.lists(unhinted, min_size=1, max_size=12), heres)
def test_by_default_nobody_carries_much_more_than_an_even_share_for_being_near(
    found: list[Endpoint], here: Here
) -> None:
    available = used(Service("shop", "web", distribution="Even"), here, *found).near
    near = used(WEB, here, *found).near
    if near:
        slots = sum(each.weight for each in near)
        assert max(each.weight for each in near) / slots <= MOST_SHARE / len(available)
        assert slots <= MOST_SLOTS_EACH * len(available)


def test_the_own_node_is_nearest_then_who_is_reached_best() -> None:
    here = Here("here", distances={"beside": 1, "far": 3})
    own, beside, far = (
        Endpoint("10.244.0.1", node="here"),
        Endpoint("10.244.1.1", node="beside"),
        Endpoint("10.244.2.1", node="far"),
    )
    assert addresses(used(WEB, here, own, beside, far)) == ["10.244.0.1"]
    assert addresses(used(WEB, here, beside, far)) == ["10.244.1.1"]
    even = Service("shop", "web", distribution="Even")
    assert len(addresses(used(even, here, own, beside, far))) == 3


@given(st.lists(endpoints, min_size=1, max_size=12), heres, services)
def test_a_node_that_draws_all_alike_still_heeds_what_services_and_hints_ask_for(
    found: list[Endpoint], here: Here, service: Service
) -> None:
    alike = structs.replace(service, distribution="Even")
    here = replace(here, is_even=True)
    rotation = used(service, here, *found)
    assert {each.weight for each in rotation.near} <= {1}
    # Hints count where all have them that are left, once those that do not serve are not looked at.
    is_hinted = any(each.for_zones or each.for_nodes for each in found)
    if not is_hinted and service.distribution in ("", "Even"):
        assert rotation == used(alike, here, *found)
    if service.distribution:
        assert rotation == used(service, replace(here, is_even=False), *found) or rotation == used(
            alike, here, *found
        ), "it goes without only where what it asks for is not there"


def test_one_near_endpoint_among_many_gets_help() -> None:
    here = Here("here", distances={"far": 1})
    found = [Endpoint("10.244.0.1", node="here")]
    found += [Endpoint(f"10.244.1.{n}", node="far") for n in range(1, 10)]
    weights = {each.address: each.weight for each in used(WEB, here, *found).near}
    assert weights.pop("10.244.0.1") == MOST_SHARE
    assert set(weights.values()) == {1}
    assert len(weights) == 9


def test_many_near_ones_do_not_have_many_slots_each_for_the_sake_of_a_few_that_are_far() -> None:
    here = Here("here", distances={"beside": 1, "far": 2})
    found = [Endpoint("10.244.0.1", node="here")]
    found += [Endpoint(f"10.244.1.{n}", node="beside") for n in range(1, 96)]
    found += [Endpoint(f"10.244.2.{n}", node="far") for n in range(1, 5)]
    near = used(WEB, here, *found).near
    assert {each.node: each.weight for each in near} == {"here": 2, "beside": 2, "far": 1}
    assert sum(each.weight for each in near) <= MOST_SLOTS_EACH * len(found)


def test_a_silent_node_leaves_and_all_are_tried_where_all_are_silent() -> None:
    beside, far = Endpoint("10.244.1.1", node="beside"), Endpoint("10.244.2.1", node="far")
    assert addresses(used(WEB, Here("here", silent={"beside"}), beside, far)) == ["10.244.2.1"]
    both = used(WEB, Here("here", silent={"beside", "far"}), beside, far)
    assert addresses(both) == ["10.244.1.1", "10.244.2.1"]
    near_first = Here("here", silent={"beside", "far"}, distances={"beside": 1, "far": 2})
    assert used(WEB, near_first, beside, far) == both
    own = Endpoint("10.244.0.1", node="here")
    assert addresses(used(WEB, Here("here", silent={"here"}), own)) == ["10.244.0.1"]


def test_who_is_tried_since_all_are_in_doubt_is_said_to_be_in_doubt() -> None:
    beside, far = Endpoint("10.244.1.1", node="beside"), Endpoint("10.244.2.1", node="far")
    here = Here("here", silent={"beside"}, gone={"10.244.2.1"})
    rotation = used(WEB, here, beside, far)
    said = [endpoint_words((each, 8080), WEB, rotation.near, here) for each in (beside, far)]
    assert said == [
        "node beside does not answer (tried, since all are in doubt)",
        "its container is gone (tried, since all are in doubt)",
    ]
    sure = Here("here", silent={"beside"})
    rotation = used(WEB, sure, beside, far)
    said = [endpoint_words((each, 8080), WEB, rotation.near, sure) for each in (beside, far)]
    assert said == ["node beside does not answer", ""]


def test_those_that_end_are_used_only_where_nobody_is_ready() -> None:
    ending = Endpoint("10.244.1.1", ENDING)
    ready = Endpoint("10.244.1.2", READY | SERVING)
    assert addresses(used(WEB, Here(), ending)) == ["10.244.1.1"]
    assert addresses(used(WEB, Here(), ending, ready)) == ["10.244.1.2"]
    assert addresses(used(WEB, Here(), Endpoint("10.244.1.3", 0))) == []


def test_hints_count_only_where_every_endpoint_has_one_and_this_node_is_meant() -> None:
    hall = Endpoint("10.244.1.1", zone="hall", for_zones=("hall",))
    yard = Endpoint("10.244.1.2", zone="yard", for_zones=("yard",))
    bare = Endpoint("10.244.1.3", zone="yard")
    assert addresses(used(WEB, Here(zone="hall"), hall, yard)) == ["10.244.1.1"]
    assert len(addresses(used(WEB, Here(zone="hall"), hall, yard, bare))) == 3
    assert len(addresses(used(WEB, Here(zone="roof"), hall, yard))) == 2
    assert len(addresses(used(WEB, Here(), hall, yard))) == 2


@pytest.mark.parametrize("distribution", ["", "PreferSameZone", "PreferSameNode"])
def test_hints_for_nodes_come_before_those_for_zones_whatever_is_asked_for(
    distribution: str,
) -> None:
    service = structs.replace(WEB, distribution=distribution)
    mine = Endpoint("10.244.1.1", node="far", for_zones=("yard",), for_nodes=("here",))
    others = Endpoint("10.244.1.2", zone="hall", for_zones=("hall",), for_nodes=("far",))
    here = Here("here", "hall", distances={"far": 1})
    assert addresses(used(service, here, mine, others)) == ["10.244.1.1"]
    nobodys = structs.replace(mine, for_nodes=("beside",))
    assert addresses(used(service, here, nobodys, others)) == ["10.244.1.2"]


@pytest.mark.parametrize("is_local", [False, True])
def test_traffic_that_must_stay_on_the_node_has_its_endpoints_only(is_local: bool) -> None:
    service = Service(
        "shop", "web", is_internal_local=is_local, exposure=Exposure(is_local=not is_local)
    )
    found = (Endpoint("10.244.0.1", node="here"), Endpoint("10.244.1.1", node="far"))
    rotation = used(service, Here("here", silent=frozenset()), *found)
    assert rotation.local == rotation.internal(service) or not is_local
    assert [each.address for each in rotation.local] == ["10.244.0.1"]
    assert rotation.external(service) == (rotation.near if is_local else rotation.local)


def test_pieces_of_one_service_are_put_together_and_other_ports_and_families_left_out() -> None:
    one, two = Endpoint("10.244.1.1"), Endpoint("10.244.1.2")
    pieces = [
        slice_of(one),
        slice_of(one, two, name="web-2"),
        slice_of(two, name="web-3", port=9090),
        EndpointSlice("shop", "web-6", "web", 6, (EndpointPort("http", "TCP", 8080),), (one,)),
        EndpointSlice("shop", "web-u", "web", 4, (EndpointPort("http", "UDP", 8080),), (one,)),
        EndpointSlice("shop", "web-n", "web", 4, (EndpointPort("more", "TCP", 8080),), (one,)),
    ]
    assert OfferedPorts(pieces).candidates(PORT, 4) == [(one, 8080), (two, 8080), (two, 9090)]


def test_near_ones_that_are_few_get_help_until_none_carries_too_much() -> None:
    """Two places with an endpoint each are too few for six: the near would carry four fifths."""
    nodes = ("beside", "far", "a", "b", "c", "d")
    found = [Endpoint(f"10.244.0.{n}", node=name) for n, name in enumerate(nodes, start=1)]
    near = used(WEB, Here("here", distances={"beside": 1, "far": 2}), *found).near
    assert [each.weight for each in near] == [4, 4, 1, 1, 1, 1]
