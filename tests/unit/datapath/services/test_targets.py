"""What a node keeps of Services, and makes of them, is as much as the bounds count."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.fuzz.proportion import lines_of
from tests.unit.datapath.services.test_plan import services, slices

from limpet.base.bounds.tenants import SERVICE_TARGETS_OF_ONE
from limpet.datapath.services.plan import Planner
from limpet.services.catalog import Catalog
from limpet.services.rotation import Here
from limpet.services.values import (
    NONE,
    Endpoint,
    EndpointPort,
    EndpointSlice,
    Exposure,
    Service,
    ServicePort,
)

REFUSED = "namespace shop has more than 131,072 targets"
HERE = Here("here", distances={"far": 1})
NEARER = Here("here", distances={"far": 2, "beside": 1})
LOCAL = Service(
    "shop",
    "local",
    cluster_ips=("10.96.0.7",),
    ports=(ServicePort("http", "TCP", 80, 30080),),
    exposure=Exposure(external_ips=("192.0.2.1",), is_local=True),
    affinity_s=60,
)
CROWD = EndpointSlice(
    *("shop", "local-1", "local", 4),
    (EndpointPort("http", "TCP", 8080),),
    tuple(
        Endpoint(f"10.244.0.{n}", node="here" if n < 2 else "beside" if n < 97 else "far")
        for n in range(1, 101)
    ),
)
"""For whose few far ones the many that are near would have four slots each."""


def asked_at(
    ports: int, *, external: int = 0, balanced: int = 0, ranges: int = 0, node_ports: bool = False
) -> Service:
    made = tuple(
        ServicePort(f"p{number}", "TCP", number, 30000 + number if node_ports else 0)
        for number in range(1, ports + 1)
    )
    exposure = Exposure(
        external_ips=tuple(f"192.0.2.{number}" for number in range(external)),
        load_balancer_ips=tuple(f"198.51.100.{number}" for number in range(balanced)),
        source_ranges=tuple(f"10.{n >> 8}.{n & 255}.0/24" for n in range(ranges)),
    )
    return Service("shop", "web", cluster_ips=("10.96.0.7",), ports=made, exposure=exposure)


def piece_of(service: Service, endpoints: int, node: str = "far") -> EndpointSlice:
    ports = tuple(EndpointPort(each.name, "TCP", 8000 + each.port) for each in service.ports)
    found = tuple(
        Endpoint(f"10.244.{n >> 8}.{n & 255}", node=node) for n in range(1, endpoints + 1)
    )
    return EndpointSlice("shop", "web-1", "web", 4, ports, found)


def kept(*items: Service | EndpointSlice) -> tuple[Catalog, list[str]]:
    """What has room, and why others have none."""
    catalog, refused = Catalog(), []
    for item in items:
        if refusal := catalog.refusal(item):
            refused.append(refusal)
        else:
            catalog.put(item)
    return catalog, refused


def planned(catalog: Catalog, here: Here = HERE) -> Planner:
    planner = Planner()
    planner.replan([each.key for each in catalog], catalog, here)
    return planner


def elements_of(catalog: Catalog) -> int:
    return planned(catalog).count


def test_a_small_service_with_many_addresses_fills_no_node() -> None:
    """Of 7 kB each, Service and slice: every port is at every address, with every endpoint."""
    service = asked_at(100, external=255)
    for items in ((service, piece_of(service, 100)), (piece_of(service, 100), service)):
        catalog, refused = kept(*items)
        assert refused == [REFUSED]
        assert elements_of(catalog) < SERVICE_TARGETS_OF_ONE.most
    for each in (
        asked_at(100, external=128, balanced=127),
        asked_at(1000, node_ports=True),
    ):
        _, refused = kept(each, piece_of(each, 100))
        assert refused == [REFUSED]


def test_the_largest_service_that_is_kept_is_what_was_counted() -> None:
    service = asked_at(40, external=31)
    catalog, refused = kept(service, piece_of(service, 100))
    assert refused == []
    assert 40 * 32 * 100 <= elements_of(catalog) <= catalog.targets
    more = replace(service, exposure=asked_at(1, external=32).exposure)
    assert catalog.refusal(more) == REFUSED
    assert catalog.refusal(replace(service, exposure=Exposure())) == ""


def test_addresses_and_ranges_without_an_endpoint_are_counted_too() -> None:
    """Also of a headless Service, whose addresses lead nowhere."""
    plain = kept(replace(asked_at(1), cluster_ips=(NONE,)))[0].targets
    exposure = asked_at(1, external=255, ranges=1024).exposure
    headless = replace(asked_at(1), cluster_ips=(NONE,), exposure=exposure)
    assert kept(headless)[0].targets >= plain + 255 + 1024
    # Where ports have different endpoints, each has its ranges in a chain of its own.
    assert kept(asked_at(1000, balanced=1, ranges=1024))[1] == [REFUSED]


def test_slices_are_counted_by_their_ports_and_hints_also_without_a_service() -> None:
    """Those that every slice has, one port, and one zone and node for an endpoint, cost no more."""
    bare = EndpointSlice("shop", "web-1", "web", 4)
    many = tuple(EndpointPort(f"p{number}", "TCP", number) for number in range(1, 1001))
    slices_of_ports = [replace(bare, name=f"web-{n}", ports=many) for n in range(140)]
    assert set(kept(*slices_of_ports)[1]) == {REFUSED}
    names = tuple(f"zone-{number}" for number in range(64))
    for hinted in (Endpoint("", for_zones=names), Endpoint("", for_nodes=names)):
        crowd = tuple(replace(hinted, address=f"10.244.0.{n}") for n in range(100))
        pieces = [replace(bare, name=f"web-{n}", endpoints=crowd) for n in range(30)]
        assert set(kept(*pieces)[1]) == {REFUSED}
    usual = Endpoint("10.244.0.1", for_zones=("hall",), for_nodes=("far",))
    assert kept(replace(bare, ports=many[:1], endpoints=(usual,)))[0].targets == 2


def test_a_slice_that_goes_leaves_the_room_of_its_ports() -> None:
    service = asked_at(2)
    catalog, refused = kept(service, piece_of(asked_at(1000), 3))
    assert not refused
    before = catalog.targets
    catalog.put(piece_of(service, 3))
    assert catalog.targets == before - 998
    catalog.remove_slice("shop", "web-1")
    assert catalog.targets == kept(service)[0].targets


@given(
    st.lists(services | slices, max_size=12) | st.just([LOCAL, CROWD]),
    st.sampled_from((HERE, Here(), Here("far", distances={"here": 2}), NEARER)),
)
def test_of_each_target_there_are_three_elements_at_most_and_it_waits_once(
    items: list[Service | EndpointSlice], here: Here
) -> None:
    """Those of this node stand twice where some traffic must not leave it, and near ones several
    times beside far ones, which are as many again at most."""
    catalog, refused = kept(*items)
    assert refused == []
    planner = planned(catalog, here)
    assert planner.count <= 3 * catalog.targets
    assert planner.waiting <= catalog.targets


def test_a_change_of_a_service_costs_what_it_serves_however_many_ports_its_slices_have() -> None:
    """Once through the slices for all ports: for each of them it would be four times as much."""

    def cost(ports: int) -> int:
        service = asked_at(ports)
        pieces = [replace(piece_of(service, 1), name=f"web-{number}") for number in range(6)]
        catalog, refused = kept(service, *pieces)
        assert not refused
        planner = Planner()
        planner.replan([service.key], catalog, HERE)
        catalog.put(replace(pieces[0], endpoints=(Endpoint("10.244.9.9"),)))
        return lines_of(lambda: planner.replan([service.key], catalog, HERE))

    assert cost(200) < 2.5 * cost(100)
