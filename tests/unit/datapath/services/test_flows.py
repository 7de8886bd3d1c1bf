"""What sticks to endpoints, flows of UDP and remembered clients, and when it is forgotten."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from limpet.base.addresses import packed
from limpet.datapath.services.elements import frontend_key, read_target, target_value
from limpet.datapath.services.plan import Planner
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

ONE, FAR, OTHER = "10.1.0.1", "10.2.0.1", "10.3.0.1"
"""On this node, and on two others."""
NODES = {ONE: "here", FAR: "b", OTHER: "c"}
HERE = Here("here", distances={"b": 8, "c": 9})
HOUR_S = 3600


class World:
    """One Service, as it is changed; what was noted is forgotten before each change."""

    def __init__(self, *, protocol: str = "TCP", affinity_s: int = 0) -> None:
        self.planner = Planner()
        self.catalog = Catalog()
        self.port = ServicePort("p", protocol, 80, 30080)
        self.service = Service(
            "n",
            "s",
            cluster_ips=("10.96.0.5", "fd96::5"),
            ports=(self.port,),
            affinity_s=affinity_s,
            distribution="Even",
        )
        self.catalog.put(self.service)

    def put(self, **changes: object) -> None:
        self.service = replace(self.service, **changes)
        self.catalog.put(self.service)
        self.replan()

    def serve(
        self, *addresses: str, ending: Iterable[str] = (), here: Here = HERE, version: int = 4
    ) -> None:
        endpoints = [
            Endpoint(each, SERVING | TERMINATING if each in ending else READY, NODES.get(each, "b"))
            for each in (*addresses, *ending)
        ]
        ports = (EndpointPort("p", self.port.protocol, 8080),)
        self.catalog.put(EndpointSlice("n", f"s-{version}", "s", version, ports, tuple(endpoints)))
        self.replan(here)

    def replan(self, here: Here = HERE) -> None:
        self.planner.forgotten()
        self.planner.replan([("n", "s")], self.catalog, here)

    def remove(self) -> None:
        self.catalog.remove_service("n", "s")
        self.replan()

    @property
    def left(self) -> set[str]:
        return {_words(x) for each in self.planner.stale().left.values() for x in each}

    def is_cut(self, endpoint: str, *, port: int = 80) -> bool:
        """Whether a flow of UDP to it is forgotten."""
        asked = (packed("10.96.0.5") if port == 80 else b"", port)
        served = self.planner.stale().udp.get(asked)
        return served is not None and (packed(endpoint), 8080) not in served


def _words(value: bytes) -> str:
    return next(x for x in NODES if target_value(x, read_target(value)[1]) == value)


def test_clients_of_a_service_that_is_deleted_are_not_led_to_where_it_was() -> None:
    """One of that name and port may come back with other endpoints within the timeout."""
    world = World(affinity_s=HOUR_S)
    world.serve(ONE)
    world.remove()
    assert world.left == {ONE}


def test_flows_of_a_service_that_is_deleted_do_not_stay_with_who_has_served() -> None:
    """Its address may be another pod's by now; the other IP version's port of the node goes on."""
    world = World(protocol="UDP")
    world.serve(ONE)
    world.remove()
    assert world.is_cut(ONE)
    assert world.is_cut(ONE, port=30080)

    world.put()
    world.serve(ONE)
    world.serve(ONE, FAR)
    assert not world.is_cut(ONE)


def test_flows_of_an_address_that_another_service_has_taken_are_as_that_one_says() -> None:
    world = World(protocol="UDP")
    world.serve(ONE)
    world.planner.forgotten()
    port = ServicePort("p", "UDP", 80, 30080)
    world.catalog.put(Service("a", "first", cluster_ips=("10.96.0.5",), ports=(port,)))
    ends = (Endpoint(ONE, node="a"),)
    world.catalog.put(
        EndpointSlice("a", "first-4", "first", 4, (EndpointPort("p", "UDP", 8080),), ends)
    )
    world.planner.replan([("a", "first")], world.catalog, HERE)
    assert not world.is_cut(ONE)


def test_clients_are_forgotten_when_they_are_to_be_remembered_no_more() -> None:
    world = World(affinity_s=HOUR_S)
    world.serve(ONE)
    world.put(affinity_s=0)
    assert world.left == {ONE}


def test_clients_that_an_agent_before_remembered_are_kept_where_they_may_go_alone() -> None:
    world = World(affinity_s=HOUR_S)
    world.serve(ONE)
    assert world.planner.stale().kept is None
    world.planner.suspect_flows()
    kept = world.planner.stale().kept
    assert kept is not None
    assert {_words(x) for each in kept.values() for x in each} == {ONE}
    assert len(kept) == 2, "its cluster address and the port of the node"


def test_a_client_stays_with_an_endpoint_that_others_are_nearer_than_until_it_is_gone() -> None:
    world = World(affinity_s=HOUR_S)
    world.put(distribution="")
    world.serve(FAR, OTHER)
    world.serve(FAR, OTHER, here=Here("here", distances={"b": 10, "c": 9}))
    assert world.left == set()
    world.serve(OTHER)
    assert world.left == {FAR}


@pytest.mark.parametrize("protocol", ["TCP", "UDP"])
def test_a_client_does_not_come_back_to_an_endpoint_that_ends_while_others_are_ready(
    protocol: str,
) -> None:
    """It may have closed its port. A flow of UDP that is there stays all the same."""
    world = World(protocol=protocol, affinity_s=HOUR_S)
    world.serve(ONE, FAR)
    world.serve(FAR, ending=[ONE])
    assert world.left == {ONE}
    assert not world.is_cut(ONE)
    world.replan()
    assert world.left == set(), "once is enough"
    world.planner.suspect_flows()
    kept = world.planner.stale().kept
    assert kept is not None
    assert {_words(x) for each in kept.values() for x in each} == {FAR}
    world.serve(ending=[ONE])
    assert world.left == {FAR}
    world.serve(FAR, ending=[ONE])
    assert world.left == {ONE}


def test_clients_are_not_led_off_the_node_when_that_is_forbidden() -> None:
    world = World(affinity_s=HOUR_S)
    world.serve(ONE, FAR)
    world.put(exposure=Exposure(is_local=True))
    assert world.left == {FAR}
    world.put(exposure=Exposure())
    assert world.left == set()
    world.put(is_internal_local=True)
    assert world.left == {FAR}


def test_clients_led_off_the_node_do_not_stay_there_when_an_agent_finds_it_forbidden() -> None:
    """It was forbidden while no agent ran. Only at its port of the node, where who comes from
    outside keeps the source and gets no answer from another node."""
    world = World(affinity_s=HOUR_S)
    world.put(exposure=Exposure(is_local=True))
    world.serve(ONE, FAR)
    world.planner.suspect_flows()
    kept = world.planner.stale().kept
    assert kept is not None
    assert {len(key): {_words(x) for x in found} for (_, key), found in kept.items()} == {
        len(frontend_key(packed("10.96.0.5"), "TCP", 80)): {ONE, FAR},
        len(frontend_key(b"", "TCP", 30080)): {ONE},
    }


def test_a_flow_stays_with_an_endpoint_that_serves_out_of_rotation_until_it_serves_no_more() -> (
    None
):
    world = World(protocol="UDP")
    world.put(distribution="")
    world.serve(FAR)
    world.serve(ONE, FAR)
    assert not world.is_cut(FAR), "one is nearer"
    world.serve(ONE, ending=[FAR])
    assert not world.is_cut(FAR), "it ends in order"
    world.replan(Here("here", silent={"b"}))
    assert world.is_cut(FAR)
    world.replan()
    world.serve(ONE)
    assert world.is_cut(FAR)
    assert not world.is_cut(ONE)


def test_flows_to_a_port_of_the_node_are_those_of_both_ip_versions() -> None:
    world = World(protocol="UDP")
    world.serve(ONE, FAR)
    world.serve("fd01::1", version=6)
    world.serve(ONE)
    cut = {x: world.is_cut(x, port=30080) for x in (ONE, FAR, "fd01::1")}
    assert cut == {ONE: False, FAR: True, "fd01::1": False}

    world.planner.forgotten()
    world.planner.suspect_flows()
    assert not world.is_cut(ONE, port=30080)
    assert not world.is_cut("fd01::1", port=30080)


def test_nobody_is_asked_by_an_address_of_an_ip_version_that_the_service_has_none_of() -> None:
    """As kube-proxy: also not by external addresses of a headless one or an alias."""
    planner, catalog = Planner(), Catalog()
    exposure = Exposure(external_ips=("192.0.2.7", "2001:db8::7"))
    port = ServicePort("p", "TCP", 22)
    catalog.put(Service("n", "s", cluster_ips=("10.96.0.5",), ports=(port,), exposure=exposure))
    catalog.put(Service("n", "headless", ports=(port,), exposure=exposure))
    planner.replan([("n", "headless"), ("n", "s")], catalog, HERE)
    assert {key[:4] for key in planner.elements["services4"]} == {
        packed("10.96.0.5"),
        packed("192.0.2.7"),
    }
    assert planner.elements["services6"] == {}
