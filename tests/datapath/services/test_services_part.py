"""Real packets to Services: from pods, from the node, from outside; TCP and UDP; both families."""

from __future__ import annotations

import re
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from msgspec.structs import replace

from limpet.base.addresses import packed
from limpet.datapath.services.apply import count_connections
from limpet.datapath.services.elements import NUMBERS, frontends
from limpet.services.rotation import Here
from limpet.services.values import Endpoint, Exposure, Service
from tests.beds.namespaces import Netns, NetnsFactory, is_silent, talk
from tests.beds.node_bed import GATEWAYS, NODE, OUTSIDE
from tests.beds.services.service_bed import (
    ADDRESSES,
    EXTERNAL,
    WEB,
    ServiceBed,
    endpoints_of,
    slices,
)
from tests.waiting import PATIENCE_S, wait_until

ANY = {4: "0.0.0.0", 6: "::"}
VERSIONS = [0, 1]


@pytest.fixture(params=[False, True], ids=["bridged past nftables", "br_netfilter"])
def bed(make_netns: NetnsFactory, request: pytest.FixtureRequest) -> Iterator[ServiceBed]:
    bed = ServiceBed(make_netns, bridge_filtered=request.param)
    yield bed
    bed.close()


@pytest.fixture
def plain(make_netns: NetnsFactory) -> Iterator[ServiceBed]:
    bed = ServiceBed(make_netns)
    yield bed
    bed.close()


def listening(stack: ExitStack, netns: Netns, version: int, port: int = 8080) -> socket.socket:
    return stack.enter_context(netns.listening(ANY[version], port))


def family(address: str) -> int:
    return 6 if ":" in address else 4


def is_refused(client: Netns, address: str, port: int) -> bool:
    try:
        with client.connected(address, port):
            return False
    except ConnectionRefusedError:
        return True


def test_pods_the_node_and_hosts_outside_reach_the_endpoints(bed: ServiceBed) -> None:
    one, two = bed.pods
    bed.put(WEB, *slices(*endpoints_of(*two.addresses)))
    for number, address in enumerate(ADDRESSES):
        with ExitStack() as stack:
            server = listening(stack, two.netns, family(address))
            seen = talk(one.netns, address, 80, server)
            if bed.surroundings.is_bridge_filtered:
                assert seen == one.addresses[number]
            else:
                assert seen == GATEWAYS[number]
            talk(bed.node, address, 80, server)
            # Its own, by way of the Service.
            talk(two.netns, address, 80, server)
            # From outside the source is kept where the endpoint is a pod of this node.
            for target, port in ((EXTERNAL[number], 80), (NODE[number], 30080), (address, 80)):
                assert talk(bed.outside, target, port, server) == OUTSIDE[number]
            talk(one.netns, NODE[number], 30080, server)
            talk(bed.node, NODE[number], 30080, server)
    assert bed.run() == 0


def test_a_pod_reaches_itself_where_its_slice_does_not_say_its_node(bed: ServiceBed) -> None:
    """As of slices that are made by hand, or mirrored from Endpoints, which name no node."""
    one, _ = bed.pods
    bed.put(WEB, *slices(*endpoints_of(*one.addresses, node="")))
    for address in ADDRESSES:
        with ExitStack() as stack:
            talk(one.netns, address, 80, listening(stack, one.netns, family(address)))
    assert bed.run() == 0


@pytest.mark.parametrize("by", ["cluster address", "port of the node", "external address"])
@pytest.mark.parametrize("who", ["outside", "the node"])
def test_udp_reaches_them_too_and_a_flow_leaves_an_endpoint_that_is_gone(
    plain: ServiceBed, who: str, by: str
) -> None:
    bed = plain
    one, two = bed.pods
    for number, address in enumerate(ADDRESSES):
        version = family(address)
        target = {
            "cluster address": (address, 53),
            "port of the node": (NODE[number], 30053),
            "external address": (EXTERNAL[number], 53),
        }[by]
        bed.put(WEB, *slices(*endpoints_of(*one.addresses)))
        with ExitStack() as stack:
            servers = []
            for pod in (one, two):
                server = stack.enter_context(pod.netns.open_socket(version, socket.SOCK_DGRAM))
                server.bind((pod.addresses[number], 5353))
                server.settimeout(PATIENCE_S)
                servers.append(server)
            asker = bed.outside if who == "outside" else bed.node
            client = stack.enter_context(asker.open_socket(version, socket.SOCK_DGRAM))
            client.settimeout(PATIENCE_S)
            client.connect(target)
            for server, pod in zip(servers, bed.pods, strict=True):
                bed.put(*slices(*endpoints_of(*pod.addresses)))
                client.send(b"question")
                words, peer = server.recvfrom(64)
                assert words == b"question"
                server.sendto(b"answer", peer)
                assert client.recv(64) == b"answer"


def test_a_flow_to_a_port_of_the_node_that_began_before_its_service_finds_it(
    plain: ServiceBed,
) -> None:
    """As of a host that sends its log all the time, from one port."""
    bed = plain
    one, _ = bed.pods
    for number, address in enumerate(ADDRESSES):
        version = family(address)
        with ExitStack() as stack:
            server = stack.enter_context(one.netns.open_socket(version, socket.SOCK_DGRAM))
            server.bind((one.addresses[number], 5353))
            server.settimeout(PATIENCE_S)
            client = stack.enter_context(bed.outside.open_socket(version, socket.SOCK_DGRAM))
            client.sendto(b"early", (NODE[number], 30053))
            bed.put(WEB, *slices(*endpoints_of(*one.addresses)))
            client.sendto(b"late", (NODE[number], 30053))
            assert server.recv(64) == b"late"
            bed.round([*bed.catalog.remove_service("shop", "web")])


def test_a_service_without_endpoints_refuses_at_once(plain: ServiceBed) -> None:
    bed = plain
    bed.put(WEB)
    for number, address in enumerate(ADDRESSES):
        for client in (bed.pods[0].netns, bed.node, bed.outside):
            assert is_refused(client, address, 80)
        assert is_refused(bed.outside, NODE[number], 30080)
        with bed.pods[0].netns.open_socket(family(address), socket.SOCK_DGRAM) as question:
            question.settimeout(PATIENCE_S)
            question.connect((address, 53))
            question.send(b"question")
            with pytest.raises(ConnectionRefusedError):
                question.recv(64)


def test_ports_of_a_cluster_address_that_its_service_does_not_have_refuse_at_once(
    plain: ServiceBed,
) -> None:
    bed = plain
    bed.put(WEB, *slices(*endpoints_of(*bed.pods[1].addresses)))
    for address in ADDRESSES:
        for client in (bed.pods[0].netns, bed.node, bed.outside):
            assert is_refused(client, address, 81)
        for client in (bed.pods[0].netns, bed.outside):
            with client.open_socket(family(address), socket.SOCK_DGRAM) as asks:
                asks.settimeout(PATIENCE_S)
                asks.connect((address, 80))  # a port of TCP
                asks.send(b"question")
                with pytest.raises(ConnectionRefusedError):
                    asks.recv(64)
    bed.round([*bed.catalog.remove_service("shop", "web")])
    assert not any(bed.part.plan().elements.values())


def test_one_changed_endpoint_is_a_few_elements_and_connections_stay(plain: ServiceBed) -> None:
    bed = plain
    one, two = bed.pods
    bed.put(WEB, *slices(*endpoints_of(*one.addresses, *two.addresses)))
    with ExitStack() as stack:
        address = ADDRESSES[0]
        servers = [listening(stack, pod.netns, 4) for pod in bed.pods]
        clients = [stack.enter_context(bed.outside.connected(address, 80)) for _ in range(32)]
        accepted = accept(stack, servers, 32)
        assert all(accepted), "both are used"
        bed.put(*slices(*endpoints_of(*one.addresses)))
        for each in clients:
            each.sendall(b"still there")
        for connections in accepted:
            for connection in connections:
                connection.settimeout(PATIENCE_S)
                assert connection.recv(64) == b"still there"
        for _ in range(8):
            stack.enter_context(bed.outside.connected(address, 80))
        assert accept(stack, servers, 8)[1] == []


def accept(stack: ExitStack, servers: list[socket.socket], count: int) -> list[list[socket.socket]]:
    """So many connections, by who got them: what a client has connected may come a little later."""
    found: list[list[socket.socket]] = [[] for _ in servers]
    while sum(map(len, found)) < count:
        ready, _, _ = select.select(servers, [], [], PATIENCE_S)
        assert ready, "a connection did not come"
        for server in ready:
            found[servers.index(server)].append(stack.enter_context(server.accept()[0]))
    return found


def test_a_client_stays_with_its_endpoint_until_that_is_gone(plain: ServiceBed) -> None:
    bed = plain
    one, two = bed.pods
    sticky = Service("shop", "web", cluster_ips=ADDRESSES, ports=WEB.ports, affinity_s=600)
    bed.put(sticky, *slices(*endpoints_of(*one.addresses, *two.addresses)))
    with ExitStack() as stack:
        for number, address in enumerate(ADDRESSES):
            targets = ((address, 80), (NODE[number], 30080))
            for target, port in targets:
                servers = [listening(stack, pod.netns, family(address)) for pod in bed.pods]
                for _ in range(16):
                    stack.enter_context(bed.outside.connected(target, port))
                counts = [len(each) for each in accept(stack, servers, 16)]
                assert sorted(counts) == [0, 16]
                kept = counts.index(16)
                other = bed.pods[1 - kept]
                bed.put(*slices(*endpoints_of(*other.addresses)))
                stack.enter_context(bed.outside.connected(target, port))
                assert len(accept(stack, servers, 1)[1 - kept]) == 1
                bed.put(*slices(*endpoints_of(*one.addresses, *two.addresses)))
                for _ in range(8):
                    stack.enter_context(bed.outside.connected(target, port))
                assert len(accept(stack, servers, 8)[1 - kept]) == 8
                for server in servers:
                    server.close()


def test_traffic_that_must_stay_on_the_node_keeps_its_source_or_goes_nowhere(
    plain: ServiceBed,
) -> None:
    bed = plain
    one, two = bed.pods
    far = [Endpoint("10.244.9.9", node="far"), Endpoint("fd00:9::9", node="far")]
    local = Service(
        "shop",
        "web",
        cluster_ips=ADDRESSES,
        ports=WEB.ports,
        exposure=Exposure(external_ips=EXTERNAL, is_local=True),
    )
    bed.put(local, *slices(*endpoints_of(*two.addresses), *far))
    for number, address in enumerate(ADDRESSES):
        with ExitStack() as stack:
            server = listening(stack, two.netns, family(address))
            for _ in range(8):
                for target, port in ((EXTERNAL[number], 80), (NODE[number], 30080)):
                    assert talk(bed.outside, target, port, server) == OUTSIDE[number]
    bed.put(*slices(*far))
    for number in VERSIONS:
        assert is_silent(bed.outside, EXTERNAL[number], 80)
        assert is_silent(bed.outside, NODE[number], 30080)
    # Within the cluster it is as any other.
    bed.put(*slices(*endpoints_of(*two.addresses, node="far")))
    for number in VERSIONS:
        with ExitStack() as stack:
            server = listening(stack, two.netns, family(ADDRESSES[number]))
            talk(one.netns, EXTERNAL[number], 80, server)
            talk(bed.node, NODE[number], 30080, server)
    inside = Service("shop", "web", cluster_ips=ADDRESSES, ports=WEB.ports, is_internal_local=True)
    bed.put(inside)
    assert is_refused(one.netns, ADDRESSES[0], 80)
    bed.put(*slices(*endpoints_of(*two.addresses)))
    with ExitStack() as stack:
        talk(one.netns, ADDRESSES[0], 80, listening(stack, two.netns, 4))


def test_only_who_is_named_gets_in_by_a_load_balancers_address(plain: ServiceBed) -> None:
    bed = plain
    one, two = bed.pods
    bed.put(*slices(*endpoints_of(*two.addresses)))

    def let_in(*ranges: str) -> None:
        exposure = Exposure(load_balancer_ips=EXTERNAL, source_ranges=ranges)
        bed.put(replace(WEB, exposure=exposure))

    with ExitStack() as stack:
        servers = [listening(stack, two.netns, family(address)) for address in ADDRESSES]
        let_in(f"{OUTSIDE[0]}/32", "192.0.0.0/16", "192.0.2.0/24", f"{OUTSIDE[1]}/128")
        for number, server in enumerate(servers):
            talk(bed.outside, EXTERNAL[number], 80, server)
            assert is_silent(one.netns, EXTERNAL[number], 80)
            talk(one.netns, ADDRESSES[number], 80, server)
        let_in("203.0.113.0/24", "2001:db8:9::/48")
        for number, server in enumerate(servers):
            assert is_silent(bed.outside, EXTERNAL[number], 80)
            talk(bed.outside, NODE[number], 30080, server)
        let_in("203.0.113.0/24")  # of one family: the other has no bounds
        assert is_silent(bed.outside, EXTERNAL[0], 80)
        talk(bed.outside, EXTERNAL[1], 80, servers[1])


def test_endpoints_of_a_silent_node_leave_and_come_back(plain: ServiceBed) -> None:
    bed = plain
    one, two = bed.pods
    found = (*endpoints_of(*one.addresses, node="silent"), *endpoints_of(*two.addresses, node="x"))
    bed.put(WEB, *slices(*found))
    bed.know(Here("here", silent={"silent"}))
    with ExitStack() as stack:
        servers = [listening(stack, pod.netns, 4) for pod in bed.pods]
        for _ in range(8):
            talk(bed.outside, ADDRESSES[0], 80, servers[1])
        bed.know(Here("here", silent={"x"}))
        for _ in range(8):
            talk(bed.outside, ADDRESSES[0], 80, servers[0])


def test_what_is_reached_by_the_overlay_is_asked_with_the_gateway_of_this_node(
    plain: ServiceBed,
) -> None:
    """Others' filters let nothing else through; what comes from a pod keeps its address."""
    bed = plain
    reach_by_overlay(bed)
    bed.put(WEB, *slices(*endpoints_of("10.244.9.9", "fd00:9::9", node="far")))
    for number, address in enumerate(ADDRESSES):
        with ExitStack() as stack:
            server = listening(stack, bed.outside, family(address))
            assert talk(bed.node, address, 80, server) == GATEWAYS[number]
            one = bed.pods[0]
            assert talk(one.netns, address, 80, server) == one.addresses[number]


@pytest.mark.parametrize("is_local", [False, True])
def test_a_pod_of_another_node_that_asks_a_port_of_this_one_has_its_answer_from_it(
    plain: ServiceBed, *, is_local: bool
) -> None:
    """The endpoint is on a third node, which would answer the pod itself."""
    bed = plain
    reach_by_overlay(bed)
    clients = ("10.244.9.10", "fd00:9::10")
    bed.outside.ip(
        f"address add {clients[0]}/32 dev wan0", f"-6 address add {clients[1]}/128 dev wan0 nodad"
    )
    exposure = replace(WEB.exposure, is_local=is_local)
    endpoints = endpoints_of("10.244.9.9", "fd00:9::9", node="far")
    bed.put(replace(WEB, exposure=exposure), *slices(*endpoints))
    for number, client in enumerate(clients):
        with ExitStack() as stack:
            server = listening(stack, bed.outside, family(client))
            for address, port in ((GATEWAYS[number], 30080), (NODE[number], 30080)):
                asking = bed.outside.connected(address, port, source=client)
                here = stack.enter_context(asking)
                there, peer = server.accept()
                stack.callback(there.close)
                assert peer[0] == GATEWAYS[number]
                there.sendall(b"from the server")
                assert here.recv(64) == b"from the server"
            # A pod of this node is answered by it in any case, and may show who it is.
            one = bed.pods[0]
            assert talk(one.netns, GATEWAYS[number], 30080, server) == one.addresses[number]


def reach_by_overlay(bed: ServiceBed) -> None:
    """The host outside stands for another node, with an endpoint at which it listens."""
    bed.outside.ip(
        "address add 10.244.9.9/32 dev wan0", "-6 address add fd00:9::9/128 dev wan0 nodad"
    )
    bed.node.ip(
        "route add 10.244.9.0/24 via 192.0.2.2 table 5148",
        "-6 route add fd00:9::/64 via 2001:db8::2 table 5148",
    )
    bed.outside.ip(
        "route add 10.244.7.0/24 via 192.0.2.1", "-6 route add fd00:7::/64 via 2001:db8::1"
    )


def test_an_agent_that_starts_anew_finds_its_table_and_mends_what_was_changed(
    plain: ServiceBed,
) -> None:
    bed = plain
    one, two = bed.pods
    bed.put(WEB, *slices(*endpoints_of(*two.addresses)))
    handle = bed.node.run("nft", "-a", "list", "table", "inet", "limpet_services")
    bed.part.close()
    bed.part = bed.new_part()
    assert bed.run() == 1  # clears what UDP may have kept
    assert bed.node.run("nft", "-a", "list", "table", "inet", "limpet_services") == handle

    breakages = (
        "flush map inet limpet_services services4",
        "flush map inet limpet_services slots_tcp_4",
        "flush chain inet limpet_services services",
        "flush chain inet limpet_services leave",
        "flush set inet limpet_services cluster4",
        "delete table inet limpet_services",
    )
    for breakage in breakages:
        bed.node.run("nft", breakage)
        bed.part.suspect_nftables()
        assert bed.run() > 0, breakage
        assert bed.run() == 0, breakage
        with ExitStack() as stack:
            talk(one.netns, ADDRESSES[0], 80, listening(stack, two.netns, 4))


def test_rules_of_another_version_are_changed_around_the_elements(plain: ServiceBed) -> None:
    """A flow that begins meanwhile finds its Service: elements that were there are never away."""
    bed = plain
    one, two = bed.pods
    bed.put(WEB, *slices(*endpoints_of(*two.addresses)))
    table = "inet limpet_services"
    before = bed.node.run("nft", "list", "table", *table.split())
    listed = bed.node.run("nft", "list", "map", *table.split(), "services4")
    element = re.search(r"elements = \{ ([^,}]*?) : ([^,}]*)", listed)
    assert element is not None
    key, verdict = element[1].strip(), element[2].strip()
    marked = f'{key} comment "was here" : {verdict}'
    bed.node.run(
        "nft",
        f"delete element {table} services4 {{ {key} }}; "
        f"add element {table} services4 {{ {marked} }}; "
        f"insert rule {table} services counter; "
        f"add chain {table} former {{ type nat hook prerouting priority -90; }}; "
        f"add rule {table} former counter",
    )
    bed.part.close()
    bed.part = bed.new_part()

    assert bed.run() > 0

    after = bed.node.run("nft", "list", "table", *table.split())
    assert after.replace(' comment "was here"', "") == before
    assert "was here" in after
    with ExitStack() as stack:
        talk(one.netns, ADDRESSES[0], 80, listening(stack, two.netns, 4))


def test_connections_are_counted_by_who_answers_them(plain: ServiceBed) -> None:
    """As the kernel tracks them; what was closed is none any more, and others' are not counted."""
    bed = plain
    one, two = bed.pods
    bed.put(WEB, *slices(*endpoints_of(*two.addresses)))
    asked = {
        (NUMBERS[port.protocol], frontend.address, frontend.port)
        for port in WEB.ports
        for frontend in frontends(WEB, port)
    }
    ends = [(NUMBERS["TCP"], packed(each), 8080) for each in two.addresses]

    def counted() -> dict[tuple[int, bytes, int], int]:
        with bed.node.entered():
            return dict(count_connections(asked))

    with ExitStack() as stack:
        for address in ADDRESSES:
            listening(stack, two.netns, family(address))
        stack.enter_context(one.netns.connected(two.addresses[0], 8080))
        stack.enter_context(one.netns.connected(ADDRESSES[0], 80))
        stack.enter_context(bed.outside.connected(NODE[0], 30080))
        closed = [stack.enter_context(bed.node.connected(ADDRESSES[1], 80)) for _ in range(2)]
        wait_until(lambda: counted() == {ends[0]: 2, ends[1]: 2}, "all are counted")
        closed[0].close()
        wait_until(lambda: counted() == {ends[0]: 2, ends[1]: 1}, "the closed one is not")


def test_two_services_that_want_one_address_do_not_break_each_other(plain: ServiceBed) -> None:
    """Neither is older: the first by name has it, and then the other."""
    bed = plain
    one, two = bed.pods
    others = ("10.96.0.8", "fd96::8")
    young = Service("shop", "young", cluster_ips=others, ports=WEB.ports, exposure=WEB.exposure)
    bed.put(WEB, *slices(*endpoints_of(*one.addresses)))
    bed.put(young, *slices(*endpoints_of(*two.addresses), service="young"))
    with ExitStack() as stack:
        servers = [listening(stack, pod.netns, 4) for pod in bed.pods]
        for _ in range(4):
            talk(bed.outside, EXTERNAL[0], 80, servers[0])
        bed.round(list(bed.catalog.remove_service("shop", "web")))
        for _ in range(4):
            talk(bed.outside, EXTERNAL[0], 80, servers[1])
        bed.round(list(bed.catalog.remove_service("shop", "young")))
        assert bed.part.plan().elements == {name: {} for name in bed.part.plan().elements}


def test_addresses_of_ports_that_nobody_named_are_left_alone(plain: ServiceBed) -> None:
    bed = plain
    bed.put(WEB, *slices(*endpoints_of(*bed.pods[1].addresses)))
    with ExitStack() as stack:
        server = listening(stack, bed.node, 4, port=8443)
        talk(bed.outside, NODE[0], 8443, server)
        assert is_refused(bed.node, "127.0.0.1", 30080)
