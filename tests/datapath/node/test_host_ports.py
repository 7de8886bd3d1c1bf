"""HostPorts beside what the node needs itself."""

from __future__ import annotations

import socket
from dataclasses import replace
from functools import partial
from ipaddress import ip_address

import pytest

from limpet.datapath.node.pod.attachment import HostPortMapping
from tests.beds.namespaces import NetnsFactory, received, talk
from tests.beds.node_bed import GATEWAYS, NODE, STATE, NodeBed

BOTH = (HostPortMapping(53, 53, "udp"), HostPortMapping(53, 53, "tcp"))


def test_a_host_port_takes_nothing_that_other_nodes_send(make_netns: NetnsFactory) -> None:
    """A pod would be given others' packets, as they come in VXLAN."""
    bed = NodeBed(
        make_netns, replace(STATE, own_ports=frozenset({("UDP", 7471, 7471), ("UDP", 8472, 8472)}))
    )
    outside = bed.outside()
    pod = bed.pod("one", 2, ports=tuple(HostPortMapping(n, 53, "udp") for n in (8471, 8472)))
    with (
        bed.node.open_socket(4, socket.SOCK_DGRAM) as node,
        pod.netns.open_socket(4, socket.SOCK_DGRAM) as server,
        outside.open_socket(4, socket.SOCK_DGRAM) as sender,
    ):
        for heard, at, port in ((node, 8472, 8472), (server, 53, 8471)):
            heard.bind(("0.0.0.0", at))
            received(heard, b"a packet", partial(sender.sendto, b"a packet", (NODE[0], port)))
    bed.close()


def test_a_host_port_at_ipv6_localhost_answers_who_asks_from_another_address_of_the_node(
    make_netns: NetnsFactory,
) -> None:
    """So Kubernetes' conformance suite asks in clusters whose first family is IPv6."""
    bed = NodeBed(make_netns)
    outside = bed.outside()
    pod = bed.pod("one", 2, ports=(HostPortMapping(8080, 80, "tcp", ip_address("::1")),))
    with pod.netns.listening("::", 80) as server:
        with bed.node.connected("::1", 8080, source=NODE[1]) as client:
            accepted, peer = server.accept()
            with accepted:
                accepted.sendall(b"from the pod")
                assert client.recv(64) == b"from the pod"
                assert peer[0] == NODE[1]
        for asks, address in ((bed.node, "::1"), (outside, NODE[1])):
            with pytest.raises(ConnectionRefusedError):
                asks.connected(address, 8080).__enter__()
    bed.close()


@pytest.mark.parametrize("at", NODE)
def test_a_host_port_takes_no_port_by_which_the_node_itself_is_reached(
    make_netns: NetnsFactory, at: str
) -> None:
    """A relay is asked at 443, and has an ingress among its pods."""
    bed = NodeBed(make_netns, replace(STATE, own_ports=frozenset({("TCP", 443, 443)})))
    outside = bed.outside()
    ports = (443, 22, 10250, 8443)
    pod = bed.pod("one", 2, ports=tuple(HostPortMapping(n, 80, "tcp") for n in ports))
    for port in ports[:3]:
        for place in (outside, pod.netns):
            with bed.node.listening(at, port) as server:
                talk(place, at, port, server)
    with pod.netns.listening("0.0.0.0" if ":" not in at else "::", 80) as server:
        talk(outside, at, ports[3], server)
    bed.close()


@pytest.mark.parametrize("version", [4, 6])
def test_a_host_port_takes_no_question_that_is_for_the_node(bed: NodeBed, version: int) -> None:
    """A name server for the LAN may be in a pod."""
    own, gateway = {4: "169.254.20.10", 6: "fd5b:9ad1:7e3c::53"}[version], GATEWAYS[version == 6]
    bed.names_at = (ip_address(own),)
    bed.node.ip("link add names type bridge", "link set names up")
    bed.node.ip(f"address add {own}/{32 if version == 4 else 128} dev names nodad")
    pod, other = bed.pod("one", 2, ports=BOTH), bed.pod("two", 3)

    for place in (other.netns, pod.netns, bed.node):
        with (
            bed.node.open_socket(version, socket.SOCK_DGRAM) as names,
            bed.node.listening(own, 53) as names_by_tcp,
            pod.netns.open_socket(version, socket.SOCK_DGRAM) as server,
            place.open_socket(version, socket.SOCK_DGRAM) as asker,
        ):
            names.bind((own, 53))
            server.bind(("0.0.0.0" if version == 4 else "::", 53))
            received(names, b"of a pod", partial(asker.sendto, b"of a pod", (own, 53)))
            talk(place, own, 53, names_by_tcp)
            asks = partial(asker.sendto, b"of the lan", (gateway, 53))
            received(server, b"of the lan", asks)
