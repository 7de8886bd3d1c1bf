"""Tracked flows of addresses that pods gave up, and nobody else's."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from ipaddress import ip_address

import pytest

from limpet.datapath.node.pod.attachment import HostPortMapping
from limpet.linux.conntrack import forget_flows, forget_udp
from tests.beds.namespaces import Netns, received
from tests.beds.node_bed import NODE, OUTSIDE, NodeBed, Pod
from tests.waiting import PATIENCE_S

FAMILIES = pytest.mark.parametrize("family", [0, 1], ids=["ipv4", "ipv6"])


@pytest.fixture
def flows(bed: NodeBed) -> Iterator[tuple[NodeBed, Pod, Pod, Netns]]:
    """Two pods, each with flows out of the cluster, to its hostPort, and to the node; all open."""
    outside = bed.outside()
    one = bed.pod(
        "one", 2, ports=(HostPortMapping(8080, 80, "tcp"), HostPortMapping(5300, 53, "udp"))
    )
    two = bed.pod("two", 3, ports=(HostPortMapping(8081, 80, "tcp"),))
    with ExitStack() as open_flows:
        for family, wild in ((0, "0.0.0.0"), (1, "::")):
            version = 6 if family else 4
            far = open_flows.enter_context(outside.listening(wild, 99))
            for pod, port in ((one, 8080), (two, 8081)):
                server = open_flows.enter_context(pod.netns.listening(wild, 80))
                for client, address, at, listener in (
                    (pod.netns, OUTSIDE[family], 99, far),
                    (outside, NODE[family], port, server),
                    (bed.node, pod.addresses[family], 80, server),
                ):
                    open_flows.enter_context(client.connected(address, at))
                    open_flows.enter_context(listener.accept()[0])
            asker = open_flows.enter_context(outside.open_socket(version, socket.SOCK_DGRAM))
            asker.sendto(b"question", (NODE[family], 5300))
        yield bed, one, two, outside


def tracked(node: Netns) -> set[str]:
    """Flows with both their tuples, without what changes by itself."""
    lines = [
        line
        for family in ("ipv4", "ipv6")
        for line in node.run("conntrack", "-L", "-f", family).splitlines()
        if re.match(r"tcp|udp", line)
    ]
    return {" ".join(re.findall(r"^\w+|(?:src|dst|sport|dport)=\S+", line)) for line in lines}


def of(address: str, lines: set[str]) -> set[str]:
    return {line for line in lines if f"={address} " in f"{line} "}


@FAMILIES
def test_flows_of_an_address_go_and_all_others_stay(
    flows: tuple[NodeBed, Pod, Pod, Netns], family: int
) -> None:
    bed, one, _two, _outside = flows
    before = tracked(bed.node)
    address = one.addresses[family]
    # Out of the cluster, in by a hostPort over TCP and UDP, and from the node: the last but one
    # know the address only from the answer's direction.
    assert len(of(address, before)) == 4

    with bed.node.entered():
        assert forget_flows([ip_address(address)]) == 4

    assert tracked(bed.node) == before - of(address, before)


def test_addresses_of_both_families_go_at_once(flows: tuple[NodeBed, Pod, Pod, Netns]) -> None:
    bed, one, two, _outside = flows
    both = [ip_address(address) for address in (*one.addresses, *two.addresses)]

    with bed.node.entered():
        assert forget_flows(both) == 4 + 4 + 3 + 3
        assert forget_flows(both) == 0

    assert not [line for address in both for line in of(str(address), tracked(bed.node))]


def test_an_address_without_flows_costs_nobody_anything(
    flows: tuple[NodeBed, Pod, Pod, Netns],
) -> None:
    bed = flows[0]
    before = tracked(bed.node)

    with bed.node.entered():
        # A near one; signs of regular expressions; the header of every message's attributes for a
        # source address and a port.
        others = ["10.244.7.20", "46.46.46.46", "42.43.63.92", "8.0.1.0", "6.0.2.0", "fd00:7::20"]
        assert forget_flows([ip_address(address) for address in others]) == 0
        assert forget_flows([]) == 0

    assert tracked(bed.node) == before


def test_a_connection_goes_on_after_another_pods_flows_are_forgotten(bed: NodeBed) -> None:
    outside, one, two = bed.outside(), bed.pod("one", 2), bed.pod("two", 3)
    with outside.listening("0.0.0.0", 99) as server, one.netns.connected(OUTSIDE[0], 99) as kept:
        there = server.accept()[0]
        with two.netns.connected(OUTSIDE[0], 99), server.accept()[0], bed.node.entered():
            assert forget_flows([ip_address(two.addresses[0])]) == 1
        with there:
            kept.sendall(b"still here")
            there.settimeout(PATIENCE_S)
            assert there.recv(64) == b"still here"


def test_a_new_pod_does_not_get_what_was_meant_for_the_old_one(bed: NodeBed) -> None:
    # A client that goes on sending to a hostPort from one port: as long as the flow is tracked, its
    # packets go to the address that served the port before.
    outside = bed.outside()
    old = bed.pod("old", 2, ports=(HostPortMapping(5300, 53, "udp"),))
    with outside.open_socket(4, socket.SOCK_DGRAM) as client:
        client.bind(("192.0.2.2", 40000))
        with old.netns.open_socket(4, socket.SOCK_DGRAM) as server:
            server.settimeout(PATIENCE_S)
            server.bind(("0.0.0.0", 53))
            client.sendto(b"for the old one", (NODE[0], 5300))
            assert server.recv(64) == b"for the old one"
        del bed.pods["old"]
        new = bed.pod("new", 3, ports=(HostPortMapping(5300, 53, "udp"),))

        with bed.node.entered():
            assert forget_flows([ip_address(old.addresses[0])]) == 1

        with new.netns.open_socket(4, socket.SOCK_DGRAM) as server:
            server.settimeout(PATIENCE_S)
            server.bind(("0.0.0.0", 53))
            client.sendto(b"for the new one", (NODE[0], 5300))
            assert server.recv(64) == b"for the new one"


def test_flows_to_an_address_that_has_the_number_of_a_port_of_the_node_stay(bed: NodeBed) -> None:
    """As those to a Service's do when a pod gets a hostPort with the number of its port."""
    outside = bed.outside()
    pod = bed.pod("one", 2, ports=(HostPortMapping(5300, 53, "udp"),))
    outside.ip("route add 198.51.100.7/32 via 192.0.2.1")
    dnat = "ip daddr 198.51.100.7 udp dport 5300 dnat ip to 10.244.7.2:53"
    hook = "type nat hook prerouting priority -110;"
    bed.node.run(
        "nft", f"add table inet s; add chain inet s p {{ {hook} }}; add rule inet s p {dnat}"
    )
    with (
        outside.open_socket(4, socket.SOCK_DGRAM) as client,
        pod.netns.open_socket(4, socket.SOCK_DGRAM) as server,
    ):
        server.bind(("0.0.0.0", 53))
        for address in ("198.51.100.7", NODE[0]):
            words = address.encode()
            received(server, words, partial(client.sendto, words, (address, 5300)))

    with bed.node.entered():
        assert forget_udp({(b"", 5300): {(ip_address("10.244.7.9").packed, 53)}}) == 1
    assert of("198.51.100.7", tracked(bed.node))


def test_a_thousand_flows_are_forgotten_in_a_few_requests(bed: NodeBed) -> None:
    pod = bed.pod("one", 2)
    with bed.node.open_socket(4, socket.SOCK_DGRAM) as sender:
        for port in range(1, 1001):
            sender.sendto(b"", (pod.addresses[0], port))

    with bed.node.entered():
        assert forget_flows([ip_address(pod.addresses[0])]) == 1000
