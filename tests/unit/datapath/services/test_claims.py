"""Which Service has an address and port that several ask for, whatever order they came in."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address, ip_network
from itertools import permutations

import pytest
from msgspec.structs import replace

from limpet.base.addresses import packed
from limpet.datapath.services.elements import frontend_key, read_target, slot_key
from limpet.datapath.services.plan import Planner, SocketWishes
from limpet.datapath.services.sockets import layout
from limpet.datapath.services.state import Surroundings
from limpet.services.catalog import Catalog, Item
from limpet.services.rotation import Here
from limpet.services.values import (
    Endpoint,
    EndpointPort,
    EndpointSlice,
    Exposure,
    Service,
    ServicePort,
)

HERE = Here("here")
PORTS = (ServicePort("ask", "UDP", 53), ServicePort("http", "TCP", 80))
DNS = Service("kube-system", "kube-dns", cluster_ips=("10.96.0.10",), ports=PORTS[:1])
THIEF = Service("aaa", "x", cluster_ips=("10.96.0.66",), ports=PORTS)
ENDPOINTS = {"kube-dns": "10.244.0.10", "x": "10.244.0.66", "y": "10.244.0.77"}


def slice_of(service: Service) -> EndpointSlice:
    ports = tuple(EndpointPort(each.name, each.protocol, each.port) for each in service.ports)
    endpoints = (Endpoint(ENDPOINTS[service.name]),)
    return EndpointSlice(service.namespace, service.name, service.name, 4, ports, endpoints)


def external(service: Service, *addresses: str, since: str = "") -> Service:
    return replace(service, exposure=Exposure(external_ips=addresses, since=since))


def balanced(service: Service, *addresses: str, since: str = "") -> Service:
    return replace(service, exposure=Exposure(load_balancer_ips=addresses, since=since))


class World:
    """A node that plans for both backends."""

    def __init__(self, *items: Item) -> None:
        self.catalog = Catalog()
        self.planner = Planner(SocketWishes(ends_flows=True))
        for item in items:
            self.put(item)

    def put(self, item: Item) -> None:
        self.planner.replan(self.catalog.put(item), self.catalog, HERE)

    def remove(self, service: Service) -> None:
        self.planner.replan(self.catalog.remove_service(*service.key), self.catalog, HERE)

    def surround(self, around: Surroundings) -> None:
        self.planner.surround(around)
        self.planner.replan((), self.catalog, HERE)

    def leads_to(self, address: str, protocol: str = "UDP", port: int = 53) -> str:
        """The endpoint that a packet gets, by nftables and by the programs; empty: none."""
        key = frontend_key(packed(address), protocol, port)
        slot = self.planner.elements[f"slots_{protocol.lower()}_4"].get(slot_key(key, 0))
        assert (slot is None) == (key not in self.planner.elements["services4"])
        at_socket = self.planner.elements[layout.FRONTENDS].get(layout.service(key))
        if at_socket is not None:
            assert slot is not None
            assert layout.target(slot) in at_socket
        return str(ip_address(read_target(slot)[0])) if slot is not None else ""

    def is_at_socket(self, address: str) -> bool:
        key = layout.service(frontend_key(packed(address), "UDP", 53))
        return key in self.planner.elements[layout.FRONTENDS]


def served(*services: Service) -> list[Item]:
    return [item for each in services for item in (each, slice_of(each))]


@pytest.mark.parametrize("outer", [external, balanced])
def test_a_cluster_address_leads_to_its_service_whatever_others_ask_for_and_when(
    outer: type,
) -> None:
    """As CVE-2020-8554: who may write a Service takes no packet that is meant for another."""
    thief = outer(THIEF, "10.96.0.10", since="2020-01-01T00:00:00Z")
    for order in permutations(served(thief, DNS)):
        world = World(*order)
        assert world.leads_to("10.96.0.10") == ENDPOINTS["kube-dns"], order
        assert world.is_at_socket("10.96.0.10")
        assert world.leads_to("10.96.0.66") == ENDPOINTS["x"]
        assert world.planner.troubles == {
            THIEF.key: "10.96.0.10 is the cluster address of kube-system/kube-dns"
        }


def test_no_other_port_of_a_cluster_address_leads_to_who_asks_for_it_from_outside() -> None:
    thief = external(THIEF, "10.96.0.10")
    world = World(*served(thief))
    assert world.leads_to("10.96.0.10", "TCP", 80) == ENDPOINTS["x"]
    for item in served(DNS):
        world.put(item)
    assert world.leads_to("10.96.0.10", "TCP", 80) == ""
    assert world.planner.elements["addresses4"][packed("10.96.0.10")] == b"goto refuse"
    world.remove(DNS)
    assert world.leads_to("10.96.0.10", "TCP", 80) == ENDPOINTS["x"]
    assert world.planner.troubles == {}


def test_a_cluster_address_that_another_proxy_serves_is_left_to_it() -> None:
    thief, elsewhere = (
        external(THIEF, "10.96.0.10"),
        replace(DNS, exposure=Exposure(is_others=True)),
    )
    for order in permutations([*served(thief), elsewhere]):
        world = World(*order)
        assert world.leads_to("10.96.0.10") == ""
        world.remove(elsewhere)
        assert world.leads_to("10.96.0.10") == ENDPOINTS["x"]


OTHER = replace(THIEF, namespace="bbb", name="y", cluster_ips=("10.96.0.77",))
OLD, NEW = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
OUTER = "192.0.2.7"


@pytest.mark.parametrize(
    ("services", "holder"),
    [
        ((external(THIEF, OUTER, since=NEW), external(OTHER, OUTER, since=OLD)), OTHER),
        ((external(THIEF, OUTER, since=OLD), external(OTHER, OUTER, since=OLD)), THIEF),
        ((external(THIEF, OUTER), external(OTHER, OUTER, since=NEW)), OTHER),
        ((external(THIEF, OUTER, since=OLD), balanced(OTHER, OUTER, since=NEW)), OTHER),
        ((balanced(THIEF, OUTER, since=OLD), balanced(OTHER, OUTER, since=NEW)), THIEF),
    ],
)
def test_of_several_that_ask_for_an_outer_address_one_has_it_in_any_order(
    services: Sequence[Service], holder: Service
) -> None:
    """A load balancer's controller is believed rather than who writes a Service, then the older."""
    other = THIEF if holder is OTHER else OTHER
    for order in permutations(served(*services)):
        world = World(*order)
        assert world.leads_to(OUTER) == ENDPOINTS[holder.name], order
        assert world.planner.troubles.keys() == {other.key}
        assert (
            f"is of {'/'.join(holder.key)}, which goes first" in world.planner.troubles[other.key]
        )
        world.remove(holder)
        assert world.leads_to(OUTER) == ENDPOINTS[other.name]
        assert world.planner.troubles == {}


def test_of_two_with_one_cluster_address_the_name_decides_and_the_other_is_told_whose_it_is() -> (
    None
):
    late = replace(DNS, namespace="shop", name="x")
    words = (
        "10.96.0.10 port 53/UDP is of kube-system/kube-dns, which goes first: cluster addresses "
        "do, then load balancers', then the older Service's"
    )
    for order in permutations(served(DNS, late)):
        world = World(*order)
        assert world.planner.troubles == {late.key: words}
        assert world.leads_to("10.96.0.10") == ENDPOINTS["kube-dns"]
        world.remove(DNS)
        assert world.planner.troubles == {}
        assert world.leads_to("10.96.0.10") == ENDPOINTS["x"]


def test_no_external_address_is_one_of_a_node_an_api_server_or_a_pod_and_each_change_counts() -> (
    None
):
    """Packets between nodes go by UDP, and an agent to the API server: none is led elsewhere."""
    node, server, pod, free = "203.0.113.5", "203.0.113.6", "10.244.3.4", "203.0.113.7"
    thief = external(THIEF, node, server, pod, free)
    world = World(*served(thief))
    assert {world.leads_to(each) for each in (node, server, pod, free)} == {ENDPOINTS["x"]}

    around = Surroundings(
        reached=frozenset({(ip_address(node), 0)}), cluster=(ip_network("10.244.0.0/16"),)
    )
    world.surround(around)
    ports = (EndpointPort("https", "TCP", 6443),)
    servers = EndpointSlice("default", "kubernetes", "kubernetes", 4, ports, (Endpoint(server),))
    world.put(servers)
    assert [world.leads_to(each) for each in (node, server, pod)] == [""] * 3
    assert world.leads_to(free) == ENDPOINTS["x"]
    assert world.planner.troubles[THIEF.key] in {
        f"{node} is another node's address: that node serves it, and no other does",
        f"{server} is an address of an API server, which no Service may have",
        f"{pod} is an address of a pod, which no Service may have",
    }

    world.surround(Surroundings())
    world.planner.replan(world.catalog.remove_slice("default", "kubernetes"), world.catalog, HERE)
    assert {world.leads_to(each) for each in (node, server, pod, free)} == {ENDPOINTS["x"]}
    assert world.planner.troubles == {}


def test_no_load_balancer_takes_the_port_at_which_an_api_server_answers_whatever_it_is() -> None:
    """k3s says every node's address, also a server's, whose port a person may choose."""
    server = "203.0.113.6"
    ports = tuple(ServicePort(str(number), "TCP", number) for number in (8443, 8444))
    world = World(*served(balanced(replace(THIEF, ports=ports), server)))
    answers = (EndpointPort("https", "TCP", 8443),)
    world.put(EndpointSlice("default", "kubernetes", "kubernetes", 4, answers, (Endpoint(server),)))

    assert world.leads_to(server, "TCP", 8443) == ""
    assert world.leads_to(server, "TCP", 8444) != ""
    assert world.planner.troubles[THIEF.key] == (
        f"{server} is where an API server answers, at that port"
    )


def test_an_api_server_that_is_told_by_a_name_is_at_no_address_and_all_others_are_planned() -> None:
    world = World(*served(balanced(THIEF, "203.0.113.6")))
    https = (EndpointPort("https", "TCP", 443),)

    world.put(
        EndpointSlice("default", "by-name", "kubernetes", 0, https, (Endpoint("api.example.com"),))
    )

    assert world.leads_to("203.0.113.6") == ENDPOINTS["x"]


@pytest.mark.parametrize("outer", [external, balanced])
def test_an_address_of_this_node_is_a_services_but_for_ports_that_the_node_needs(
    outer: type,
) -> None:
    """As kube-proxy serves it, and no tenant takes the tunnels, the kubelet or ssh of a node: k3s
    says every node's address of a load balancer, at whatever port its Service names."""
    own = "203.0.113.5"
    ports = tuple(ServicePort(str(number), "TCP", number) for number in (22, 80, 7470, 7471))
    udp = ServicePort("peers", "UDP", 7471)
    world = World(*served(outer(replace(THIEF, ports=(*ports, udp)), own)))
    world.surround(
        Surroundings(own=frozenset({ip_address(own)}), own_ports=frozenset({("UDP", 7471, 7471)}))
    )
    has = [world.leads_to(own, "TCP", port) != "" for port in (22, 80, 7470, 7471)]
    assert has == [False, True, False, True]
    assert world.leads_to(own, "UDP", 7471) == ""
    assert "this node's, which needs port" in world.planner.troubles[THIEF.key]


def test_no_service_answers_for_names_where_a_node_does() -> None:
    names = "10.255.0.53"
    asked = [("UDP", 53), ("UDP", 80), ("TCP", 53), ("TCP", 80)]
    ports = tuple(ServicePort(f"{protocol}-{port}", protocol, port) for protocol, port in asked)
    world = World(*served(external(replace(THIEF, ports=ports), names)))
    assert all(world.leads_to(names, *each) for each in asked)

    world.surround(Surroundings(names_at=frozenset({ip_address(names)})))
    found = [world.leads_to(names, *each) != "" for each in asked]
    assert found == [False, True, False, True]
    assert "answers for names" in world.planner.troubles[THIEF.key]


def test_a_load_balancer_may_have_an_address_of_a_node() -> None:
    """As those do that forward from the nodes themselves: their controller says so."""
    world = World(*served(balanced(THIEF, "203.0.113.5")))
    world.surround(Surroundings(reached=frozenset({(ip_address("203.0.113.5"), 0)})))
    assert world.leads_to("203.0.113.5") == ENDPOINTS["x"]


def test_no_load_balancer_takes_what_other_nodes_are_reached_by() -> None:
    """Packets between nodes, which each sends by the addresses that k3s says of all of them."""
    node = "203.0.113.5"
    asked = [("UDP", 8472), ("UDP", 7471), ("TCP", 10250), ("TCP", 443), ("TCP", 8472)]
    asked += [("UDP", 51820)]  # the tunnel's port of that node, or of its relay
    ports = tuple(ServicePort(f"{protocol}-{port}", protocol, port) for protocol, port in asked)
    world = World(*served(balanced(replace(THIEF, ports=ports), node)))
    assert all(world.leads_to(node, *each) for each in asked)

    exchange = frozenset({("UDP", 7471, 7471)})
    for port in (0, 51820):
        reached = frozenset({(ip_address(node), port)})
        expected = [False, False, False, True, True, not port]
        world.surround(Surroundings(reached=reached, own_ports=exchange))
        assert [world.leads_to(node, *each) != "" for each in asked] == expected
        assert "is another node's address, which needs port" in world.planner.troubles[THIEF.key]


def test_an_address_that_stands_on_the_node_for_a_load_balancer_is_that_ones_at_each_port() -> None:
    """As kube-vip puts it there, for ssh of a forge, say."""
    own, vip = "203.0.113.5", "203.0.113.80"
    ports = (ServicePort("ssh", "TCP", 22), ServicePort("web", "TCP", 443))
    world = World(*served(balanced(replace(THIEF, ports=ports), own, vip)))
    both = frozenset(map(ip_address, (own, vip)))
    world.surround(Surroundings(own=both, lent=frozenset({ip_address(vip)})))
    assert [world.leads_to(own, "TCP", port) != "" for port in (22, 443)] == [False, True]
    assert [world.leads_to(vip, "TCP", port) != "" for port in (22, 443)] == [True, True]

    world.put(external(replace(THIEF, ports=ports), own, vip))
    assert [world.leads_to(vip, "TCP", port) != "" for port in (22, 443)] == [False, True]


def test_of_a_service_that_came_too_late_nothing_is_kept_when_it_goes_or_asks_no_more() -> None:
    many = tuple(ServicePort(f"p{number}", "TCP", number) for number in range(1, 41))
    addresses = tuple(f"192.0.2.{number}" for number in range(1, 31))
    holder = external(replace(THIEF, ports=many), *addresses)
    world = World(holder)
    for number in range(5):
        late = replace(
            external(holder, *addresses),
            namespace="bbb",
            name=f"late{number}",
            cluster_ips=("10.96.0.77",),
        )
        world.put(late)
        assert world.planner.waiting == len(many) * len(addresses)
        if number % 2:
            world.put(replace(late, exposure=Exposure()))
            assert world.planner.waiting == 0
        world.remove(late)
        assert world.planner.waiting == 0
