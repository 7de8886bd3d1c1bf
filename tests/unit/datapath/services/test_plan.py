"""The plan of a catalog that changed step by step is that of a catalog that was always so."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections import Counter
from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from limpet.base.addresses import packed
from limpet.datapath.services.diff import (
    AddChains,
    DropChains,
    ForgetFlows,
    PutElements,
    PutSurroundings,
    PutTable,
    diff_elements,
    diff_services,
)
from limpet.datapath.services.elements import fill_slots, read_target, target_value
from limpet.datapath.services.plan import Planner
from limpet.datapath.services.ruleset import LOCAL_SLOTS
from limpet.datapath.services.state import MAPS, ServicesState, StaleFlows, Surroundings
from limpet.services.catalog import Catalog
from limpet.services.rotation import Here, RotationTarget
from limpet.services.values import (
    Endpoint,
    EndpointPort,
    EndpointSlice,
    Exposure,
    Service,
    ServicePort,
)

NOTHING = StaleFlows()
NAMES = ("a", "b", "c")
HERE = Here("here", distances={"far": 1})
PORTS = (ServicePort("http", "TCP", 80, 30080), ServicePort("ask", "UDP", 53))

services = st.builds(
    Service,
    namespace=st.just("default"),
    name=st.sampled_from(NAMES),
    cluster_ips=st.sampled_from((("10.96.0.1",), ("10.96.0.2", "fd00::2"), ("None",), ())),
    ports=st.sampled_from((PORTS, PORTS[:1], PORTS[1:], ())),
    exposure=st.builds(
        Exposure,
        external_ips=st.sampled_from(((), ("192.0.2.1",), ("192.0.2.1", "10.96.0.1"))),
        load_balancer_ips=st.sampled_from(((), ("192.0.2.1",), ("10.96.0.2", "fd00::2"))),
        is_local=st.booleans(),
        is_others=st.sampled_from((False, False, False, True)),
        since=st.sampled_from(("", "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z")),
    ),
    affinity_s=st.sampled_from((0, 60)),
    is_internal_local=st.booleans(),
)
slices = st.builds(
    EndpointSlice,
    namespace=st.just("default"),
    name=st.sampled_from(NAMES),
    service=st.sampled_from(NAMES),
    version=st.just(4),
    ports=st.just((EndpointPort("http", "TCP", 8080), EndpointPort("ask", "UDP", 5353))),
    endpoints=st.lists(
        st.builds(
            Endpoint,
            address=st.integers(1, 9).map(lambda n: f"10.244.0.{n}"),
            conditions=st.integers(0, 7),
            node=st.sampled_from(("here", "far", "")),
        ),
        max_size=6,
    ).map(tuple),
)
steps = st.lists(st.tuples(st.booleans(), services | slices), min_size=1, max_size=12)


def step(catalog: Catalog, is_put: bool, item: Service | EndpointSlice) -> list[tuple[str, str]]:
    if is_put:
        return list(catalog.put(item))
    if isinstance(item, Service):
        return list(catalog.remove_service(item.namespace, item.name))
    return list(catalog.remove_slice(item.namespace, item.name))


def kernel(have: dict[str, dict[bytes, bytes]], change: PutElements) -> None:
    """As the kernel takes it: what is not there cannot go, and a key has one value."""
    for name, keys in change.delete.items():
        for key in keys:
            del have[name][key]
    for name, elements in change.add.items():
        for key, value in elements:
            assert key not in have[name]
            have[name][key] = value


@given(steps)
def test_what_is_planned_again_and_stays_as_it_was_is_not_made_anew(
    steps: list[tuple[bool, Service | EndpointSlice]],
) -> None:
    """Who holds elements of before, as of the kernel, shares them."""
    catalog, planner = Catalog(), Planner()
    for is_put, item in steps:
        planner.replan(step(catalog, is_put, item), catalog, HERE)
    before = {name: sorted(held.items()) for name, held in planner.elements.items()}
    planner.replan([each.key for each in catalog], catalog, HERE)
    for name, held in planner.elements.items():
        for old, new in zip(before[name], sorted(held.items()), strict=True):
            assert old[0] is new[0]
            assert old[1] is new[1]


def test_planning_many_at_once_takes_little_beside_what_stays() -> None:
    """As at an agent's start: what is freed between things that stay goes back to nobody."""
    catalog, planner, count = Catalog(), Planner(), 500
    ports = EndpointPort("http", "TCP", 8080), EndpointPort("ask", "UDP", 5353)
    for number in range(count):
        name, address = f"s-{number}", f"10.96.{number >> 8}.{number & 255}"
        catalog.put(Service("shop", name, cluster_ips=(address,), ports=PORTS))
        ends = tuple(Endpoint(f"10.244.{each}.{number & 255}") for each in range(5))
        catalog.put(EndpointSlice("shop", f"{name}-1", name, 4, ports, ends))
    names = [each.key for each in catalog]
    gc.collect()
    tracemalloc.start()
    try:
        planner.replan(names, catalog, HERE)
        assert len(planner.stale().udp) == count
        held, _ = tracemalloc.get_traced_memory()
        planner.settled()
        planner.forgotten()
        gc.collect()
        stays, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1.5 * stays


@given(steps)
def test_each_change_touches_what_differs_and_who_wanted_a_taken_address_gets_it(
    found: list[tuple[bool, Service | EndpointSlice]],
) -> None:
    catalog, planner = Catalog(), Planner()
    have: dict[str, dict[bytes, bytes]] = {name: {} for name in MAPS}
    for is_put, item in found:
        planner.replan(step(catalog, is_put, item), catalog, HERE)
        kernel(have, diff_elements(planner.elements, have, planner.touched))
        planner.settled()
        assert have == planner.elements
        is_affine = any(held for name, held in have.items() if name.startswith("sticky"))
        assert ("jump asked_" in planner.want().surroundings) == is_affine

    whole = Planner()
    whole.replan([each.key for each in catalog], catalog, HERE)
    assert planner.troubles == whole.troubles
    assert planner.waiting == whole.waiting
    for name in MAPS:
        changed, made = planner.elements[name], whole.elements[name]
        if "slots" in name:  # which of them an endpoint has is as it came
            assert drawn(changed) == drawn(made)
        else:
            assert changed == made
    for name, elements in planner.elements.items():
        for value in elements.values():
            if value.startswith((b"goto ", b"jump ")):
                chain = value[5:].decode()
                assert chain in planner.want().chains or chain in ("refuse", "hairpin"), name

    for each in list(catalog):
        planner.replan(catalog.remove_service(*each.key), catalog, HERE)
    assert planner.count == planner.waiting == 0


def drawn(slots: dict[bytes, bytes]) -> Counter[tuple[bytes, bool, bytes]]:
    """How often each endpoint is, by what is asked for, and whether it is for this node alone."""
    found = ((key[:-4], int.from_bytes(key[-4:], sys.byteorder)) for key in slots)
    return Counter(
        (asked, number >= LOCAL_SLOTS, value)
        for (asked, number), value in zip(found, slots.values(), strict=True)
    )


def test_who_has_the_address_of_one_that_goes_a_moment_later_has_its_other_ports_refused() -> None:
    catalog, planner = Catalog(), Planner()
    address = bytes((10, 96, 0, 1))
    for name, ports in (("a", PORTS[1:]), ("b", PORTS[:1])):
        service = Service("default", name, cluster_ips=("10.96.0.1",), ports=ports)
        planner.replan(catalog.put(service), catalog, HERE)
    planner.replan(catalog.remove_service("default", "a"), catalog, HERE)
    assert planner.elements["addresses4"] == {address: b"goto refuse"}
    planner.replan(catalog.remove_service("default", "b"), catalog, HERE)
    assert planner.elements["addresses4"] == {}


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 4)), max_size=8),
    st.lists(st.integers(1, 9), max_size=20),
)
def test_slots_are_filled_as_often_as_targets_weigh_and_keep_what_stays(
    targets: list[tuple[int, int]], before: list[int]
) -> None:
    weights = dict(targets)
    wanted = [RotationTarget(f"10.0.0.{n}", 80, weight, False) for n, weight in weights.items()]
    held = [target_value(f"10.0.0.{n}", 80) for n in before]
    slots = fill_slots(wanted, held)
    counts = {value: slots.count(value) for value in set(slots)}
    assert counts == {target_value(f"10.0.0.{n}", 80): w for n, w in weights.items()}
    if sum(weights.values()) == len(held) and slots != held:
        gone = sum(max(held.count(v) - slots.count(v), 0) for v in set(held))
        assert sum(a != b for a, b in zip(slots, held, strict=True)) == gone
    assert [read_target(value)[1] for value in slots] == [80] * len(slots)


def test_what_is_there_already_is_no_change_and_what_is_damaged_is_put_whole() -> None:
    catalog, planner = Catalog(), Planner()
    names = [
        *catalog.put(Service("default", "a", cluster_ips=("10.96.0.1",), ports=PORTS)),
        *catalog.put(
            EndpointSlice(
                *("default", "a-1", "a", 4),
                ports=(EndpointPort("http", "TCP", 8080),),
                endpoints=(Endpoint("10.244.0.1"),),
            )
        ),
    ]
    planner.replan(names, catalog, HERE)
    want = planner.want()

    def kinds(have: ServicesState, stale: StaleFlows = NOTHING) -> list[type]:
        return [type(each) for each in diff_services(want, have, touched=None, stale=stale)]

    assert kinds(want) == []
    assert kinds(ServicesState()) == [PutTable]
    assert kinds(ServicesState(want.base, "", want.chains, want.elements)) == [PutSurroundings]
    assert kinds(ServicesState(want.base, want.surroundings, {}, want.elements)) == [AddChains]
    stale = planner.stale()
    assert dict(stale.udp) == {(bytes((10, 96, 0, 1)), 53): frozenset()}
    assert kinds(want, stale) == [ForgetFlows]


WEB = Service("default", "web", cluster_ips=("10.96.0.1",), ports=PORTS)
HTTP = ServicePort("http", "TCP", 80)
ODD = replace(WEB, name="odd", cluster_ips=("10.96.0.9",), ports=(HTTP,))
NONSENSE: tuple[Service, ...] = tuple(
    replace(ODD, **says)
    for says in (
        {"cluster_ips": ("10.96.0.9", "somewhere")},
        {"ports": (HTTP, ServicePort("http", "TCP", 70_000))},
        {"ports": (HTTP, ServicePort("http", "TCP", 81, -1))},
        {"ports": (HTTP, ServicePort("ping", "ICMP", 1))},
        {"exposure": Exposure(load_balancer_ips=("192.0.2.9",), source_ranges=("nobody",))},
        {"ports": (ServicePort("wrong", "TCP", 82),)},
    )
)


def piece(name: str, *addresses: str, port: int = 8080) -> EndpointSlice:
    ports = (EndpointPort("http", "TCP", port), EndpointPort("wrong", "TCP", port))
    return EndpointSlice("default", name, name, 4, ports, tuple(map(Endpoint, addresses)))


@pytest.mark.parametrize("odd", NONSENSE)
def test_a_service_that_says_nonsense_is_told_and_others_are_served(odd: Service) -> None:
    catalog, planner = Catalog(), Planner()
    wrong = odd.ports[-1].name == "wrong"
    found: list[Service | EndpointSlice] = [
        odd,
        piece("odd", "10.244.0.1", "fd00::1" if wrong else "10.244.0.2"),
    ]
    sound: list[Service | EndpointSlice] = [WEB, piece("web", "10.244.0.3")]
    for item in [*sound, *found]:
        planner.replan(catalog.put(item), catalog, HERE)
    assert planner.troubles.keys() == {("default", "odd")}
    assert planner.troubles["default", "odd"].startswith("nobody can serve what it says: ")
    alone, planned = Catalog(), Planner()
    for item in sound:
        planned.replan(alone.put(item), alone, HERE)
    assert planner.elements == planned.elements

    # What it had claimed is free, and it is served as soon as it says what can be.
    heir = replace(ODD, name="heir")
    planner.replan(catalog.put(heir), catalog, HERE)
    assert planner.troubles.keys() == {("default", "odd")}
    planner.replan(catalog.remove_service(*heir.key), catalog, HERE)
    planner.replan(catalog.put(ODD), catalog, HERE)
    planner.replan(catalog.put(piece("odd", "10.244.0.1")), catalog, HERE)
    assert planner.troubles == {}
    assert planner.count > planned.count


def test_chains_that_nothing_leads_to_are_given_up_before_they_are_many() -> None:
    """Endpoints come and go all day, and each number of them has a chain."""
    catalog, planner = Catalog(), Planner()
    planner.replan(catalog.put(WEB), catalog, HERE)
    have: dict[str, str] = {}
    most = 0
    for count in [*range(1, 150), 3]:
        addresses = [f"10.244.0.{number}" for number in range(1, count + 1)]
        planner.replan(catalog.put(piece("web", *addresses)), catalog, HERE)
        want = planner.want()
        held = replace_chains(want, have)
        changes = diff_services(want, held, touched=None, stale=NOTHING)
        for change in changes:
            if isinstance(change, AddChains):
                have |= change.chains
            if isinstance(change, DropChains):
                for name in change.names:
                    del have[name]
        assert have == dict(want.chains)
        assert f"pick_tcp_4_{count}" in have
        most = max(most, len(have))
    assert most < 100


def replace_chains(state: ServicesState, chains: dict[str, str]) -> ServicesState:
    return ServicesState(state.base, state.surroundings, chains, state.elements)


def test_of_more_endpoints_than_there_are_slots_those_count_that_have_one() -> None:
    most = 1 << 16
    targets = [
        RotationTarget(f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}", 80, 1, False) for n in range(most)
    ]
    more = RotationTarget("10.9.9.9", 80, 4, False)
    slots = fill_slots([*targets, more], [])
    assert len(slots) == most
    assert slots[0] != slots[1]


def test_an_endpoint_of_this_node_that_a_client_may_stay_with_can_ask_itself() -> None:
    """The client may be the endpoint: one that is not drawn, as hints say."""
    catalog, planner = Catalog(), Planner()
    ends = (
        Endpoint("10.244.0.1", node="here", for_nodes=("far",)),
        Endpoint("10.244.0.2", node="far", for_nodes=("here",)),
    )
    ports = (EndpointPort("http", "TCP", 8080),)
    service = Service("default", "a", cluster_ips=("10.96.0.1",), ports=PORTS[:1], affinity_s=60)
    names = [
        *catalog.put(service),
        *catalog.put(EndpointSlice("default", "a", "a", 4, ports, ends)),
    ]
    planner.replan(names, catalog, HERE)
    assert {read_target(each)[0] for each in planner.elements["slots_tcp_4"].values()} == {
        packed("10.244.0.2")
    }
    assert list(planner.elements["hairpin4"]) == [packed("10.244.0.1") * 2]


def test_endpoints_that_do_not_say_where_they_are_can_ask_themselves_if_they_are_pods_here() -> (
    None
):
    """Of those elsewhere nothing is held; other prefixes of this node are looked at anew."""
    catalog, planner = Catalog(), Planner()
    ends = tuple(Endpoint(each) for each in ("10.244.0.1", "10.244.1.1", "192.0.2.1"))
    service = Service("default", "a", cluster_ips=("10.96.0.1",), ports=PORTS[:1])
    ports = (EndpointPort("http", "TCP", 8080),)
    names = [
        *catalog.put(service),
        *catalog.put(EndpointSlice("default", "a", "a", 4, ports, ends)),
    ]
    other_family = ip_network("fd00:a:f400::/104")
    planner.surround(Surroundings(pods=(other_family, ip_network("10.244.0.0/24"))))
    planner.replan(names, catalog, HERE)
    assert list(planner.elements["hairpin4"]) == [packed("10.244.0.1") * 2]
    planner.surround(Surroundings(pods=(ip_network("10.244.1.0/24"),)))
    planner.replan([], catalog, HERE)
    assert list(planner.elements["hairpin4"]) == [packed("10.244.1.1") * 2]
    planner.replan(catalog.remove_service(*service.key), catalog, HERE)
    assert not planner.elements["hairpin4"]
    planner.surround(Surroundings())
    planner.replan([], catalog, HERE)
    assert not planner.elements["hairpin4"]


def test_nothing_is_kept_from_leaving_the_node_before_the_api_servers_are_known() -> None:
    """One may have an address among those of Services, where a person has said these wrong."""
    catalog, planner = Catalog(), Planner()
    ranges = (ip_network("10.96.0.0/12"), ip_network("fd96::/112"))
    planner.surround(Surroundings(services=ranges))
    table = "add element inet limpet_services"

    def elements() -> set[str]:
        planner.replan(catalog.put(WEB), catalog, HERE)
        return {x for x in planner.want().surroundings.splitlines() if x.startswith(table)}

    assert elements() == set()
    servers = tuple(map(Endpoint, ("192.0.2.3", "10.96.3.3", "nobody's")))
    found = EndpointSlice("default", "kubernetes", "kubernetes", 4, (), servers)
    planner.replan(catalog.put(found), catalog, HERE)
    held = {f"{table} ranges4 {{ 10.96.0.0/12 }}", f"{table} ranges6 {{ fd96::/112 }}"}
    assert elements() == held | {f"{table} spared4 {{ 10.96.3.3/32 }}"}
    planner.replan(catalog.put(replace(found, endpoints=servers[:1])), catalog, HERE)
    assert elements() == held
    planner.surround(Surroundings())
    assert elements() == set()
