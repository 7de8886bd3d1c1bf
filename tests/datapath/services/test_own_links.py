"""Services and what the node has beside its links to peers: a VPN, a second network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from msgspec.structs import replace

from limpet.services.values import EndpointPort, Exposure, ServicePort
from tests.beds.namespaces import NetnsFactory, connect_namespaces, is_silent, talk
from tests.beds.node_bed import NODE, OUTSIDE
from tests.beds.services.service_bed import (
    ADDRESSES,
    EXTERNAL,
    WEB,
    ServiceBed,
    endpoints_of,
    slices,
)
from tests.datapath.services.test_services_part import accept, family, is_refused, listening

BY_VPN = ("100.64.0.5", "fd7a::5")


@pytest.fixture
def bed(make_netns: NetnsFactory) -> Iterator[ServiceBed]:
    bed = ServiceBed(make_netns)
    yield bed
    bed.close()


def test_no_service_takes_a_port_that_the_node_needs_at_an_address_of_whatever_link(
    bed: ServiceBed,
) -> None:
    """A tenant would have answered for ssh at the address by which the node is administered."""
    one, _ = bed.pods
    bed.outside.ip(
        "route add 100.64.0.0/10 via 192.0.2.1", "-6 route add fd7a::/16 via 2001:db8::1"
    )
    thief = replace(
        WEB,
        ports=(ServicePort("ssh", "TCP", 22), ServicePort("http", "TCP", 80)),
        exposure=Exposure(external_ips=BY_VPN),
    )
    ports = (EndpointPort("ssh", "TCP", 2222), EndpointPort("http", "TCP", 8080))
    pieces = [replace(each, ports=ports) for each in slices(*endpoints_of(*one.addresses))]
    bed.put(thief, *pieces)
    with ExitStack() as stack:
        pod = {version: listening(stack, one.netns, version, 8080) for version in (4, 6)}
        # Before the node has it, it is an address like any other.
        for version, address in zip((4, 6), BY_VPN, strict=True):
            talk(bed.outside, address, 80, pod[version])
        bed.node.ip(
            "link add vpn0 type bridge",
            "link set vpn0 up",
            *(f"address add {each} dev vpn0 nodad" for each in BY_VPN),
        )
        bed.run()
        for version, address in zip((4, 6), BY_VPN, strict=True):
            assert is_refused(bed.outside, address, 22)
            with ExitStack() as ssh:
                talk(bed.outside, address, 22, listening(ssh, bed.node, version, 22))
            talk(bed.outside, address, 80, pod[version])
        assert "this node's, which needs port 22/TCP itself" in bed.part.troubles[WEB.key]
        bed.node.ip("link delete vpn0")
        bed.run()
        assert bed.part.troubles == {}


def test_no_load_balancer_takes_ssh_at_an_address_of_the_node_and_one_beside_it_is_its_own(
    bed: ServiceBed,
) -> None:
    """Those of k3s say the nodes' own addresses; kube-vip puts another there for a Service."""
    one, _ = bed.pods
    beside = ("192.0.2.80", "2001:db8::80")
    # As leases of DHCPv6 are, and addresses of nodes that routers are told of.
    leased, routed = ("192.0.2.77", "2001:db8::77"), ("100.64.0.5", "fd7a::5")
    ends = "valid_lft 3600 preferred_lft 3600"
    bed.node.ip(
        *(f"address add {each} dev up0 nodad" for each in beside),
        *(f"address add {each} dev up0 nodad {ends}" for each in leased),
        *(f"address add {each} dev lo" for each in routed),
    )
    bed.outside.ip(
        "route add 100.64.0.0/10 via 192.0.2.1", "-6 route add fd7a::/16 via 2001:db8::1"
    )
    thief = replace(
        WEB,
        ports=(ServicePort("ssh", "TCP", 22), ServicePort("http", "TCP", 80)),
        exposure=Exposure(load_balancer_ips=(*NODE, *beside, *leased, *routed)),
    )
    ports = (EndpointPort("ssh", "TCP", 8080), EndpointPort("http", "TCP", 8080))
    bed.put(thief, *(replace(x, ports=ports) for x in slices(*endpoints_of(*one.addresses))))
    with ExitStack() as stack:
        pod = {version: listening(stack, one.netns, version, 8080) for version in (4, 6)}
        for version, vip in zip((4, 6), beside, strict=True):
            talk(bed.outside, vip, 80, pod[version])
            talk(bed.outside, vip, 22, pod[version])
            ssh = listening(stack, bed.node, version, 22)
            for each in (NODE, leased, routed):
                own = each[version == 6]
                talk(bed.outside, own, 80, pod[version])
                talk(bed.outside, own, 22, ssh)


def test_a_client_stays_with_an_endpoint_that_is_a_process_of_the_node(bed: ServiceBed) -> None:
    """As a pod of the node's own network: what goes there never leaves the node."""
    one, two = bed.pods
    sticky = replace(WEB, affinity_s=600, distribution="Even")
    with ExitStack() as stack:
        for number, address in enumerate(ADDRESSES):
            bed.put(sticky, *slices(*endpoints_of(NODE[number])))
            servers = [listening(stack, netns, family(address)) for netns in (two.netns, bed.node)]
            asked = [(bed.outside, EXTERNAL[number], 80), (bed.outside, NODE[number], 30080)]
            asked += [(who, address, 80) for who in (bed.outside, one.netns, bed.node)]
            for who, target, port in asked:
                stack.enter_context(who.connected(target, port))
            assert len(accept(stack, servers, len(asked))[1]) == len(asked)
            bed.put(*slices(*endpoints_of(NODE[number], two.addresses[number])))
            for who, target, port in asked * 4:
                stack.enter_context(who.connected(target, port))
            assert [len(each) for each in accept(stack, servers, len(asked) * 4)] == [0, 20]


def test_a_process_of_the_node_has_an_address_that_the_endpoint_can_answer(
    bed: ServiceBed, make_netns: NetnsFactory
) -> None:
    """It chose its address for the Service's, by the default route; the endpoint is elsewhere."""
    beside = make_netns("beside")
    connect_namespaces(bed.node, "lan1", beside, "lan0")
    bed.node.ip(
        "address add 203.0.113.1/24 dev lan1", "address add 2001:db8:2::1/64 dev lan1 nodad"
    )
    beside.ip("address add 203.0.113.2/24 dev lan0", "address add 2001:db8:2::2/64 dev lan0 nodad")
    # Of the addresses of the default route's link, IPv6 prefers this one for a cluster address.
    bed.node.ip("address add fd00:99::1/64 dev up0 nodad")
    bed.put(WEB, *slices(*endpoints_of("203.0.113.2", "2001:db8:2::2", node="")))
    with ExitStack() as stack:
        for number, address in enumerate(ADDRESSES):
            server = listening(stack, beside, family(address))
            for target, port in ((address, 80), (EXTERNAL[number], 80)):
                seen = talk(bed.node, target, port, server)
                assert seen == ("203.0.113.1", "2001:db8:2::1")[number]
        bed.put(*slices(*endpoints_of(*OUTSIDE, node="")))
        for number, address in enumerate(ADDRESSES):
            server = listening(stack, bed.outside, family(address))
            for target, port in ((address, 80), (EXTERNAL[number], 80)):
                assert talk(bed.node, target, port, server) == NODE[number]


def test_a_process_of_the_node_keeps_the_address_of_the_link_by_which_it_asks(
    bed: ServiceBed,
) -> None:
    """What has another put in would end with the link, though that came back at once."""
    bed.node.ip("address add 192.0.2.9/24 dev up0", "address add 2001:db8::9/64 dev up0 nodad")
    bed.put(WEB, *slices(*endpoints_of(*OUTSIDE, node="")))
    with ExitStack() as stack:
        for number, source in enumerate(("192.0.2.9", "2001:db8::9")):
            server = listening(stack, bed.outside, family(source))
            client = bed.node.connected(ADDRESSES[number], 80, source=source)
            stack.enter_context(client)
            accepted, peer = server.accept()
            with accepted:
                assert peer[0] == source


def test_a_process_of_the_node_may_ask_a_load_balancers_address_that_stands_on_the_node(
    bed: ServiceBed,
) -> None:
    """As kube-vip and others put it there: the process comes with that address itself."""
    (two,) = bed.pods[1:]
    bed.node.ip(
        "link add vip0 type bridge",
        "link set vip0 up",
        *(f"address add {each} dev vip0 nodad" for each in EXTERNAL),
    )

    def let_in(*ranges: str) -> None:
        exposure = Exposure(load_balancer_ips=EXTERNAL, source_ranges=ranges)
        bed.put(replace(WEB, exposure=exposure), *slices(*endpoints_of(*two.addresses)))

    with ExitStack() as stack:
        servers = [listening(stack, two.netns, family(each)) for each in EXTERNAL]
        let_in(*(f"{each}/{length}" for each, length in zip(NODE, (32, 128), strict=True)))
        for address, server in zip(EXTERNAL, servers, strict=True):
            talk(bed.node, address, 80, server)
            assert is_silent(bed.outside, address, 80)
        let_in("203.0.113.0/24", "2001:db8:ffff::/48")
        for address in EXTERNAL:
            assert is_silent(bed.node, address, 80)
