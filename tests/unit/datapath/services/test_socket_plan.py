"""What eBPF programs look up follows from the slots that nftables draws from."""

from __future__ import annotations

import re
import sys
from ipaddress import ip_address
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.unit.datapath.services.test_plan import HERE, NAMES, services, slices

from limpet.base.addresses import packed
from limpet.datapath.services.elements import frontend_key, slot_key, target_value
from limpet.datapath.services.plan import Planner, SocketWishes
from limpet.datapath.services.ruleset import slots_name
from limpet.datapath.services.sockets import layout
from limpet.datapath.services.sockets.diff import AttachPrograms, PutSocketElements, diff_sockets
from limpet.datapath.services.sockets.plan import SIZES
from limpet.datapath.services.state import StaleFlows
from limpet.services.catalog import Catalog
from limpet.services.rotation import Here
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

CHECKOUT = Path(__file__).parents[4]
BOTH = SocketWishes(ends_flows=True)
NOTHING = StaleFlows()


def planned(catalog: Catalog, wishes: SocketWishes = BOTH) -> Planner:
    planner = Planner(wishes)
    planner.replan([("default", name) for name in NAMES], catalog, HERE)
    return planner


def catalog_of(*items: Service | EndpointSlice) -> Catalog:
    catalog = Catalog()
    for item in items:
        catalog.put(item)
    return catalog


@given(items=st.lists(services | slices, max_size=8))
def test_each_cluster_address_has_the_slots_of_nftables_and_nothing_else_is_there(
    items: list[Service | EndpointSlice],
) -> None:
    catalog = catalog_of(*items)
    planner = planned(catalog)
    want = planner.want()
    frontends, slots, members = (want.sockets[name] for name in layout.SOCKET_MAPS)
    asked = {
        layout.service(frontend_key(packed(address), port.protocol, port.port))
        for service in catalog
        for address in service.addresses
        for port in service.ports
    }
    assert frontends.keys() <= asked
    counted = 0
    for key in frontends:
        plain = key.removeprefix(b"\0" * 10 + b"\xff\xff")
        version = 4 if len(plain) == 12 else 6
        protocol = {6: "TCP", 17: "UDP"}[plain[-8]]
        of_table = want.elements[slots_name(version, protocol, at_node=False)]
        count = int.from_bytes(frontends[key][:4], sys.byteorder)
        assert count > 0
        for number in range(count):
            value = layout.target(of_table[slot_key(plain, number)])
            if count <= layout.FEW:
                assert frontends[key][12 + 20 * number :][:20] == value
            else:
                assert slots[slot_key(key, number)] == value
                counted += 1
            if protocol == "UDP":
                assert members[key + value] == layout.MEMBER
        assert slot_key(plain, count) not in of_table
    assert counted == len(slots)
    assert {key[:24] for key in members} <= frontends.keys()


@given(items=st.lists(services | slices, max_size=12), cut=st.integers(0, 12))
def test_the_difference_brings_the_maps_to_what_is_planned(
    items: list[Service | EndpointSlice], cut: int
) -> None:
    catalog = catalog_of(*items[:cut])
    planner = planned(catalog)
    planner.settled()
    before = {name: dict(held) for name, held in planner.want().sockets.items()}
    names = [name for item in items[cut:] for name in catalog.put(item)]
    planner.replan(names, catalog, HERE)
    want = planner.want().sockets
    changes = diff_sockets(want, before, touched=planner.touched, damage="", stale=NOTHING)
    for change in changes:
        assert isinstance(change, PutSocketElements)
        for name, keys in change.elements.delete.items():
            for key in keys:
                del before[name][key]
        for name, added in change.elements.add.items():
            before[name].update(added)
    assert before == want


def test_what_is_not_of_the_cluster_alone_and_sctp_are_left_to_nftables() -> None:
    ports = (ServicePort("a", "SCTP", 9, 30009), ServicePort("http", "TCP", 80, 30080))
    exposed = Exposure(external_ips=("192.0.2.1",), load_balancer_ips=("192.0.2.2",))
    service = Service("default", "a", cluster_ips=("10.96.0.1",), ports=ports, exposure=exposed)
    catalog = catalog_of(service, *_slices_of("SCTP", "a"), *_slices_of("TCP", "http"))
    keys = planned(catalog).want().sockets[layout.FRONTENDS].keys()
    assert keys == {layout.service(frontend_key(packed("10.96.0.1"), "TCP", 80))}


def test_maps_are_as_large_as_in_the_programs() -> None:
    text = (CHECKOUT / "bpf" / "services.bpf.c").read_text(encoding="utf-8")
    sizes = {
        name: 1 << int(shift)
        for shift, name in re.findall(
            r"max_entries, 1 << (\d+)\);(?:(?!max_entries).)*?\} (\w+) SEC", text, re.DOTALL
        )
    }
    assert {name: sizes[name] for name in layout.SOCKET_MAPS} == SIZES


def test_what_finds_no_room_in_the_maps_is_left_to_nftables_and_comes_when_others_have_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One namespace fills half of a map, and what is left free nobody does."""
    monkeypatch.setitem(SIZES, layout.SLOTS, 64)
    catalog, planner = Catalog(), Planner(BOTH)

    def put(namespace: str, number: int, endpoints: int) -> None:
        ports, port = (ServicePort("http", "TCP", 80),), (EndpointPort("http", "TCP", 8080),)
        name, address = f"web-{number}", f"10.96.0.{number}"
        ends = tuple(Endpoint(f"10.244.{number}.{n}", node="far") for n in range(endpoints))
        planner.replan(
            [
                *catalog.put(Service(namespace, name, cluster_ips=(address,), ports=ports)),
                *catalog.put(EndpointSlice(namespace, name, name, 4, port, ends)),
            ],
            catalog,
            HERE,
        )

    def served() -> set[str]:
        want = planner.want()
        assert len(want.sockets[layout.SLOTS]) <= 56
        assert len(want.elements["services4"]) == len(catalog), "nftables serves them all"
        return {str(ip_address(key[12:16])) for key in want.sockets[layout.FRONTENDS]}

    put("greedy", 1, 20)
    put("greedy", 2, 20)
    assert (served(), planner.sockets.left) == ({"10.96.0.1"}, {("greedy", "web-2")})
    put("greedy", 3, 8)
    put("other", 4, 20)
    assert served() == {"10.96.0.1", "10.96.0.3", "10.96.0.4"}, "few stand in the frontend"
    put("third", 5, 20)
    assert planner.sockets.left == {("greedy", "web-2"), ("third", "web-5")}
    put("greedy", 1, 16)
    assert planner.sockets.left == {("greedy", "web-2")}, "what was free, and what it gave back"
    planner.replan(catalog.remove_service("greedy", "web-1"), catalog, HERE)
    assert planner.sockets.left == {("greedy", "web-2")}, "the others have more than that by now"
    planner.replan(catalog.remove_service("other", "web-4"), catalog, HERE)
    assert planner.sockets.left == set()
    assert served() == {"10.96.0.2", "10.96.0.3", "10.96.0.5"}


def test_without_a_planner_for_sockets_nothing_is_planned_for_them() -> None:
    planner = Planner()
    planner.replan([("default", "a")], catalog_of(), HERE)
    assert planner.want().sockets == {}


def test_programs_are_attached_after_their_maps_have_what_they_look_up() -> None:
    want = {layout.FRONTENDS: {b"key": b"value"}}
    first, last = diff_sockets(want, {}, touched=None, damage="why", stale=NOTHING)
    assert isinstance(first, PutSocketElements)
    assert last == AttachPrograms("why")


def test_a_socket_is_stale_when_its_endpoint_serves_the_service_no_more() -> None:
    service = ip_address("10.96.0.1").packed, 53
    one, two = (ip_address(each).packed for each in ("10.244.0.1", "10.244.0.2"))
    asked, got = (
        layout.target(target_value(str(ip_address(a)), p)) for a, p in (service, (one, 1))
    )
    peer = asked + got
    assert layout.is_stale(peer, {service: {(two, 1)}})
    assert layout.is_stale(peer, {service: {(one, 2)}})
    assert not layout.is_stale(peer, {service: {(one, 1), (two, 1)}})
    assert not layout.is_stale(peer, {(one, 53): {(two, 1)}})


def test_who_left_is_dead_unless_it_may_answer_still() -> None:
    asked = ip_address("10.96.0.1").packed, 80
    ports = (EndpointPort("http", "TCP", 8080),)
    web = (ServicePort("http", "TCP", 80),)
    catalog = catalog_of(
        Service("default", "a", cluster_ips=("10.96.0.1",), ports=web, distribution="Even")
    )

    def slice_of(**conditions: int) -> EndpointSlice:
        found = tuple(Endpoint(f"10.244.0.{n[1:]}", x, "far") for n, x in conditions.items())
        return EndpointSlice("default", "a", "a", 4, ports, found)

    def died(change: EndpointSlice, here: Here = HERE) -> set[str]:
        """Of three endpoints of the node `far`."""
        planner = Planner(BOTH)
        for item in (slice_of(_1=READY, _2=READY, _3=READY), change):
            names, known = catalog.put(item), here if item is change else HERE
            planner.replan({*names, ("default", "a")}, catalog, known)
        found = planner.stale().dead.get(asked, ())
        assert {port for _, port in found} <= {8080}
        planner.forgotten()
        assert planner.stale().dead == {}
        return {str(ip_address(address)) for address, _ in found}

    assert died(slice_of(_1=READY, _2=READY, _3=READY)) == set()
    assert died(slice_of(_1=READY)) == {"10.244.0.2", "10.244.0.3"}
    assert died(slice_of(_1=READY, _2=SERVING | TERMINATING, _3=TERMINATING)) == {"10.244.0.3"}
    gone = Here("here", gone=frozenset({"10.244.0.2"}))
    assert died(slice_of(_1=READY, _2=READY, _3=READY), gone) == {"10.244.0.2"}


def test_who_ends_beside_ready_ones_gets_no_client_back_and_keeps_its_datagrams() -> None:
    ends = (
        Endpoint("10.244.0.1", SERVING | TERMINATING, "here"),
        Endpoint("10.244.0.2", node="here"),
        Endpoint("10.244.1.1", node="far"),
    )

    def asked_on(protocol: str, **changes: object) -> set[str]:
        ports = (ServicePort("http", protocol, 80),)
        service = Service("default", "a", cluster_ips=("10.96.0.1",), ports=ports, affinity_s=60)
        slice_of = EndpointSlice(
            "default", "a", "a", 4, (EndpointPort("http", protocol, 8080),), ends
        )
        members = planned(catalog_of(replace(service, **changes), slice_of)).want().sockets
        return {str(ip_address(key[36:40])) for key in members[layout.MEMBERS]}

    ready = {"10.244.0.2", "10.244.1.1"}
    assert asked_on("TCP") == ready, "one is nearer, and the other has its clients still"
    assert asked_on("TCP", is_internal_local=True) == {"10.244.0.2"}
    assert asked_on("UDP") == {"10.244.0.1", *ready}
    assert asked_on("UDP", is_internal_local=True) == {"10.244.0.1", "10.244.0.2"}


def test_a_noted_socket_says_whom_it_asked_and_whom_it_got() -> None:
    service, one = ("10.96.0.1", 53), ("fd00::1", 5353)
    ends = [(ip_address(address).packed, port) for address, port in (service, one)]
    asked, got = (layout.target(target_value(*each)) for each in (service, one))
    key = (7).to_bytes(8, sys.byteorder) + layout.service(frontend_key(ends[0][0], "UDP", 53))
    assert layout.read_peer(asked + got) == tuple(ends)
    assert layout.read_flow(key, got) == (7, *ends)
    assert layout.is_dead(asked + got, {ends[0]: {ends[1]}})
    assert not layout.is_dead(asked + got, {ends[1]: {ends[1]}})


def _slices_of(protocol: str, name: str) -> list[EndpointSlice]:
    ports = (EndpointPort(name, protocol, 8080),)
    return [EndpointSlice("default", name, "a", 4, ports, (Endpoint("10.244.0.1"),))]
