"""Services beside the real kube-proxy in its nftables and iptables modes: an API server and three
nodes that hear it, each with a pod that asks and a pod that serves.

    API server ── node limpet    ── client, server (10.1.0.2, 10.1.0.3)
              ├── node nftables  ── client, server (the same addresses)
              └── node iptables  ── client, server

What stands for Limpet is what an agent has for Services, with its source, in a process of its own.
Ends are in Python, so a connection costs more than the part of it that is compared.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.figures import Figure, Target, Unit
from bench.netns import Netns
from bench.part import Part
from bench.resident import resident_kib
from bench.services_part import ECHO_PORT, NAME_PORTS, SINK_PORT
from limpet.kubernetes.access.kubeconfig import find_access
from limpet.kubernetes.client import Client
from limpet.kubernetes.objects import Metadata, Object, Resource
from limpet.lab.command import run_command
from limpet.lab.kube.control_plane import ADMINISTRATORS, ControlPlane
from limpet.lab.kube.kube_proxy import KubeProxy, Mode

if TYPE_CHECKING:
    from bench.measures import Bed

SIZES = (10, 1_000, 10_000)
ENDPOINTS = 5
"""Of each Service that nobody asks."""
OURS = "limpet"
MODES: tuple[Mode, ...] = ("nftables", "iptables")
_API_ADDRESS = "198.51.100.1"
_CLIENT, _SERVER = "10.1.0.2", "10.1.0.3"
_ASKED, _MOVED = "10.96.250.1", "10.96.250.2"
_ASKING_S = 1.0
_AT_ONCE = 8
_CHANGES = 4
"""Of an endpoint, in each round."""


class _Service(Object, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    spec: dict[str, Any] | None = None


class _Slice(Object, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    address_type: str = ""
    endpoints: list[dict[str, Any]] | None = None
    ports: list[dict[str, Any]] | None = None


_SERVICES = Resource("Service", "services", _Service, namespaced=True)
_SLICES = Resource("EndpointSlice", "endpointslices", _Slice, "discovery.k8s.io", namespaced=True)


def services(bed: Bed, rounds: int) -> list[Figure]:
    """Connections at several numbers of Services, what one carries, changes, memory."""
    if bed.reference_only:
        return []
    found: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as undo:
        cluster = _Cluster(bed, undo)
        for size in SIZES:
            cluster.grow(size)
            for name, values in _measure(cluster, size, rounds):
                for side, value in values.items():
                    found.setdefault(name, {}).setdefault(side, []).append(value)
    return list(_figures(found))


def _measure(cluster: _Cluster, size: int, rounds: int) -> Iterator[tuple[str, dict[str, float]]]:
    sides = cluster.sides
    yield f"start-{size}", {side.name: side.restart() for side in sides}
    yield f"memory-{size}", {side.name: resident_kib(side.pid) / 1024 for side in sides}
    for number in range(rounds):
        told = _in_turn(cluster, "connect", (80, NAME_PORTS[0]), number)
        for key, scale in (("rate", 1.0), ("p50_us", 1e-3), ("p99_us", 1e-3)):
            yield f"{key}-{size}", {name: each[key] * scale for name, each in told.items()}
        for _ in range(_CHANGES):
            yield f"change-{size}", cluster.change()
    if size == SIZES[-1]:
        for number in range(rounds):
            for what, port in (("ask", ECHO_PORT), ("send", SINK_PORT)):
                yield what, _in_turn(cluster, what, (port, port), number)


def _in_turn(cluster: _Cluster, what: str, ports: tuple[int, int], number: int) -> dict[str, Any]:
    """Of each side by the Service, and from pod to pod; each begins a round as often as others.

    `ports`: of the Service, and of the pod that serves.
    """
    ways = [(side.name, side, _ASKED, ports[0]) for side in cluster.sides]
    ways.append(("direct", cluster.sides[0], _SERVER, ports[1]))
    first = number % len(ways)
    return {
        name: side.client(what, address, port)
        for name, side, address, port in (*ways[first:], *ways[:first])
    }


class _Side:
    """A node, with whoever serves Services on it."""

    def __init__(self, name: str, number: int, cluster: _Cluster, undo: ExitStack) -> None:
        self.name = name
        self._cluster = cluster
        self._netns, client, server = (cluster.netns(f"{name}{each}") for each in ("", "-c", "-s"))
        _wire(cluster.plane_netns, self._netns, number)
        for pod, address in ((client, _CLIENT), (server, _SERVER)):
            _attach(self._netns, pod, address)
        Part(server, ["bench.services_part", "server"], undo)
        self._client = Part(client, ["bench.services_part", "client"], undo)
        self._running = undo.enter_context(ExitStack())
        self._limpet: Part | None = None
        self._proxy: KubeProxy | None = None
        if name != OURS:
            self._proxy = KubeProxy(
                self._netns.name,
                cluster.folder / name,
                cluster.kubeconfig,
                node=name,
                mode="nftables" if name == "nftables" else "iptables",
                iptables=cluster.iptables,
            )
            undo.callback(self._proxy.process.kill)

    def client(self, do: str, address: str, port: int) -> Any:
        question = {"do": do, "address": address, "port": port, "for_s": _ASKING_S}
        return self._client.ask(question)

    def await_name(self, address: str, name: str) -> float:
        """When it answers there first, by time.monotonic."""
        question = {"do": "await_name", "address": address, "port": 80, "name": name}
        found: float = self._client.ask(question)
        return found

    def restart(self) -> float:
        """Seconds from its start, with nothing in the kernel, until a Service is served."""
        self._running.close()
        if self._proxy is not None:
            self._proxy.process.kill()
        run_command("nft", "flush", "ruleset", netns=self._netns.name)
        with ThreadPoolExecutor(1) as pool:
            served = pool.submit(self.await_name, _ASKED, str(NAME_PORTS[0])[-1])
            began_s = time.monotonic()
            self._start()
            return served.result() - began_s

    def _start(self) -> None:
        if self._proxy is not None:
            self._proxy.start()
            return
        words = ["limpet", str(self._cluster.kubeconfig), str(self._cluster.folder)]
        self._limpet = Part(self._netns, ["bench.services_part", *words], self._running)

    @property
    def pid(self) -> int:
        if self._limpet is not None:
            return self._limpet.pid
        pid = self._proxy.process.pid if self._proxy is not None else None
        if pid is None:
            raise RuntimeError(f"{self.name} does not run")
        return pid


class _Cluster:
    """An API server with Services, and the nodes."""

    def __init__(self, bed: Bed, undo: ExitStack) -> None:
        self.folder = Path(undo.enter_context(tempfile.TemporaryDirectory()))
        self.iptables = bed.reference_folder
        self._undo = undo
        self._size = 0
        self._moved_to = 0
        self.plane_netns = self.netns("api")
        name = self.plane_netns.name
        run_command("ip", "address", "add", _API_ADDRESS, "dev", "lo", netns=name)
        # An API server looks for addresses by the default route.
        run_command("ip", "route", "add", "default", "dev", "lo", netns=name)
        self._plane = ControlPlane(name, self.folder / "plane", (_API_ADDRESS,))
        undo.callback(self._plane.stop)
        self._plane.start(only_api=True)
        self.kubeconfig = self._plane.write_kubeconfig(
            "bench", "bench", groups=[ADMINISTRATORS], inside=True
        )
        for number, node in enumerate(MODES):
            self._create_node(node, f"192.0.2.{4 * number + 6}")
        self._ask(self._create_asked)
        self.sides = [_Side(each, number, self, undo) for number, each in enumerate((OURS, *MODES))]

    def netns(self, name: str) -> Netns:
        made = Netns(f"svc-{name}")
        self._undo.callback(made.close)
        return made

    def _create_node(self, name: str, address: str) -> None:
        """A kube-proxy waits half a minute for its Node's address."""
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
        told = {"status": {"addresses": [{"type": "InternalIP", "address": address}]}}
        self._plane.kubectl("create", "-f", "-", stdin=json.dumps(node))
        self._plane.kubectl("patch", "node", name, "--subresource=status", "-p", json.dumps(told))

    # Services

    def grow(self, size: int) -> None:
        """So many Services that nobody asks, with their endpoints."""
        numbers, self._size = range(self._size, size), size
        self._ask(lambda client: _of_each(numbers, lambda n: _create_unasked(client, n)))

    def change(self) -> dict[str, float]:
        """Milliseconds from the request to the API server until each node's clients notice."""
        self._moved_to = 1 - self._moved_to
        port = NAME_PORTS[self._moved_to]
        with ThreadPoolExecutor(len(self.sides)) as pool:
            seen = {
                side.name: pool.submit(side.await_name, _MOVED, str(port)[-1])
                for side in self.sides
            }
            time.sleep(0.05)  # all of them ask by now
            began_s = time.monotonic()
            self._ask(lambda client: _move(client, port))
            return {name: (each.result() - began_s) * 1e3 for name, each in seen.items()}

    async def _create_asked(self, client: Client) -> None:
        await _create(client, "asked", _ASKED, [_SERVER], (NAME_PORTS[0], ECHO_PORT, SINK_PORT))
        await _create(client, "moved", _MOVED, [_SERVER], (NAME_PORTS[0],))

    def _ask(self, work: Callable[[Client], Any]) -> None:
        async def run() -> None:
            client = Client(find_access(self._plane.kubeconfig))
            try:
                await work(client)
            finally:
                client.close()
                await asyncio.sleep(0)  # what was aborted ends

        asyncio.run(run())


async def _of_each(numbers: range, do: Callable[[int], Any]) -> None:
    some = asyncio.Semaphore(_AT_ONCE)

    async def one(number: int) -> None:
        async with some:
            await do(number)

    await asyncio.gather(*map(one, numbers))


async def _create_unasked(client: Client, number: int) -> None:
    at = f"10.96.{number // 250}.{number % 250 + 2}"
    first = number * ENDPOINTS
    ends = [f"10.2.{each // 250}.{each % 250 + 1}" for each in range(first, first + ENDPOINTS)]
    await _create(client, f"other-{number}", at, ends, (8080,))


async def _create(
    client: Client, name: str, address: str, ends: list[str], ports: tuple[int, ...]
) -> None:
    """Port 80 leads to the first of `ports`, the others to themselves."""
    asked = [{"name": f"p{each}", "port": each, "targetPort": each} for each in ports]
    asked[0]["port"] = 80
    spec = {"clusterIP": address, "ports": asked}
    metadata = Metadata(name=name)
    await client.create(_SERVICES, _Service(metadata=metadata, spec=spec), namespace="default")
    labels = {"kubernetes.io/service-name": name}
    made = _Slice(
        metadata=Metadata(name=f"{name}-1", labels=labels),
        address_type="IPv4",
        endpoints=[{"addresses": [each], "conditions": {"ready": True}} for each in ends],
        ports=[{"name": f"p{each}", "port": each} for each in ports],
    )
    await client.create(_SLICES, made, namespace="default")


async def _move(client: Client, port: int) -> None:
    changes = {"ports": [{"name": f"p{NAME_PORTS[0]}", "port": port}]}
    await client.patch(_SLICES, "moved-1", changes, namespace="default")


# Wires


def _wire(plane: Netns, node: Netns, number: int) -> None:
    """Between the API server and a node; the node's default route."""
    here, there = (f"192.0.2.{4 * number + each}" for each in (1, 2))
    run_command(
        *("ip", "link", "add", f"n{number}", "type", "veth"),
        *("peer", "name", "uplink", "netns", node.name),
        netns=plane.name,
    )
    for netns, link, address in ((plane, f"n{number}", here), (node, "uplink", there)):
        run_command("ip", "address", "add", f"{address}/30", "dev", link, netns=netns.name)
        run_command("ip", "link", "set", "dev", link, "up", netns=netns.name)
    run_command("ip", "route", "add", "default", "via", here, netns=node.name)
    run_command("sysctl", "-qw", "net.ipv4.ip_forward=1", netns=node.name)


def _attach(node: Netns, pod: Netns, address: str) -> None:
    port = f"p{address.rpartition('.')[2]}"
    run_command(
        *("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", pod.name),
        netns=node.name,
    )
    run_command("ip", "address", "add", "10.1.0.1/32", "dev", port, netns=node.name)
    run_command("ip", "link", "set", port, "up", netns=node.name)
    run_command("ip", "route", "add", f"{address}/32", "dev", port, netns=node.name)
    run_command("ip", "address", "add", f"{address}/32", "dev", "eth0", netns=pod.name)
    run_command("ip", "link", "set", "eth0", "up", netns=pod.name)
    route = ("default", "via", "10.1.0.1", "dev", "eth0", "onlink")
    run_command("ip", "route", "add", *route, netns=pod.name)


# Figures

_AT_LEAST_AS_MANY = Target(1.0, at_least=True)
_NO_SLOWER = Target(1.0)
_KINDS: tuple[tuple[str, str, Unit, Target | None], ...] = (
    ("rate", "new connections", "1/s", _AT_LEAST_AS_MANY),
    ("p50_us", "connect, p50", "ms", _NO_SLOWER),
    ("p99_us", "connect, p99", "ms", None),
    ("change", "a changed endpoint is asked", "ms", None),
    ("start", "from nothing", "s", None),
    ("memory", "resident", "MB", None),
)


def _figures(found: dict[str, dict[str, list[float]]]) -> Iterator[Figure]:
    """Limpet beside kube-proxy in each mode; what is carried beside pod to pod, too."""
    for size in SIZES:
        for kind, words, unit, target in _KINDS:
            values = found[f"{kind}-{size}"]
            for mode in MODES:
                yield Figure(
                    f"services-{size}-{kind.removesuffix('_us')}-{mode}",
                    f"Services: {size:,}: {words} (reference: kube-proxy {mode})",
                    unit,
                    values[OURS],
                    values[mode],
                    target=target if mode == "nftables" else None,
                )
        yield Figure(
            f"services-{size}-rate-direct",
            f"Services: {size:,}: new connections (reference: pod to pod)",
            "1/s",
            found[f"rate-{size}"][OURS],
            found[f"rate-{size}"]["direct"],
        )
    for what, words, unit in (("ask", "64 bytes and an answer", "1/s"), ("send", "TCP", "Gbit/s")):
        for reference in (*MODES, "direct"):
            beside = "pod to pod" if reference == "direct" else f"kube-proxy {reference}"
            yield Figure(
                f"services-{what}-{reference}",
                f"Services: one connection: {words} (reference: {beside})",
                "1/s" if unit == "1/s" else "Gbit/s",
                found[what][OURS],
                found[what][reference],
                target=_AT_LEAST_AS_MANY if reference == "nftables" else None,
            )
