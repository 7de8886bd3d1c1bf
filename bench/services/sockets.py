"""Services at the socket beside pod to pod: what a connection costs and carries.

    client ── node ── server (10.1.0.2, 10.1.0.3)

A client asks by a cluster address in a cgroup with the programs, asks the pod outside of it, where
no program is run, and asks the pod from within. Connections are made to a server in a process of
its own; what one that stands carries is measured with both ends in one thread (`flows`), since it
runs no program at all and what two processes wait for each other would be all of the difference.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from ipaddress import ip_address, ip_network

from tests.beds.services.socket_bed import Cgroup, mounted

from bench.bed import Bed
from bench.figures import Figure, Target, Unit
from bench.nodes.netns import Netns
from bench.nodes.part import Part
from bench.services.cluster import attach
from bench.services.part import NAME_PORTS
from bench.services.sockets_part import Way
from bench.traffic.flows import Flows, connected, in_turns
from bench.traffic.flows import Way as Road
from limpet.base.process.log import configure_log
from limpet.datapath.loop import Loop
from limpet.datapath.services.part import ServicesContext, ServicesPart
from limpet.datapath.services.sockets.apply import PodNamespaces, SocketKernel
from limpet.datapath.services.sockets.pins_apply import AttachPoint
from limpet.datapath.services.sockets.side import SocketSide
from limpet.datapath.services.state import Surroundings
from limpet.lab.command import run_command
from limpet.services.catalog import Catalog
from limpet.services.rotation import Here
from limpet.services.values import Endpoint, EndpointPort, EndpointSlice, Service, ServicePort

Samples = Iterator[tuple[str, Mapping[str, float]]]
"""Of a figure, by way."""
SIZES = (10, 1_000, 10_000)
"""Services that nobody asks, with an endpoint each."""
_CLIENT, _SERVER, _ASKED = "10.1.0.2", "10.1.0.3", "10.96.250.1"
_CONNECTIONS, _TURNS = 300, 8
"""In each round, each way: of new connections, and of what one carries."""
_CARRIED_PORT = 8085
"""At which the bench itself is the server."""
_PORTS = (NAME_PORTS[0], _CARRIED_PORT)
WAYS = (
    by_service := Way("by the Service", True, _ASKED),
    by_pod := Way("pod to pod", False, _SERVER),
    beside := Way("pod to pod, in the cgroup", True, _SERVER),
)


def sockets(bed: Bed, rounds: int) -> list[Figure]:
    if bed.reference_only:
        return []
    figures: list[Figure] = []
    for size in SIZES:
        found: dict[str, dict[str, list[float]]] = {}
        with ExitStack() as undo:
            wires = _Wires(size, undo)
            for name, values in itertools.chain(wires.connected(rounds), wires.carried(rounds)):
                for way, value in values.items():
                    found.setdefault(name, {}).setdefault(way, []).append(value)
        figures += _figures(size, found)
    return figures


class _Wires:
    """The node with its pods and programs, and the clients."""

    def __init__(self, size: int, undo: ExitStack) -> None:
        node, client, server = (_netns(name, undo) for name in ("node", "client", "server"))
        for pod, address in ((client, _CLIENT), (server, _SERVER)):
            attach(node, pod, address)
        run_command("sysctl", "-qw", "net.ipv4.ip_forward=1", netns=node.name)
        self._cgroup = cgroup = Cgroup()
        undo.callback(cgroup.close)
        self._client_netns, self._server_netns = client, server
        pins = undo.enter_context(mounted("bpf")) / "limpet"
        self._serve(node, _items(size), AttachPoint(pins, cgroup.path), str(client.path), undo)
        Part(server, ["bench.services.part", "server"], undo)
        self._client = Part(client, ["bench.services.sockets_part", str(cgroup.path)], undo)

    def _serve(
        self,
        node: Netns,
        items: Iterable[Service | EndpointSlice],
        place: AttachPoint,
        pod: str,
        undo: ExitStack,
    ) -> None:
        configure_log("error")
        around = Surroundings(
            pods=(ip_network("10.1.0.0/16"),),
            cluster=(ip_network("10.1.0.0/16"), ip_network("10.2.0.0/16")),
            gateways=(ip_address("10.1.0.1"),),
            is_bridge_filtered=True,
        )
        catalog = Catalog()
        for item in items:
            catalog.put(item)
        with node.inside():
            loop = Loop()
            undo.callback(loop.close)
            side = SocketSide(SocketKernel(place, PodNamespaces(lambda: [pod])))
            part = ServicesPart(
                loop, catalog, ServicesContext(lambda: around, lambda: Here("here")), side
            )
            undo.callback(part.close)
            loop.add(part)
            loop.run("bench", part)
        if failures := (side.why_not or loop.account(part).failures):
            raise RuntimeError(f"Services are not served at the socket: {failures}")

    def connected(self, rounds: int) -> Samples:
        asked = {"ways": WAYS, "port": NAME_PORTS[0], "count": _CONNECTIONS}
        for _ in range(rounds):
            told: dict[str, dict[str, float]] = self._client.ask(asked)
            for name in told[by_pod.name]:
                yield name, {way: values[name] for way, values in told.items()}
        with ExitStack() as undo:
            roads = {way.name: self._road(way) for way in WAYS}
            yield from connected(Flows(undo), roads, rounds, _TURNS)

    def carried(self, rounds: int) -> Samples:
        with ExitStack() as undo:
            flows = Flows(undo)
            roads = {way.name: self._road(way) for way in WAYS}
            for what, opened in (
                ("ask", flows.questions),
                ("datagram", flows.datagram_questions),
                ("send", flows.stream),
            ):
                turns = {name: opened(road) for name, road in roads.items()}
                for rates in in_turns(turns, rounds * _TURNS):
                    yield what, rates

    def _road(self, way: Way) -> Road:
        @contextmanager
        def client() -> Iterator[None]:
            with ExitStack() as undo:
                if way.is_inside:
                    undo.enter_context(self._cgroup.entered())
                undo.enter_context(self._client_netns.inside())
                yield

        server = self._server_netns.inside
        return Road(client, server, way.address, _CARRIED_PORT, _CARRIED_PORT)


def _items(size: int) -> Iterator[Service | EndpointSlice]:
    for number in range(size):
        address = f"10.96.{number // 250}.{number % 250 + 2}"
        yield from _service(address, "10.2.0.1", [("TCP", 8080)])
    asked = [(kind, port) for kind in ("TCP", "UDP") for port in _PORTS]
    yield from _service(_ASKED, _SERVER, asked)


def _service(
    address: str, end: str, ports: Iterable[tuple[str, int]]
) -> Iterator[Service | EndpointSlice]:
    named = [(f"{kind.lower()}-{port}", kind, port) for kind, port in ports]
    asked = tuple(ServicePort(*each) for each in named)
    yield Service("bench", address, cluster_ips=(address,), ports=asked)
    served = tuple(EndpointPort(*each) for each in named)
    yield EndpointSlice("bench", address, address, 4, served, (Endpoint(end),))


def _netns(name: str, undo: ExitStack) -> Netns:
    made = Netns(f"sock-{name}")
    undo.callback(made.close)
    return made


_NEARLY_AS_MANY, _HARDLY_SLOWER = Target(0.97, at_least=True), Target(1 / 0.97)
_KINDS: tuple[tuple[str, str, Unit, Target | None], ...] = (
    ("rate", "new connections, an answer and the end, ends in processes", "1/s", _NEARLY_AS_MANY),
    ("new", "new connections", "1/s", _NEARLY_AS_MANY),
    ("p50", "connect, p50", "ms", _HARDLY_SLOWER),
    ("p99", "connect, p99", "ms", _HARDLY_SLOWER),
    ("cpu", "connect", "CPU us", None),
    ("whole", "connect, an answer and the end", "CPU us", None),
    ("ask", "64 bytes and an answer", "1/s", Target(0.98, at_least=True)),
    (
        "datagram",
        "64 bytes and an answer by UDP, not connected",
        "1/s",
        Target(0.98, at_least=True),
    ),
    ("send", "TCP", "Gbit/s", Target(0.98, at_least=True)),
)


def _figures(size: int, found: dict[str, dict[str, list[float]]]) -> Iterator[Figure]:
    for name, words, unit, target in _KINDS:
        by_way = found[name]
        yield Figure(
            f"sockets-{size}-{name}",
            f"eBPF, {size:,} Services: {words} (reference: pod to pod)",
            unit,
            by_way[by_service.name],
            by_way[by_pod.name],
            target,
        )
    yield Figure(
        f"sockets-{size}-beside",
        f"eBPF, {size:,} Services: pod to pod, connect (reference: without programs)",
        "CPU us",
        found["cpu"][beside.name],
        found["cpu"][by_pod.name],
    )
