"""Which endpoints a Service's connections go to, counted by real connections, by both backends:
objects of Kubernetes are read as an API server tells them."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import msgspec
import pytest

from limpet.kubernetes.kinds.services import (
    DISTRIBUTION_ANNOTATION,
    SERVICE_LABEL,
    ServiceView,
    SliceView,
    service_of,
    slice_of,
)
from limpet.services.rotation import MOST_SHARE, Here
from limpet.services.values import EndpointSlice, Service
from tests.beds.namespaces import Netns, NetnsFactory
from tests.beds.services.service_bed import ADDRESSES, ServiceBed
from tests.beds.services.socket_bed import SocketBed
from tests.waiting import PATIENCE_S

DRAWN = 440
"""Connections that are counted."""
FAR = 7
"""Endpoints beside one that is near: too many for it to carry all of their load alone."""
BACKLOG = 2 * DRAWN


@pytest.fixture(params=[ServiceBed, SocketBed], ids=["nftables", "ebpf"])
def bed(make_netns: NetnsFactory, request: pytest.FixtureRequest) -> Iterator[ServiceBed]:
    made: ServiceBed = request.param(make_netns)
    yield made
    if isinstance(made, SocketBed):
        assert made.why_not == ""
    made.close()


def service(annotation: str = "", *, publish_not_ready: bool = False) -> Service:
    told = {
        "metadata": {
            "namespace": "shop",
            "name": "web",
            "annotations": {DISTRIBUTION_ANNOTATION: annotation} if annotation else {},
        },
        "spec": {
            "clusterIPs": list(ADDRESSES),
            "ports": [{"name": "http", "protocol": "TCP", "port": 80}],
            "publishNotReadyAddresses": publish_not_ready,
        },
    }
    return service_of(msgspec.convert(told, ServiceView))


def piece(
    name: str, address: str, port: int, *, node: str, ready: bool = True, serving: bool = True
) -> EndpointSlice:
    conditions = {"ready": ready, "serving": serving, "terminating": False}
    endpoint = {"addresses": [address], "conditions": conditions, "nodeName": node}
    told = {
        "metadata": {
            "namespace": "shop",
            "name": name,
            "labels": {SERVICE_LABEL: "web"},
        },
        "addressType": "IPv6" if ":" in address else "IPv4",
        "endpoints": [endpoint],
        "ports": [{"name": "http", "protocol": "TCP", "port": port}],
    }
    return slice_of(msgspec.convert(told, SliceView))


def listening(stack: ExitStack, netns: Netns, address: str, port: int) -> socket.socket:
    made = stack.enter_context(netns.open_socket(6 if ":" in address else 4, socket.SOCK_STREAM))
    made.bind((address, port))
    made.listen(BACKLOG)
    made.setblocking(False)
    return made


def draw(client: Netns, address: str, servers: list[socket.socket], times: int) -> list[int]:
    """How many of so many connections each server got."""
    for _ in range(times):
        with client.connected(address, 80):
            pass
    got = [0] * len(servers)
    while sum(got) < times:
        ready, _, _ = select.select(servers, [], [], PATIENCE_S)
        assert ready, "a connection did not come"
        for server in ready:
            server.accept()[0].close()
            got[servers.index(server)] += 1
    return got


@pytest.mark.parametrize("number", [0, 1], ids=["ipv4", "ipv6"])
def test_endpoints_that_are_not_ready_serve_where_their_service_publishes_them(
    bed: ServiceBed, number: int
) -> None:
    """The control plane calls them ready then, and says beside it that they do not serve."""
    one, two = bed.pods
    address, end = ADDRESSES[number], two.addresses[number]
    bed.put(service(), piece("web-1", end, 8080, node="here", ready=False, serving=False))
    with ExitStack() as stack:
        server = listening(stack, two.netns, end, 8080)
        for client in (one.netns, bed.node):
            with pytest.raises(ConnectionRefusedError), client.connected(address, 80):
                pass
        bed.put(
            service(publish_not_ready=True), piece("web-1", end, 8080, node="here", serving=False)
        )
        for client in (one.netns, bed.node):
            assert draw(client, address, [server], 8) == [8]
        bed.put(service(), piece("web-1", end, 8080, node="here", ready=False, serving=False))
        with pytest.raises(ConnectionRefusedError), one.netns.connected(address, 80):
            pass


def test_the_annotation_has_far_endpoints_drawn_as_often_as_near_ones(bed: ServiceBed) -> None:
    """Of 64 connections an even draw leaves none to one of two by chance in 2^63 runs."""
    one, two = bed.pods
    bed.know(Here("here", distances={"near": 1, "far": 2}))
    for number, address in enumerate(ADDRESSES):
        ends = (one.addresses[number], two.addresses[number])
        pieces = [
            piece(f"web-{number}-{node}", end, 8080, node=node)
            for node, end in zip(("near", "far"), ends, strict=True)
        ]
        with ExitStack() as stack:
            servers = [
                listening(stack, pod.netns, end, 8080)
                for pod, end in zip(bed.pods, ends, strict=True)
            ]
            for client in (one.netns, bed.node):
                bed.put(service(), *pieces)
                assert draw(client, address, servers, 64) == [64, 0]
                bed.put(service("Even"))
                assert min(draw(client, address, servers, 64)) > 0
                bed.put(service("PreferSameNode"))
                assert draw(client, address, servers, 64) == [64, 0], "none is on this node"
                bed.put(service())
                assert draw(client, address, servers, 64) == [64, 0]


def test_one_near_endpoint_of_many_gets_some_times_the_share_of_each_far_one_and_not_all(
    bed: ServiceBed,
) -> None:
    """It is drawn four times as often as each of seven others: 160 of 440, give or take 10.1. The
    bounds are seven such deviations away, those of each far one (40, give or take 6) at least six:
    by chance a run in a thousand million fails."""
    one, two = bed.pods
    bed.know(Here("here", distances={"near": 1, "far": 2}))
    for number, address in enumerate(ADDRESSES):
        near, far = one.addresses[number], two.addresses[number]
        ports = range(8081, 8081 + FAR)
        bed.put(
            service(),
            piece(f"near-{number}", near, 8080, node="near"),
            *(piece(f"far-{number}-{port}", far, port, node="far") for port in ports),
        )
        with ExitStack() as stack:
            servers = [listening(stack, one.netns, near, 8080)]
            servers += [listening(stack, two.netns, far, port) for port in ports]
            got = draw(one.netns, address, servers, DRAWN)

            share = DRAWN * MOST_SHARE / (MOST_SHARE + FAR)
            assert share - 71 < got[0] < share + 71, got
            assert min(got[1:]) > 3, got
            assert max(got[1:]) < 90, got


def test_addresses_that_ipvs_has_given_to_the_node_lead_to_endpoints_all_the_same(
    bed: ServiceBed,
) -> None:
    """kube-proxy's ipvs mode gives each cluster address to a link of the node and leaves it there
    until somebody cleans up, so that the node's own processes would ask by that very source."""
    one, two = bed.pods
    bed.node.ip(
        "link add kube-ipvs0 type bridge",  # a dummy link in the field, which not every kernel has
        "link set kube-ipvs0 up",
        *(f"address add {each} dev kube-ipvs0 nodad" for each in ADDRESSES),
    )
    for number, address in enumerate(ADDRESSES):
        end = two.addresses[number]
        bed.put(service(), piece(f"web-{number}", end, 8080, node="here"))
        with ExitStack() as stack:
            server = listening(stack, two.netns, end, 8080)
            for client in (one.netns, two.netns, bed.node, bed.outside):
                assert draw(client, address, [server], 4) == [4]
