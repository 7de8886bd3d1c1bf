"""Services at the socket: real programs in a cgroup of the test, real connections and datagrams."""

from __future__ import annotations

import asyncio
import ctypes
import os
import select
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from errno import ECONNABORTED, EINPROGRESS
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from limpet.base.addresses import packed
from limpet.datapath.services.part import ServicesPart
from limpet.datapath.services.sockets.layout import FEW
from limpet.datapath.services.sockets.pins_apply import (
    LINKS,
    MAPS,
    NOTED,
    UNDER_WAY_S,
    AttachPoint,
    pins_of,
    remove_pins,
)
from limpet.datapath.teardown import remove_kernel_state
from limpet.linux.bpf.library import Bpf, BpfMap
from limpet.services.values import (
    SERVING,
    TERMINATING,
    Endpoint,
    EndpointPort,
    EndpointSlice,
    Service,
    ServicePort,
)
from tests.beds.namespaces import Netns, NetnsFactory, talk
from tests.beds.node_bed import NODE
from tests.beds.services.service_bed import ADDRESSES, WEB, endpoints_of, slices
from tests.beds.services.socket_bed import SocketBed, mounted
from tests.waiting import PATIENCE_S, wait_until

_SO_RCVBUFFORCE = 33
ANY = {4: "0.0.0.0", 6: "::"}


@pytest.fixture
def bed(make_netns: NetnsFactory) -> Iterator[SocketBed]:
    bed = SocketBed(make_netns)
    yield bed
    bed.close()


def family(address: str) -> int:
    return 6 if ":" in address else 4


def tracked(netns: Netns, address: str) -> str:
    """Connections that the namespace's kernel tracks to that address."""
    version = "ipv6" if ":" in address else "ipv4"
    return netns.run("conntrack", "-L", "-f", version, "-d", address)


def test_connections_of_pods_and_of_the_node_go_to_the_endpoint_without_translation(
    bed: SocketBed,
) -> None:
    one, two = bed.pods
    bed.put(WEB, *slices(*endpoints_of(*two.addresses)))
    assert bed.why_not == ""
    for number, address in enumerate(ADDRESSES):
        with ExitStack() as stack:
            server = stack.enter_context(two.netns.listening(ANY[family(address)], 8080))
            for client in (one.netns, bed.node, two.netns):
                here = stack.enter_context(client.connected(address, 80))
                assert here.getpeername()[:2] == (address, 80)
                there = stack.enter_context(server.accept()[0])
                here.sendall(b"words")
                there.settimeout(PATIENCE_S)
                assert there.recv(64) == b"words"
            # A pod is seen with its own address, whatever bridges do.
            assert talk(one.netns, address, 80, server) == one.addresses[number]
        assert tracked(bed.node, address) == ""
    assert bed.run() == 0


@pytest.mark.parametrize("count", [FEW, FEW + 1])
def test_all_endpoints_are_drawn_also_where_the_frontend_has_no_room_for_them(
    bed: SocketBed, count: int
) -> None:
    """Ports of one pod, by as many slices."""
    one, two = bed.pods
    ports = range(8080, 8080 + count)
    (end,) = endpoints_of(two.addresses[0])
    bed.put(
        WEB,
        *(
            EndpointSlice(
                "shop", f"web-{port}", "web", 4, (EndpointPort("http", "TCP", port),), (end,)
            )
            for port in ports
        ),
    )
    with ExitStack() as stack:
        servers = [stack.enter_context(two.netns.listening("0.0.0.0", port)) for port in ports]
        drawn = set[int]()

        def are_drawn() -> bool:
            with one.netns.connected(ADDRESSES[0], 80):
                (server,), _, _ = select.select(servers, [], [], PATIENCE_S)
                server.accept()[0].close()
            drawn.add(server.getsockname()[1])
            return drawn == set(ports)

        wait_until(are_drawn)
    assert tracked(bed.node, ADDRESSES[0]) == ""


def test_sockets_of_ipv6_that_ask_for_ipv4_are_served_too(bed: SocketBed) -> None:
    one, two = bed.pods
    bed.put(WEB, *slices(*endpoints_of(*two.addresses)))
    with ExitStack() as stack:
        server = stack.enter_context(two.netns.listening("0.0.0.0", 8080))
        with one.netns.entered():
            client = stack.enter_context(socket.socket(socket.AF_INET6, socket.SOCK_STREAM))
        client.connect((f"::ffff:{ADDRESSES[0]}", 80))
        stack.enter_context(server.accept()[0])
        assert client.getpeername()[:2] == (f"::ffff:{ADDRESSES[0]}", 80)
        asked = datagrams(stack, two.netns, two.addresses[0], 5353)
        with one.netns.entered():
            asks = stack.enter_context(socket.socket(socket.AF_INET6, socket.SOCK_DGRAM))
        asks.settimeout(PATIENCE_S)
        asks.sendto(b"question", (f"::ffff:{ADDRESSES[0]}", 53))
        echo(asked)
        assert asks.recvfrom(64)[1][:2] == (f"::ffff:{ADDRESSES[0]}", 53)
    assert tracked(bed.node, ADDRESSES[0]) == ""


def datagrams(stack: ExitStack, netns: Netns, address: str = "", port: int = 0) -> socket.socket:
    made = stack.enter_context(netns.open_socket(family(address), socket.SOCK_DGRAM))
    made.settimeout(PATIENCE_S)
    made.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 8 << 20)  # a busy machine reads late
    if port:
        made.bind((address, port))
    return made


def echo(server: socket.socket) -> None:
    words, peer = server.recvfrom(64)
    server.sendto(words, peer)


def answers(client: socket.socket, servers: list[socket.socket]) -> int:
    """Which of the servers got what the client has sent; it is answered."""
    ready, _, _ = select.select(servers, [], [], PATIENCE_S)
    assert len(ready) == 1
    echo(ready[0])
    return servers.index(ready[0])


def test_datagrams_of_one_socket_go_to_one_endpoint_and_answers_come_from_the_service(
    bed: SocketBed,
) -> None:
    one, two = bed.pods
    everybody = endpoints_of(*one.addresses, *two.addresses)
    for number, address in enumerate(ADDRESSES):
        bed.put(WEB, *slices(*everybody))
        with ExitStack() as stack:
            servers = [datagrams(stack, pod.netns, pod.addresses[number], 5353) for pod in bed.pods]
            got = set()
            for client in (one.netns, bed.node):
                for _ in range(16):
                    asks = datagrams(stack, client, address)
                    first = None
                    for _ in range(4):
                        asks.sendto(b"question", (address, 53))
                        server = answers(asks, servers)
                        first = server if first is None else first
                        assert server == first
                        assert asks.recvfrom(64)[1][:2] == (address, 53)
                    got.add(first)
            assert got == {0, 1}, "both are used"
            assert first is not None
            other = bed.pods[1 - first]
            bed.put(*slices(*endpoints_of(*other.addresses)))
            asks.sendto(b"question", (address, 53))
            assert answers(asks, servers) == 1 - first
            assert asks.recvfrom(64)[1][:2] == (address, 53)
        assert tracked(bed.node, address) == ""


@pytest.mark.parametrize("number", [0, 1])
def test_answers_of_one_endpoint_are_said_to_be_of_whom_a_datagram_socket_asked_last(
    bed: SocketBed, number: int
) -> None:
    """Two Services may have it, and it may be asked by its own address."""
    (one, two), twins = bed.pods, ("10.96.0.8", "fd96::8")
    ends = endpoints_of(*two.addresses)
    twin = Service("shop", "twin", cluster_ips=twins, ports=(ServicePort("ask", "UDP", 53),))
    bed.put(WEB, twin, *slices(*ends), *slices(*ends, service="twin"))
    web, other = (ADDRESSES[number], 53), (twins[number], 53)
    itself = (two.addresses[number], 5353)
    with ExitStack() as stack:
        server = datagrams(stack, two.netns, *itself)
        for client in (one.netns, bed.node):
            asks = datagrams(stack, client, web[0])
            for asked in (web, other, web, itself, web):
                asks.sendto(b"question", asked)
                words, peer = server.recvfrom(64)
                server.sendto(words, peer)
                assert asks.recvfrom(64)[1][:2] == asked
            noted = Bpf().pinned_map(bed.place.pins / NOTED / "awaited")
            assert noted is not None
            with closing(noted):
                # What is asked for once may be a stream: each of it is awaited for two minutes.
                soon_ns = time.monotonic_ns() + 10**9 * int(PATIENCE_S)
                put_times(noted, soon_ns)
                server.sendto(b"streamed", peer)
                assert asks.recvfrom(64)[1][:2] == web
                assert max(times_of(noted)) > soon_ns + 10**9 * 30
                # Two minutes later it speaks for itself, or another pod has its address.
                put_times(noted, 0)
            server.sendto(b"unasked", peer)
            assert asks.recvfrom(64)[1][:2] == itself


def put_times(noted: BpfMap, until_ns: int) -> None:
    until = until_ns.to_bytes(8, sys.byteorder)
    noted.put([(key, value[:-8] + until) for key, value in noted.read().items()])


def times_of(noted: BpfMap) -> list[int]:
    return [int.from_bytes(value[-8:], sys.byteorder) for value in noted.read().values()]


@pytest.mark.parametrize("number", [0, 1])
def test_no_answer_shows_an_endpoint_while_programs_come_and_go(
    bed: SocketBed, number: int
) -> None:
    """Each takes 20 ms, so that some are under way at every moment; none is lost. On a busy machine
    one may take longer than programs wait for it as they go."""
    (one, two), address = bed.pods, ADDRESSES[number]
    bed.put(WEB, *slices(*endpoints_of(*two.addresses)))
    answered: dict[bytes, tuple[str, int]] = {}
    late: set[bytes] = set()
    sent: dict[bytes, float] = {}
    is_over, over_s = threading.Event(), list[float]()
    with ExitStack() as stack:
        server = datagrams(stack, two.netns, two.addresses[number], 5353)
        asks = datagrams(stack, one.netns, address)

        def is_awaited() -> bool:
            """Something that was sent has no answer yet, and may have one."""
            return len(answered) < len(sent) and time.monotonic() < over_s[0] + PATIENCE_S

        def ask() -> None:
            while not is_over.wait(0.001):
                words = b"%d" % len(sent)
                sent[words] = time.monotonic()
                asks.sendto(words, (address, 53))

        def serve() -> None:
            asked: deque[tuple[float, bytes, tuple[Any, ...]]] = deque()
            while threads[0].is_alive() or is_awaited():  # who asks may do so once more
                if select.select([server], [], [], 0.005)[0]:
                    asked.append((time.monotonic() + 0.02, *server.recvfrom(64)))
                while asked and asked[0][0] <= time.monotonic():
                    _, words, peer = asked.popleft()
                    server.sendto(words, peer)

        def hear() -> None:
            while threads[0].is_alive() or is_awaited():
                if not select.select([asks], [], [], 0.05)[0]:
                    continue
                words, (who, port, *_) = asks.recvfrom(64)
                answered[words] = who, port
                if time.monotonic() - sent[words] >= UNDER_WAY_S:
                    late.add(words)

        threads = [threading.Thread(target=each) for each in (ask, serve, hear)]
        for each in threads:
            each.start()
        try:
            for _ in range(4):
                bed.end_agent()
                assert remove_pins(bed.place.pins)
                assert bed.run() > 0
        finally:
            over_s.append(time.monotonic())
            is_over.set()
            for each in threads:
                each.join()
    assert {answered[words] for words in answered.keys() - late} == {(address, 53)}
    assert set(answered) == set(sent)


def test_programs_that_are_removed_serve_nobody_also_where_somebody_holds_their_links(
    bed: SocketBed,
) -> None:
    """As an agent does that is ending, and the kernel until one of its workers has time."""
    one, two = bed.pods
    bed.put(WEB, *slices(*endpoints_of(*two.addresses)))
    bpf = Bpf()
    held = [bpf.pinned(path) for path in (bed.place.pins / LINKS).iterdir()]
    try:
        bed.end_agent()
        assert remove_pins(bed.place.pins)
        with (
            two.netns.listening("0.0.0.0", 8080) as server,
            one.netns.connected(ADDRESSES[0], 80) as client,
        ):
            server.accept()[0].close()
            assert tracked(bed.node, ADDRESSES[0]) != "", "nftables has served it"
            assert client.getpeername() == (ADDRESSES[0], 80)
    finally:
        for fd in held:
            assert fd is not None
            os.close(fd)


def test_connected_datagram_sockets_are_ended_when_their_endpoint_leaves(bed: SocketBed) -> None:
    one, two = bed.pods
    for number, address in enumerate(ADDRESSES):
        bed.put(WEB, *slices(*endpoints_of(*two.addresses)))
        with ExitStack() as stack:
            servers = [datagrams(stack, pod.netns, pod.addresses[number], 5353) for pod in bed.pods]
            for client in (one.netns, bed.node):
                bed.put(*slices(*endpoints_of(*two.addresses)))
                asks = datagrams(stack, client, address)
                asks.connect((address, 53))
                # Who speaks with the pod itself has nothing to do with the Service.
                direct = datagrams(stack, client, address)
                direct.connect((two.addresses[number], 5353))
                assert asks.getpeername()[:2] == (address, 53)
                for each, peer in ((asks, (address, 53)), (direct, (two.addresses[number], 5353))):
                    each.send(b"question")
                    assert answers(each, servers) == 1
                    assert each.recvfrom(64)[1][:2] == peer
                bed.put(*slices(*endpoints_of(*one.addresses)))
                with pytest.raises(ConnectionAbortedError):
                    asks.recv(64)
                direct.send(b"still there")
                assert answers(direct, servers) == 1
                asks = datagrams(stack, client, address)
                asks.connect((address, 53))
                asks.send(b"question")
                assert answers(asks, servers) == 0
        assert tracked(bed.node, address) == ""


def test_connections_that_are_tried_at_a_dead_endpoint_are_ended_at_once(bed: SocketBed) -> None:
    """And no others: they would be tried for two minutes, or are answered yet."""
    one, two = bed.pods
    two.netns.run(
        "nft", "add table inet deaf { chain in { type filter hook input priority 0; } ; }"
    )
    two.netns.run("nft", "add rule inet deaf in tcp dport 8080 drop")
    for number, address in enumerate(ADDRESSES):
        with ExitStack() as stack:
            server = stack.enter_context(one.netns.listening(ANY[family(address)], 8080))
            for client in (one.netns, bed.node):
                bed.put(WEB, *slices(*endpoints_of(*two.addresses)))
                tried = trying(stack, client, address, 80)
                direct = trying(stack, client, two.addresses[number], 8080)
                ending = [Endpoint(x, SERVING | TERMINATING, "here") for x in two.addresses]
                bed.put(*slices(*endpoints_of(*one.addresses), *ending))
                assert is_tried(tried), "who ends in order may answer"
                bed.put(*slices(*endpoints_of(*two.addresses)))
                again = trying(stack, client, address, 80)
                bed.put(*slices(*endpoints_of(*one.addresses)))
                for each in (tried, again):
                    select.select([], [each], [], PATIENCE_S)
                    assert each.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == ECONNABORTED
                assert is_tried(direct), "it has nothing to do with the Service"
                talk(client, address, 80, server)
        assert tracked(bed.node, address) == ""


def trying(stack: ExitStack, client: Netns, address: str, port: int) -> socket.socket:
    """A connection that is under way."""
    made = stack.enter_context(client.open_socket(family(address), socket.SOCK_STREAM))
    made.setblocking(False)
    assert made.connect_ex((address, port)) == EINPROGRESS
    return made


def is_tried(made: socket.socket) -> bool:
    return select.select([], [made], [], 0)[1] == []


def test_connections_are_counted_by_who_answers_them(bed: SocketBed) -> None:
    one, two = bed.pods
    bed.put(WEB, *slices(*endpoints_of(*two.addresses)))
    asked = {(6, packed(each), 80) for each in ADDRESSES} | {
        (17, packed(each), 53) for each in ADDRESSES
    }

    def counted() -> dict[tuple[int, bytes, int], int]:
        assert bed.part.sockets is not None
        with bed.node.entered():
            counter = bed.part.sockets.counter()
            assert counter is not None
            with closing(counter):
                return dict(counter.count(asked))

    assert counted() == {}
    for number, address in enumerate(ADDRESSES):
        web, ask = (
            (6, packed(two.addresses[number]), 8080),
            (17, packed(two.addresses[number]), 5353),
        )
        with ExitStack() as stack:
            server = stack.enter_context(two.netns.listening(ANY[family(address)], 8080))
            for client in (one.netns, one.netns, bed.node):
                stack.enter_context(client.connected(address, 80))
                stack.enter_context(server.accept()[0])
            # These have nothing to do with the Service.
            stack.enter_context(one.netns.connected(two.addresses[number], 8080))
            datagrams(stack, one.netns, address).connect((two.addresses[number], 5353))
            assert counted() == {web: 3}
            datagrams(stack, bed.node, address).connect((address, 53))
            datagrams(stack, one.netns, address).sendto(b"question", (address, 53))
            assert counted() == {web: 3, ask: 2}
        wait_until(lambda: counted() == {}, "the sockets are gone")


def test_other_network_namespaces_in_the_cgroup_are_left_alone(
    bed: SocketBed, make_netns: NetnsFactory
) -> None:
    """They may use the same address for something else."""
    bed.put(WEB, *slices(*endpoints_of(*bed.pods[1].addresses)))
    foreign = make_netns("foreign")
    foreign.ip("link set lo up", f"address add {ADDRESSES[0]}/32 dev lo")
    with foreign.listening(ADDRESSES[0], 80) as server:
        assert talk(foreign, ADDRESSES[0], 80, server) == ADDRESSES[0]


def test_a_process_of_the_node_that_chose_its_source_is_translated_by_nftables(
    bed: SocketBed,
) -> None:
    two = bed.pods[1]
    bed.put(WEB, *slices(*endpoints_of(*two.addresses)))
    for number, address in enumerate(ADDRESSES):
        with (
            two.netns.listening(ANY[family(address)], 8080) as server,
            bed.node.connected(address, 80, source=NODE[number]) as here,
        ):
            server.accept()[0].close()
            assert here.getpeername()[:2] == (address, 80)
        assert tracked(bed.node, address) != ""


def test_what_programs_do_not_serve_nftables_does(bed: SocketBed) -> None:
    """No endpoints; from outside; by a port of the node."""
    one, two = bed.pods
    bed.put(WEB)
    for address in ADDRESSES:
        with pytest.raises(ConnectionRefusedError), one.netns.connected(address, 80):
            pass
    bed.put(*slices(*endpoints_of(*two.addresses)))
    for number, address in enumerate(ADDRESSES):
        with two.netns.listening(ANY[family(address)], 8080) as server:
            talk(bed.outside, address, 80, server)
            talk(bed.outside, NODE[number], 30080, server)
            talk(one.netns, NODE[number], 30080, server)


def who_gets(stack: ExitStack, client: Netns, address: str, servers: list[socket.socket]) -> int:
    """Which of the servers a new connection comes to."""
    stack.enter_context(client.connected(address, 80))
    ready, _, _ = select.select(servers, [], [], PATIENCE_S)
    assert len(ready) == 1
    stack.enter_context(ready[0].accept()[0])
    return servers.index(ready[0])


def test_traffic_that_must_stay_on_the_node_does(bed: SocketBed) -> None:
    one, two = bed.pods
    inside = Service("shop", "web", cluster_ips=ADDRESSES, ports=WEB.ports, is_internal_local=True)
    far = endpoints_of("10.244.9.9", "fd00:9::9", node="far")
    bed.put(inside, *slices(*endpoints_of(*two.addresses), *far))
    for address in ADDRESSES:
        with ExitStack() as stack:
            server = stack.enter_context(two.netns.listening(ANY[family(address)], 8080))
            for _ in range(8):
                assert who_gets(stack, one.netns, address, [server]) == 0


def test_a_new_agent_takes_over_and_connections_stay(bed: SocketBed) -> None:
    one, two = bed.pods
    bed.put(WEB, *slices(*endpoints_of(*two.addresses)))
    address = ADDRESSES[0]
    with ExitStack() as stack:
        server = stack.enter_context(two.netns.listening("0.0.0.0", 8080))
        here = stack.enter_context(one.netns.connected(address, 80))
        there = stack.enter_context(server.accept()[0])
        bed.end_agent()
        # While there is no agent at all the programs go on.
        assert talk(one.netns, address, 80, server) == one.addresses[0]
        bed.run()
        assert bed.why_not == ""
        assert talk(one.netns, address, 80, server) == one.addresses[0]
        assert here.getpeername()[:2] == (address, 80)
        here.sendall(b"still there")
        there.settimeout(PATIENCE_S)
        assert there.recv(64) == b"still there"
        bed.put(*slices(*endpoints_of(*one.addresses)))
        server = stack.enter_context(one.netns.listening("0.0.0.0", 8080))
        assert talk(one.netns, address, 80, server) == one.addresses[0]
    assert tracked(bed.node, address) == ""
    assert bed.run() == 0


def test_what_others_take_away_is_put_back(bed: SocketBed) -> None:
    one, two = bed.pods
    bed.put(WEB, *slices(*endpoints_of(*two.addresses)))
    lib = ctypes.CDLL("libbpf.so.1")

    def link() -> int:
        fd: int = lib.bpf_obj_get(os.fsencode(bed.place.pins / "links" / "limpet_connect4"))
        assert fd >= 0
        return fd

    def detach() -> None:
        fd = link()
        assert lib.bpf_link_detach(fd) == 0
        os.close(fd)

    def empty(name: str) -> None:
        pinned = lib.bpf_obj_get(os.fsencode(bed.place.pins / MAPS / name))
        key = ctypes.create_string_buffer(64)
        assert lib.bpf_map_get_next_key(pinned, None, key) == 0
        assert lib.bpf_map_delete_elem(pinned, key) == 0
        os.close(pinned)

    def unpin() -> None:
        remove_pins(bed.place.pins)

    assert bed.part.sockets is not None
    breakages: tuple[Callable[[], None], ...] = (
        detach,
        unpin,
        *(partial(empty, name) for name in ("frontends", "members")),
    )
    with two.netns.listening("0.0.0.0", 8080) as server:
        for breakage in breakages:
            breakage()
            # By nftables where it is not by the programs: never without the Service.
            talk(one.netns, ADDRESSES[0], 80, server)
            bed.node.run("conntrack", "-F")
            bed.part.sockets.suspect(maps=True)
            assert bed.run() > 0
            assert bed.run() == 0
            assert talk(one.netns, ADDRESSES[0], 80, server) == one.addresses[0]
            assert tracked(bed.node, ADDRESSES[0]) == ""
            assert (bed.place.pins / "links" / "limpet_connect4").exists()
            assert (bed.place.pins / MAPS / "slots").exists()


def test_after_they_are_removed_nftables_serves_alone(bed: SocketBed) -> None:
    one, two = bed.pods
    bed.put(WEB, *slices(*endpoints_of(*two.addresses)))
    bed.end_agent()
    assert remove_pins(bed.place.pins)
    assert not remove_pins(bed.place.pins)
    assert not bed.place.pins.exists()

    def is_translated() -> bool:
        talk(one.netns, ADDRESSES[0], 80, server)
        return tracked(bed.node, ADDRESSES[0]) != ""

    with two.netns.listening("0.0.0.0", 8080) as server:
        # The kernel takes a program from its cgroup a moment after its last pin is gone.
        wait_until(is_translated)


def test_sockets_that_were_closed_while_no_program_was_attached_are_forgotten(
    bed: SocketBed,
) -> None:
    one, two = bed.pods
    bed.put(WEB, *slices(*endpoints_of(*two.addresses)))

    with two.netns.listening("0.0.0.0", 8080) as server, ExitStack() as stack:
        stays = stack.enter_context(one.netns.connected(ADDRESSES[0], 80))
        stack.enter_context(server.accept()[0])
        closed = one.netns.connected(ADDRESSES[0], 80)
        closed.__enter__()
        stack.enter_context(server.accept()[0])
        assert bed.count_noted() == 2
        for path in (bed.place.pins / "links").iterdir():
            path.unlink()
        bed.end_agent()

        def is_translated() -> bool:
            talk(one.netns, ADDRESSES[0], 80, server)
            return tracked(bed.node, ADDRESSES[0]) != ""

        wait_until(is_translated, "the programs are away")
        closed.__exit__(None, None, None)
        bed.run()
        assert bed.why_not == ""
        assert bed.count_noted() == 1
        assert stays.getpeername() == (ADDRESSES[0], 80)


def test_a_folder_that_another_user_made_is_not_pinned_in(bed: SocketBed) -> None:
    place = AttachPoint(bed.place.pins.with_name("planted"), bed.cgroup.path)
    place.pins.mkdir()
    os.chown(place.pins, 65534, 65534)
    bed.end_agent(place)
    bed.put(WEB, *slices(*endpoints_of(*bed.pods[1].addresses)))
    assert "planted: user 65534 made it" in bed.why_not
    assert list(place.pins.iterdir()) == []


def test_uninstalling_ends_the_programs_and_takes_the_table_away(
    bed: SocketBed, tmp_path: Path
) -> None:
    one, two = bed.pods
    with mounted("bpf", tmp_path / "bpf"), two.netns.listening("0.0.0.0", 8080) as server:
        bed.end_agent(AttachPoint(pins_of(tmp_path), bed.cgroup.path))
        bed.put(WEB, *slices(*endpoints_of(*two.addresses)))
        assert talk(one.netns, ADDRESSES[0], 80, server) == one.addresses[0]
        assert tracked(bed.node, ADDRESSES[0]) == ""
        bed.end_agent()
        with bed.node.entered():
            report = remove_kernel_state([ServicesPart.owned(tmp_path)], {})

        assert report.failed == []
        assert not pins_of(tmp_path).exists()
        assert "limpet_services" not in bed.node.run("nft", "list", "tables")

        def is_served() -> bool:
            """The kernel takes a program from its cgroup a moment after its last pin is gone."""
            with suppress(OSError), one.netns.connected(ADDRESSES[0], 80, patience_s=0.5):
                return True
            return False

        wait_until(lambda: not is_served(), "nobody translates any more")


def test_where_programs_cannot_be_used_nftables_serves_and_the_reason_is_told(
    bed: SocketBed,
) -> None:
    one, two = bed.pods
    bed.end_agent(AttachPoint(Path("/proc/limpet"), bed.cgroup.path))
    bed.put(WEB, *slices(*endpoints_of(*two.addresses)))
    assert "no bpffs there" in bed.why_not
    with two.netns.listening("0.0.0.0", 8080) as server:
        talk(one.netns, ADDRESSES[0], 80, server)


def test_a_cgroup_that_is_made_later_or_made_again_is_served_from_then_on(bed: SocketBed) -> None:
    """As that of a kubelet's pods, which may be younger than the agent."""
    one, two = bed.pods
    bed.put(WEB, *slices(*endpoints_of(*two.addresses)))
    kubepods = bed.cgroup.path / "kubepods"
    bed.end_agent(AttachPoint(bed.place.pins, kubepods))
    sockets = bed.part.sockets
    assert sockets is not None

    async def fail() -> None:  # the event loop's clock would try again
        bed.loop.run("test", bed.part)

    with two.netns.listening("0.0.0.0", 8080) as server:
        for _ in range(2):
            with bed.node.entered():
                asyncio.run(fail())
            assert bed.why_not == f"open cgroup {kubepods}: ENOENT"
            talk(one.netns, ADDRESSES[0], 80, server)
            kubepods.mkdir()
            try:
                bed.run()
                assert bed.why_not == ""
                assert not sockets.is_damaged()
            finally:
                kubepods.rmdir()
            # The kernel takes the programs from it a moment after it is gone.
            wait_until(lambda: attached_to(bed.place.pins / "links" / "limpet_connect4") == 0)
            assert sockets.is_damaged(), "it is seen that programs serve nobody"
            sockets.suspect(maps=True)


def attached_to(pin: Path) -> int:
    """The number of the cgroup that a link's program is attached to; 0: to none."""
    bpf = Bpf()
    fd = bpf.pinned(pin)
    assert fd is not None
    try:
        return bpf.link(fd).cgroup_id
    finally:
        os.close(fd)
