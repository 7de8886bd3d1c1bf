"""Both backends in one kernel: whom real connections and datagrams come to, Service by Service.

A socket belongs to the cgroup in which it was made, so the test is a client of the programs within
it, and one of the table alone outside.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from ipaddress import ip_address
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

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
from tests.beds.namespaces import Netns, NetnsFactory
from tests.beds.node_bed import NODE, OUTSIDE, STATE
from tests.beds.services.service_bed import ADDRESSES, EXTERNAL, endpoints_of
from tests.beds.services.service_bed import slices as pieces_of
from tests.beds.services.socket_bed import SocketBed
from tests.service_oracle import Answer, Question, answer
from tests.waiting import PATIENCE_S

CLUSTER = (*STATE.cluster_cidrs, *STATE.segments)
SHIFTS = (0, 1, 2)
SERVED = tuple(("TCP", 8080 + n) for n in SHIFTS) + tuple(("UDP", 5353 + n) for n in SHIFTS)
PORTS = (ServicePort("http", "TCP", 80, 30080), ServicePort("ask", "UDP", 53, 30053))
KINDS = {"TCP": socket.SOCK_STREAM, "UDP": socket.SOCK_DGRAM}
_TIMES = 3
_DROPPED_S = 0.1
Servers = dict[tuple[str, int], socket.socket]


@pytest.fixture
def bed(make_netns: NetnsFactory) -> Iterator[SocketBed]:
    bed = SocketBed(make_netns)
    for path in ("net/ipv4/icmp_ratelimit", "net/ipv6/icmp/ratelimit"):
        bed.node.sysctl(path, "0")  # who is refused has to hear of it each time
    yield bed
    bed.close()


@pytest.fixture
def servers(bed: SocketBed) -> Iterator[Servers]:
    """Of every pod, at every port that an endpoint may have."""
    with ExitStack() as stack:
        found: Servers = {}
        for pod in bed.pods:
            for address in pod.addresses:
                for protocol, port in SERVED:
                    version = ip_address(address).version
                    made = stack.enter_context(pod.netns.open_socket(version, KINDS[protocol]))
                    made.bind((address, port))
                    if protocol == "TCP":
                        made.listen(64)
                    found[address, port] = made
        yield found


conditions = st.sampled_from((READY | SERVING, SERVING | TERMINATING, TERMINATING, 0))
ends = st.tuples(conditions, st.sampled_from(("here", "far", "")))
worlds = st.fixed_dictionaries(
    {
        "families": st.sampled_from((ADDRESSES, ADDRESSES, ADDRESSES[:1], ADDRESSES[1:])),
        "affinity_s": st.sampled_from((0, 0, 600)),
        "is_internal_local": st.booleans(),
        "is_local": st.booleans(),
        "ranges": st.sampled_from(((), ("192.0.2.0/24",), ("198.51.100.0/24", "2001:db8:9::/64"))),
        "distribution": st.sampled_from(("", "Even", "PreferSameNode")),
        "ends": st.lists(ends, min_size=2, max_size=2),
        "shifts": st.sampled_from(((0,), (1,), (0, 1), SHIFTS, SHIFTS)),
        "silent": st.sampled_from(((), ("far",))),
    }
)


@settings(
    max_examples=10,
    deadline=None,
    derandomize=True,
    phases=[
        Phase.generate
    ],  # a failing one is not looked for in smaller worlds: each takes a second
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(worlds)
def test_real_sockets_are_served_alike_by_both_backends(
    bed: SocketBed, servers: Servers, world: dict[str, Any]
) -> None:
    service, slices, here = _of(bed, world)
    bed.put(service, *slices)
    bed.know(here)
    assert bed.why_not == ""

    def wanted(asked: Question) -> Answer:
        return answer(asked, [service], slices, here, CLUSTER)

    for number, address in enumerate(ADDRESSES):
        for port in PORTS:
            for backend in (nullcontext(), bed.cgroup.left()):
                with backend:
                    for client, source in (
                        (bed.pods[0].netns, bed.pods[0].addresses[number]),
                        (bed.node, NODE[number]),
                    ):
                        asked = Question(
                            source, address, port.protocol, port.port, client is bed.node
                        )
                        if address in service.addresses:
                            _check(client, asked, wanted(asked), servers)
            for address_there, number_there in (
                (EXTERNAL[number], port.port),
                (NODE[number], port.node_port),
            ):
                asked = Question(
                    OUTSIDE[number], address_there, port.protocol, number_there,
                    is_at_node=address_there in NODE,
                )  # fmt: skip
                if wanted(asked) != "let be":
                    _check(bed.outside, asked, wanted(asked), servers)


def test_packets_to_a_cluster_address_reach_its_service_by_both_backends_though_another_asks_first(
    bed: SocketBed, servers: Servers
) -> None:
    """As CVE-2020-8554: who may write a Service names another's address as an external one. Each
    line about it counts as others', of which a log has few."""
    one, two = bed.pods
    ports = (ServicePort("http", "TCP", 80), ServicePort("ask", "UDP", 53))
    thief = Service(
        *("shop", "a"),
        cluster_ips=("10.96.0.66", "fd96::66"),
        ports=ports,
        exposure=Exposure(external_ips=ADDRESSES),
    )
    victim = Service("shop", "web", cluster_ips=ADDRESSES, ports=ports)
    bed.put(thief, *pieces_of(*endpoints_of(*one.addresses), service="a"))
    for address in ADDRESSES:
        taken = Question(OUTSIDE[ADDRESSES.index(address)], address, "TCP", 80)
        assert _ask(bed.outside, taken, servers, PATIENCE_S) in {(x, 8080) for x in one.addresses}
    with capture_logs() as logs:
        bed.put(victim, *pieces_of(*endpoints_of(*two.addresses)))
    assert bed.why_not == ""
    (line,) = (each for each in logs if each["event"] == "a Service is not served as it asks")
    assert line["service"] == "shop/a"
    assert line["why"].endswith("is the cluster address of shop/web")
    assert line["by_others"] is True

    for number, address in enumerate(ADDRESSES):
        for port, at in zip(ports, (8080, 5353), strict=True):
            for backend in (nullcontext(), bed.cgroup.left()):
                with backend:
                    for client, source in ((one.netns, one), (bed.node, None)):
                        asked = Question(
                            source.addresses[number] if source else NODE[number],
                            address, port.protocol, port.port, client is bed.node,
                        )  # fmt: skip
                        got = _ask(client, asked, servers, PATIENCE_S)
                        assert got == (two.addresses[number], at)
            asked = Question(OUTSIDE[number], address, port.protocol, port.port)
            assert _ask(bed.outside, asked, servers, PATIENCE_S) == (two.addresses[number], at)


def _of(bed: SocketBed, world: dict[str, Any]) -> tuple[Service, tuple[EndpointSlice, ...], Here]:
    service = Service(
        "shop",
        "web",
        cluster_ips=world["families"],
        ports=PORTS,
        exposure=Exposure(
            load_balancer_ips=EXTERNAL, source_ranges=world["ranges"], is_local=world["is_local"]
        ),
        affinity_s=world["affinity_s"],
        is_internal_local=world["is_internal_local"],
        distribution=world["distribution"],
    )
    slices = tuple(
        EndpointSlice(
            "shop",
            f"web-{version}-{shift}",
            "web",
            version,
            (EndpointPort("http", "TCP", 8080 + shift), EndpointPort("ask", "UDP", 5353 + shift)),
            tuple(
                Endpoint(pod.addresses[number], state, node)
                for pod, (state, node) in zip(bed.pods, world["ends"], strict=True)
            )
            if shift in world["shifts"]
            else (),
        )
        for number, version in enumerate((4, 6))
        for shift in SHIFTS
    )
    here = Here("here", silent=frozenset(world["silent"]), distances={"far": 1})
    return service, slices, here


def _check(client: Netns, asked: Question, wanted: Answer, servers: Servers) -> None:
    for _ in range(_TIMES if isinstance(wanted, dict) else 1):
        got = _ask(client, asked, servers, _DROPPED_S if wanted == "dropped" else PATIENCE_S)
        if isinstance(wanted, dict):
            assert got in wanted, asked
        else:
            assert got == wanted, asked


def _ask(
    client: Netns, asked: Question, servers: Servers, patience_s: float
) -> tuple[str, int] | str:
    """Who is reached; what it sent is taken."""
    with client.open_socket(asked.version, KINDS[asked.protocol]) as made:
        made.settimeout(patience_s)
        try:
            made.connect((asked.address, asked.port))
            if asked.protocol == "UDP":
                made.send(b"question")
                ready, _, _ = select.select([made, *servers.values()], [], [], patience_s)
                if made in ready:
                    made.recv(64)  # it is an error
            else:
                ready, _, _ = select.select(list(servers.values()), [], [], PATIENCE_S)
        except (ConnectionRefusedError, PermissionError):  # the latter: UDP of the node itself
            return "refused"
        except TimeoutError:
            return "dropped"
    if not ready:
        return "dropped"
    (server,) = ready
    if asked.protocol == "TCP":
        server.accept()[0].close()
    else:
        server.recv(64)
    return next(end for end, each in servers.items() if each is server)
