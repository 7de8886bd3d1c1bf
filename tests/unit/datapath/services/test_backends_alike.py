"""Both backends choose from the same endpoints, and reject alike, whatever the Services are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ipaddress import ip_address, ip_network

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples
from tests.service_oracle import Question, answer
from tests.unit.datapath.services.table_reader import by_programs, by_table

from limpet.datapath.services.plan import Planner, SocketWishes
from limpet.services.catalog import Catalog
from limpet.services.rotation import Here
from limpet.services.values import (
    READY,
    SERVING,
    Endpoint,
    EndpointPort,
    EndpointSlice,
    Exposure,
    Service,
    ServicePort,
)

NAMES = ("a", "b", "c")
CLUSTER = (ip_network("10.244.0.0/16"), ip_network("fd00::/16"))
SETS = {"cluster": CLUSTER, "pods": (ip_network("10.244.7.0/24"), ip_network("fd00:7::/64"))}
NODES = ("192.0.2.1", "2001:db8::1")
SOURCES = {
    4: ("10.244.7.2", "10.244.9.2", NODES[0], "192.0.2.2", "203.0.113.9"),
    6: ("fd00:7::2", "fd00:9::2", NODES[1], "2001:db8::2", "2001:db8:9::9"),
}
"""A pod, one of another node, the node, and two from outside, of which ranges may hold one."""
PORTS = (
    ServicePort("http", "TCP", 80, 0),
    ServicePort("ask", "UDP", 53, 0),
    ServicePort("sctp", "SCTP", 80, 0),
    ServicePort("other", "TCP", 81, 0),
)


def _service(
    name: str,
    families: str,
    ports: Sequence[ServicePort],
    exposed: frozenset[str],
    wishes: tuple[int, bool, bool, str, tuple[str, ...]],
) -> Service:
    """Each name has addresses and ports of the node of its own: who wins is another question."""
    number = NAMES.index(name) + 1
    affinity_s, is_internal_local, is_local, distribution, ranges = wishes
    all_of = {"4": (f"10.96.0.{number}",), "6": (f"fd96::{number}",), "none": ("None",)}
    addresses = all_of["4"] + all_of["6"] if families == "both" else all_of[families]
    return Service(
        "default",
        name,
        cluster_ips=addresses,
        ports=tuple(
            ServicePort(x.name, x.protocol, x.port, 30000 + 10 * number + PORTS.index(x))
            for x in ports
        ),
        exposure=Exposure(
            external_ips=(f"198.51.100.{number}", f"2001:db8:7::{number}")
            if "outside" in exposed
            else (),
            load_balancer_ips=(f"203.0.113.{number}", f"2001:db8:8::{number}")
            if "balanced" in exposed
            else (),
            source_ranges=ranges,
            is_local=is_local,
        ),
        affinity_s=affinity_s,
        is_internal_local=is_internal_local,
        distribution=distribution,
    )


services = st.builds(
    _service,
    st.sampled_from(NAMES),
    st.sampled_from(("4", "6", "both", "none")),
    st.lists(st.sampled_from(PORTS), unique=True, min_size=1, max_size=4),
    st.frozensets(st.sampled_from(("outside", "balanced"))),
    st.tuples(
        st.sampled_from((0, 60)),
        st.booleans(),
        st.booleans(),
        st.sampled_from(("", "Even", "PreferSameNode", "PreferSameZone")),
        st.sampled_from(((), ("192.0.2.0/24",), ("192.0.2.0/24", "2001:db8::/64"))),
    ),
)


def _slice(
    name: str, service: str, version: int, first_port: int, endpoints: Sequence[Endpoint]
) -> EndpointSlice:
    prefix = "10.244.0." if version == 4 else "fd00::"
    return EndpointSlice(
        "default",
        name,
        service,
        version,
        tuple(EndpointPort(x.name, x.protocol, first_port + n) for n, x in enumerate(PORTS)),
        tuple(
            Endpoint(f"{prefix}{x.address}", x.conditions, x.node, x.zone, for_zones=x.for_zones)
            for x in endpoints
        ),
    )


slices = st.builds(
    _slice,
    st.sampled_from(("1", "2", "3", "4")),
    st.sampled_from(NAMES),
    st.sampled_from((4, 6)),
    st.sampled_from((8080, 9090)),
    st.lists(
        st.builds(
            Endpoint,
            address=st.integers(1, 9).map(str),
            conditions=st.sampled_from((READY | SERVING, *range(8))),
            node=st.sampled_from(("here", "near", "far", "")),
            zone=st.sampled_from(("", "z1", "z2")),
            for_zones=st.sampled_from(((), ("z1",))),
        ),
        min_size=1,
        max_size=8,
    ),
)
heres = st.builds(
    Here,
    st.just("here"),
    zone=st.sampled_from(("", "z1")),
    silent=st.frozensets(st.sampled_from(("near", "far"))),
    gone=st.frozensets(st.sampled_from(("10.244.0.1", "fd00::2"))),
    distances=st.sampled_from(({}, {"near": 1, "far": 2})),
)
histories = st.builds(
    lambda *parts: [item for part in parts for item in part],
    st.lists(services, min_size=1, max_size=3),
    st.lists(slices, min_size=1, max_size=4),
    st.lists(services | slices | heres | st.sampled_from(NAMES), max_size=6),
)


@settings(max_examples=examples(60))
@given(histories)
def test_both_backends_choose_from_the_same_endpoints_and_reject_alike(
    found: list[Service | EndpointSlice | Here | str],
) -> None:
    """After any history: what a plan keeps from before must not show. A name: it is deleted."""
    catalog, here = Catalog(), Here("here")
    both, alone = Planner(SocketWishes(ends_flows=True)), Planner()
    for item in found:
        if isinstance(item, Here):
            here, names = item, tuple(each.key for each in catalog)
        elif isinstance(item, str):
            names = catalog.remove_service("default", item)
        else:
            names = catalog.put(item)
        for planner in (both, alone):
            planner.replan(names, catalog, here)
    assert both.want().elements == alone.want().elements, "programs are beside the table"

    state, kept = both.want(), list(catalog.all_slices())
    for asked in questions(catalog):
        wanted = answer(asked, catalog, kept, here, CLUSTER)
        assert by_table(state, asked, SETS) == wanted
        at_socket = by_programs(state, asked)
        is_meant = asked.address in {x for each in catalog for x in each.addresses}
        if at_socket is not None:
            assert is_meant, "programs serve cluster addresses alone"
            assert at_socket == wanted
        elif is_meant and asked.protocol != "SCTP":
            assert wanted in ("refused", "let be"), "what programs do not know is refused"


def questions(catalog: Catalog) -> Iterator[Question]:
    """Of everybody, at every address and port of a Service, and at some that are none's."""
    ports = {(x.protocol, number) for x in PORTS for number in (x.port, 82)}
    for service in catalog:
        exposure = service.exposure
        addresses = (*service.addresses, *exposure.external_ips, *exposure.load_balancer_ips)
        for address in (*addresses, "10.96.0.99", "fd96::99"):
            for protocol, port in sorted(ports):
                yield from _of_everybody(address, protocol, port)
        for address in NODES:
            for each in service.ports:
                yield from _of_everybody(address, each.protocol, each.node_port)


def _of_everybody(address: str, protocol: str, port: int) -> Iterator[Question]:
    for source in SOURCES[ip_address(address).version]:
        yield Question(source, address, protocol, port, source in NODES, address in NODES)
