"""The plan of a catalog that changed step by step is that of a catalog that was always so."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from limpet.datapath.services.diff import (
    AddChains,
    ForgetFlows,
    PutElements,
    PutSurroundings,
    PutTable,
    diff_elements,
    diff_services,
)
from limpet.datapath.services.elements import fill_slots, read_target, target_value
from limpet.datapath.services.plan import Planner, frontends
from limpet.datapath.services.state import MAPS, ServicesState, StaleFlows
from limpet.services.catalog import Catalog
from limpet.services.rotation import Here, Target
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
        Exposure, external_ips=st.sampled_from(((), ("192.0.2.1",))), is_local=st.booleans()
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

    whole = Planner()
    whole.replan([each.key for each in catalog], catalog, HERE)
    asked = [each for s in catalog for port in s.ports for each in frontends(s, port)]
    differ = ["slots", "node_slots", "sticky"]
    if len(asked) != len(set(asked)):
        differ.append("hairpin")  # whose endpoints may ask themselves
    for name in MAPS:
        # Two may ask for one address: who came first has it, so values may differ, not keys.
        if not name.startswith(tuple(differ)):
            assert planner.elements[name].keys() == whole.elements[name].keys()
    for name, elements in planner.elements.items():
        for value in elements.values():
            if value.startswith((b"goto ", b"jump ")):
                chain = value[5:].decode()
                assert chain in planner.chains or chain in ("refuse", "hairpin"), name

    for each in list(catalog):
        planner.replan(catalog.remove_service(*each.key), catalog, HERE)
    assert planner.count == 0


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 4)), max_size=8),
    st.lists(st.integers(1, 9), max_size=20),
)
def test_slots_are_filled_as_often_as_targets_weigh_and_keep_what_stays(
    targets: list[tuple[int, int]], before: list[int]
) -> None:
    weights = dict(targets)
    wanted = [Target(f"10.0.0.{n}", 80, weight, False) for n, weight in weights.items()]
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
    assert kinds(ServicesState()) == [PutTable, PutElements]
    assert kinds(ServicesState(want.base, "", want.chains, want.elements)) == [PutSurroundings]
    assert kinds(ServicesState(want.base, want.surroundings, {}, want.elements)) == [AddChains]
    stale = planner.stale()
    assert dict(stale.udp) == {(bytes((10, 96, 0, 1)), 53): frozenset()}
    assert kinds(want, stale) == [ForgetFlows]
