"""More of what kube-proxy does, by real packets: SCTP, ports of the node at some of its addresses,
clients that stay for a while; Services with many endpoints."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import replace as replace_surroundings
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
from msgspec.structs import replace

from limpet.base.errors import LimpetError
from limpet.datapath.services.apply import ServicesKernel
from limpet.datapath.services.kube_proxy import HALF_CLOSED, HALF_CLOSED_S
from limpet.datapath.services.part import ServicesPart
from limpet.datapath.services.plan import Planner
from limpet.datapath.teardown import remove_kernel_state
from limpet.services.catalog import Catalog
from limpet.services.values import (
    Endpoint,
    EndpointPort,
    EndpointSlice,
    Exposure,
    Service,
    ServicePort,
)
from tests.beds.namespaces import Netns, NetnsFactory, talk
from tests.beds.node_bed import GATEWAYS, NODE, OUTSIDE
from tests.beds.policies.policy_bed import init_ack_of, packet_of, raw_socket
from tests.beds.services.service_bed import (
    ADDRESSES,
    EXTERNAL,
    WEB,
    ServiceBed,
    endpoints_of,
    slices,
)
from tests.beds.services.socket_bed import SocketBed
from tests.datapath.services.test_services_part import (
    accept,
    family,
    is_refused,
    listening,
    reach_by_overlay,
)
from tests.waiting import PATIENCE_S, wait_until

TABLE = ("inet", "limpet_services")
RANGES = (ip_network("10.96.0.0/16"), ip_network("fd96::/112"))
ELSEWHERE = ("203.0.113.9", "2001:db8:9::9")
"""Of the host outside, and in no prefix of the cluster's."""
SERVERS = EndpointSlice(
    "default", "kubernetes", "kubernetes", 4, (), (Endpoint("10.96.3.3"), Endpoint(OUTSIDE[0]))
)
"""One is where nobody looks for an API server."""


@pytest.fixture
def bed(make_netns: NetnsFactory) -> Iterator[ServiceBed]:
    bed = ServiceBed(make_netns)
    yield bed
    bed.close()


@pytest.fixture(params=[ServiceBed, SocketBed], ids=["nftables", "ebpf"])
def either(make_netns: NetnsFactory, request: pytest.FixtureRequest) -> Iterator[ServiceBed]:
    made: ServiceBed = request.param(make_netns)
    yield made
    made.close()


def test_sctp_reaches_an_endpoint_and_its_answer_comes_from_the_service(either: ServiceBed) -> None:
    """From pods, from processes of the node, from outside; by chunks that are made here: not every
    kernel has sockets of SCTP."""
    bed = either
    one, two = bed.pods
    ports = (ServicePort("call", "SCTP", 2905, 30905),)
    calls = replace(WEB, ports=ports)
    pieces = [replace(each, ports=(EndpointPort("call", "SCTP", 2906),)) for each in
              slices(*endpoints_of(*two.addresses))]  # fmt: skip
    bed.put(calls, *pieces)
    tag = 40000
    for number, address in enumerate(ADDRESSES):
        version = family(address)
        for client, asked, port, source in (
            (one.netns, address, 2905, one.addresses[number]),
            (bed.outside, EXTERNAL[number], 2905, OUTSIDE[number]),
            (bed.outside, NODE[number], 30905, OUTSIDE[number]),
            (bed.node, address, 2905, GATEWAYS[number]),
            (bed.node, EXTERNAL[number], 2905, GATEWAYS[number]),
            (bed.node, NODE[number], 30905, NODE[number]),
        ):
            tag += 1
            with (
                raw_socket(two.netns, version, "SCTP") as server,
                raw_socket(client, version, "SCTP") as sender,
            ):
                sender.sendto(packet_of("SCTP", (source, asked), tag, port), (asked, 0))
                init, seen = received(server, version, port=2906)
                assert init[12] == 1, (asked, port)
                answer = init_ack_of(2906, int.from_bytes(init[:2], "big"), tag)
                server.sendto(answer, (seen, 0))
                init_ack, answerer = received(sender, version, port=tag)
                assert init_ack[12] == 2
                assert (answerer, int.from_bytes(init_ack[:2], "big")) == (asked, port)
                assert int.from_bytes(init_ack[4:8], "big") == tag


def received(receiver: socket.socket, version: int, *, port: int) -> tuple[bytes, str]:
    """The next packet to that port of it without its IP header, and who is its source."""
    receiver.settimeout(PATIENCE_S)
    while True:
        packet, source = receiver.recvfrom(2048)
        head = packet[(packet[0] & 15) * 4 :] if version == 4 else packet
        if int.from_bytes(head[2:4], "big") == port:
            return head, source[0]


def test_elements_that_are_read_as_they_are_wanted_are_in_memory_once(bed: ServiceBed) -> None:
    bed.put(WEB, *slices(*endpoints_of(*bed.pods[1].addresses)))
    planner = Planner()
    planner.surround(bed.surroundings)
    planner.replan([WEB.key], bed.catalog, bed.here)
    want = planner.want()
    with bed.node.entered(), closing(ServicesKernel()) as kernel:
        kernel.read(want)
    held = kernel.state.elements
    assert held == want.elements
    assert held["slots_udp_4"]
    for name, elements in want.elements.items():
        shared = set(map(id, (*elements, *elements.values())))
        assert set(map(id, (*held[name], *held[name].values()))) == shared


def test_ports_of_the_node_are_served_at_the_addresses_that_are_named(bed: ServiceBed) -> None:
    two = bed.pods[1]
    bed.put(WEB, *slices(*endpoints_of(*two.addresses)))
    with ExitStack() as stack:
        servers = [listening(stack, two.netns, family(address)) for address in NODE]

        def at(*prefixes: str) -> None:
            bed.surroundings = replace_surroundings(
                bed.surroundings, node_ports=tuple(map(ip_network, prefixes))
            )
            bed.part.look()
            bed.run()

        at(f"{NODE[0]}/32")
        for number in (0, 1):  # of the other family nothing was said
            talk(bed.outside, NODE[number], 30080, servers[number])
        at("203.0.113.0/24", "2001:db8:ffff::/48")
        for number in (0, 1):
            assert is_refused(bed.outside, NODE[number], 30080)
            talk(bed.outside, ADDRESSES[number], 80, servers[number])
        at()
        for number in (0, 1):
            talk(bed.outside, NODE[number], 30080, servers[number])
            # At loopback addresses nobody serves them, as kube-proxy's nftables mode has it.
            assert is_refused(bed.node, ("127.0.0.1", "::1")[number], 30080)


@pytest.mark.parametrize("number", [0, 1], ids=["ipv4", "ipv6"])
def test_a_client_stays_when_endpoints_come_and_is_free_after_the_timeout(
    bed: ServiceBed, number: int
) -> None:
    one, two = bed.pods
    address = ADDRESSES[number]
    sticky = replace(WEB, affinity_s=3)
    with ExitStack() as stack:
        servers = [listening(stack, pod.netns, family(address)) for pod in bed.pods]
        bed.put(sticky, *slices(*endpoints_of(*two.addresses)))
        asked = ((address, 80), (NODE[number], 30080), (EXTERNAL[number], 80))
        began_s = time.monotonic()
        for target, port in asked:
            stack.enter_context(bed.outside.connected(target, port))
            assert len(accept(stack, servers, 1)[1]) == 1
        bed.put(*slices(*endpoints_of(*one.addresses, *two.addresses)))
        for target, port in asked * 4:
            stack.enter_context(bed.outside.connected(target, port))
        moved = accept(stack, servers, len(asked) * 4)[0]
        assert not moved or time.monotonic() - began_s > 3, "it stayed as long as it asked"

        def noted() -> str:
            names = [f"affinity_tcp_{family(address)}"]
            names += [f"{names[0]}_port"] if number else []
            listed = (bed.node.run("nft", "list", "map", *TABLE, name) for name in names)
            return "".join(each for each in listed if "elements" in each)

        wait_until(lambda: not noted(), "it is forgotten")


def test_everybody_may_come_where_all_ranges_are_named(bed: ServiceBed) -> None:
    two = bed.pods[1]
    everybody = Exposure(load_balancer_ips=EXTERNAL, source_ranges=("0.0.0.0/0", "::/0"))
    bed.put(replace(WEB, exposure=everybody), *slices(*endpoints_of(*two.addresses)))
    with ExitStack() as stack:
        for address in EXTERNAL:
            server = listening(stack, two.netns, family(address))
            talk(bed.outside, address, 80, server)


def test_of_a_thousand_endpoints_each_is_in_rotation_and_one_less_is_few_elements(
    bed: ServiceBed,
) -> None:
    two = bed.pods[1]
    far = [f"10.244.{20 + n // 250}.{n % 250 + 1}" for n in range(999)]
    pieces = [  # as the control plane cuts them
        EndpointSlice(
            *("shop", f"web-{start}", "web", 4),
            (EndpointPort("http", "TCP", 8080),),
            tuple(endpoints_of(*[two.addresses[0], *far][start : start + 100], node="far")),
        )
        for start in range(0, 1000, 100)
    ]
    web = Service("shop", "web", cluster_ips=ADDRESSES[:1], ports=WEB.ports[:1])
    bed.put(web, *pieces)
    slots = bed.part.plan().elements["slots_tcp_4"]
    assert len(set(slots.values())) == 1000

    bed.put(replace(pieces[3], endpoints=pieces[3].endpoints[1:]))
    assert len(set(bed.part.plan().elements["slots_tcp_4"].values())) == 999
    held = bed.node.run("nft", "list", "map", *TABLE, "slots_tcp_4").partition("elements")[2]
    assert held.count(" : ") == 999


def test_half_closed_connections_are_tracked_as_long_as_by_kube_proxy_until_uninstall(
    bed: ServiceBed, tmp_path: Path
) -> None:
    """Who waits for an answer after it has said all is cut off else, after a minute."""
    kept = bed.bed.changed_sysctls

    def keep() -> None:
        with bed.node.entered():
            bed.bed.kernel.raise_sysctl(HALF_CLOSED, HALF_CLOSED_S, before_sysctl=kept.append)

    kept.clear()
    bed.node.sysctl(HALF_CLOSED, "7200")
    keep()
    assert (bed.node.sysctl(HALF_CLOSED), kept) == ("7200", [])
    bed.node.sysctl(HALF_CLOSED, "60")
    keep()
    assert (bed.node.sysctl(HALF_CLOSED), kept) == ("3600", [HALF_CLOSED])
    with bed.node.entered():
        report = remove_kernel_state([ServicesPart.owned(tmp_path)], {HALF_CLOSED: "60"})
    assert report.failed == []
    assert bed.node.sysctl(HALF_CLOSED) == "60"


def test_what_the_kernel_holds_goes_on_where_the_disk_has_lost_what_was_known(
    bed: ServiceBed,
) -> None:
    """The node may be cut off for long; after a reboot what can be read is better than nothing."""
    _, two = bed.pods
    pieces = slices(*endpoints_of(*two.addresses))
    bed.put(WEB, *pieces)
    bed.part.close()
    bed.catalog = Catalog()
    bed.catalog.damage = "it has no end"
    bed.part = bed.new_part()
    for _ in range(2):
        with bed.node.entered(), pytest.raises(LimpetError, match="it has no end in the file"):
            bed.part.plan()
        with ExitStack() as stack:
            talk(bed.node, ADDRESSES[0], 80, listening(stack, two.netns, 4))

    bed.catalog.damage = ""
    assert bed.put(WEB, *pieces) == 1, "flows of UDP that may have begun meanwhile are forgotten"

    bed.part.close()
    bed.node.run("nft", "delete", "table", *TABLE)
    bed.catalog.damage = "it has no end"
    bed.part = bed.new_part()
    bed.run()
    assert bed.run() == 0
    assert bed.catalog.is_part_served, "after a boot what could be read is all that there is"
    assert bed.catalog.damage == "it has no end", "and is not taken for all that there was"

    bed.part.close()
    bed.part = bed.new_part()
    assert bed.run() == 1, "the next agent goes on with that part, and forgets flows of UDP"
    with ExitStack() as stack:
        talk(bed.node, ADDRESSES[0], 80, listening(stack, two.netns, 4))


def test_of_a_table_in_which_nothing_is_left_nothing_stays(make_netns: NetnsFactory) -> None:
    """An agent that never heard of a Service, or another program, may have left it so."""
    node = make_netns()
    node.run("nft", "add", "table", *TABLE)
    with node.entered(), closing(ServicesKernel()) as kernel:
        assert kernel.remove()
        assert not kernel.remove()
    assert TABLE[1] not in node.run("nft", "list", "tables")


def test_what_is_for_a_cluster_address_that_no_service_has_does_not_leave_the_node(
    either: ServiceBed,
) -> None:
    bed = either
    one, two = bed.pods
    bed.surroundings = replace_surroundings(bed.surroundings, services=RANGES)
    stand_at(bed, *ADDRESSES, *ELSEWHERE)
    bed.run()
    # Not before it knows the cluster's API servers, which have to be reached in any case.
    asked = ADDRESSES[0]
    assert heard_at(bed, one.netns, asked, ELSEWHERE[0]) == [asked.encode(), b"elsewhere"]
    bed.put(SERVERS, WEB, *slices(*endpoints_of(*two.addresses)))
    for address in ADDRESSES:
        with ExitStack() as stack:
            server = listening(stack, two.netns, family(address))
            for client in (one.netns, bed.node):
                talk(client, address, 80, server)
    bed.round([*bed.catalog.remove_service("shop", "web")])
    for client in (one.netns, bed.node):
        for address, elsewhere in zip(ADDRESSES, ELSEWHERE, strict=True):
            assert heard_at(bed, client, address, elsewhere) == [b"elsewhere"]
    bed.put(WEB)
    with ExitStack() as stack:
        for address in ADDRESSES:
            server = listening(stack, two.netns, family(address))
            for client in (one.netns, bed.node):
                talk(client, address, 80, server)
    assert bed.run() == 0


def test_who_has_an_address_among_services_that_were_said_too_wide_is_reached(
    bed: ServiceBed,
) -> None:
    """A person has typed them: pods, links of the node, other nodes and API servers lie there."""
    one, _ = bed.pods
    bed.surroundings = replace_surroundings(
        bed.surroundings,
        services=(ip_network("0.0.0.0/1"), ip_network("128.0.0.0/1"), ip_network("::/0")),
        reached=frozenset({(ip_address("10.96.4.4"), 0)}),
    )
    reached = ("192.0.2.9", "2001:db8::9", "10.96.3.3", "10.96.4.4")
    stand_at(bed, *reached, *ELSEWHERE)
    reach_by_overlay(bed)
    bed.put(SERVERS)
    for client in (one.netns, bed.node):
        for address in (*reached, "10.244.9.9", "fd00:9::9"):
            lost = ELSEWHERE[family(address) == 6]
            assert heard_at(bed, client, lost, address) == [b"elsewhere"]
    with ExitStack() as stack:
        for address in (*GATEWAYS, *NODE):
            server = listening(stack, bed.node, family(address), port=7000)
            talk(bed.node, address, 7000, server)
            talk(one.netns, address, 7000, server)
            server.close()


def test_a_cluster_address_that_is_left_to_another_proxy_or_to_the_node_itself_is_reached(
    bed: ServiceBed,
) -> None:
    """As of `service-proxy-name`, or while kube-proxy serves too, and of NodeLocal DNSCache."""
    one, two = bed.pods
    bed.surroundings = replace_surroundings(bed.surroundings, services=RANGES)
    lead = "".join(
        f"add rule inet others {chain} {ip} daddr {address} tcp dport 80 dnat {ip} to {end}\n"
        for chain in ("prerouting", "output")
        for ip, address, end in zip(
            ("ip", "ip6"),
            ADDRESSES,
            (f"{two.addresses[0]}:8080", f"[{two.addresses[1]}]:8080"),
            strict=True,
        )
    )
    hooks = "".join(
        f"add chain inet others {hook} {{ type nat hook {hook} priority -100; }}\n"
        for hook in ("prerouting", "output")
    )
    bed.node.run("nft", f"add table inet others\n{hooks}{lead}")
    cached = ("10.96.0.10", "fd96::a")
    bed.node.ip("address add 10.96.0.10/32 dev lo", "-6 address add fd96::a/128 dev lo nodad")
    bed.put(replace(WEB, exposure=Exposure(is_others=True)), SERVERS)
    for number, address in enumerate(ADDRESSES):
        with ExitStack() as stack:
            server = listening(stack, two.netns, family(address))
            local = listening(stack, bed.node, family(address), port=5300)
            for client in (one.netns, bed.node, bed.outside):
                talk(client, address, 80, server)
            for client in (one.netns, bed.node):
                talk(client, cached[number], 5300, local)


def stand_at(bed: ServiceBed, *addresses: str) -> None:
    """The host outside, the node's default gateway, has these, too."""
    for each in addresses:
        length = 128 if family(each) == 6 else 32
        bed.outside.ip(f"address add {each}/{length} dev wan0{' nodad' * (length == 128)}")


def heard_at(bed: ServiceBed, client: Netns, address: str, elsewhere: str) -> list[bytes]:
    """What the host outside hears of a datagram to the one, and of a later one to the other."""
    version = family(address)
    with (
        bed.outside.open_socket(version, socket.SOCK_DGRAM) as server,
        client.open_socket(version, socket.SOCK_DGRAM) as sender,
    ):
        server.bind(("::" if version == 6 else "0.0.0.0", 5140))
        server.settimeout(PATIENCE_S)
        with suppress(PermissionError):  # said to a process of the node
            sender.sendto(address.encode(), (address, 5140))
        sender.sendto(b"elsewhere", (elsewhere, 5140))
        found = [server.recv(64)]
        while found[-1] != b"elsewhere":
            found.append(server.recv(64))
        return found
