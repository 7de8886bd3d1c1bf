"""An API server with Services, and nodes that hear it: each with whoever serves Services there, a
pod that asks and a pod that serves.

    API server ── node limpet    ── client, server (10.1.0.2, 10.1.0.3)
              │                  └─ client, server of their own for what goes from pod to pod
              ├── node nftables  ── client, server (the same addresses)
              └── node iptables  ── client, server

What stands for Limpet is what an agent has for Services, with its source, in a process of its own.
Whose turn it is not stands still (SIGSTOP): two processors do not carry all of them at once.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.bed import Bed
from bench.nodes.netns import Netns
from bench.nodes.part import Part
from bench.services.objects import ASKED, MOVED, SERVER, ServiceObjects
from bench.services.part import FLOW_PORT, NAME_PORTS
from bench.traffic.flows import Way
from limpet.lab.command import run_command
from limpet.lab.kube.control_plane import ADMINISTRATORS, ControlPlane
from limpet.lab.kube.kube_proxy import KubeProxy, Mode
from limpet.services.kept import KEPT_FILE

OURS, DIRECT = "limpet", "direct"
MODES: tuple[Mode, ...] = ("nftables", "iptables")
_API_ADDRESS = "198.51.100.1"
_CLIENT = "10.1.0.2"
_DIRECT_CLIENT, _DIRECT_SERVER = "10.1.0.4", "10.1.0.5"
"""Others than those of the Service: the kernel would have the same addresses and ports in flows of
both, and seek another port for a new one each time that they meet."""
_CONNECTING_S = 0.5
_REST_S = 1.2
_MOST_BY_IPTABLES = 1_000


@dataclass(frozen=True, slots=True)
class Moved:
    """What became of a changed endpoint, in milliseconds from the request to the API server."""

    told_ms: float
    """Until the API server told somebody who watches."""
    kernel_ms: float
    """Until the kernel of the node had it."""
    asked_ms: float
    """Until a client of the node was answered by who is new."""


class Pods:
    """One that asks and one that is asked."""

    def __init__(
        self, cluster: Cluster, node: Netns, name: str, addresses: tuple[str, str], undo: ExitStack
    ) -> None:
        self._netns = cluster.netns(f"{name}-c"), cluster.netns(f"{name}-s")
        for pod, address in zip(self._netns, addresses, strict=True):
            attach(node, pod, address)
        self.client = Part(self._netns[0], ["bench.services.part", "client"], undo)
        Part(self._netns[1], ["bench.services.part", "server"], undo)

    def way(self, address: str) -> Way:
        """From one to the other, by that address."""
        client, server = (each.inside for each in self._netns)
        return Way(client, server, address, FLOW_PORT, FLOW_PORT)

    def connect(self, address: str, port: int) -> float:
        """New connections a second."""
        question = {"do": "connect", "address": address, "port": port, "for_s": _CONNECTING_S}
        rate: float = self.client.ask(question)
        return rate


class Side:
    """A node, with whoever serves Services on it."""

    def __init__(self, name: str, number: int, cluster: Cluster, undo: ExitStack) -> None:
        self.name = name
        self._cluster = cluster
        self._undo = undo
        self._netns = cluster.netns(name)
        _wire(cluster.plane_netns, self._netns, number)
        self.pods = Pods(cluster, self._netns, name, (_CLIENT, SERVER), undo)
        self._kernel = Part(self._netns, ["bench.services.part", "kernel"], undo)
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

    # Asking

    def more_pods(self, name: str, addresses: tuple[str, str]) -> Pods:
        return Pods(self._cluster, self._netns, name, addresses, self._undo)

    def await_name(self, address: str, name: str) -> float:
        """When it answers there first, by time.monotonic."""
        question = {"do": "await_name", "address": address, "port": 80, "name": name}
        found: float = self.pods.client.ask(question)
        return found

    def move(self, port: int) -> Moved:
        """The endpoint is at that port from now on."""
        self._kernel.ask({"do": "forget"})
        with ThreadPoolExecutor(2) as pool:
            kernel = pool.submit(self._kernel.ask, {"do": "await_change"})
            asked = pool.submit(self.await_name, MOVED, str(port)[-1])
            time.sleep(0.05)  # both wait by now
            began_s = time.monotonic()
            told_s = self._cluster.objects.move(port)
            at_s = (told_s, kernel.result(), asked.result())
        return Moved(*((each - began_s) * 1e3 for each in at_s))

    # Life

    def restart(self, *, keep: bool = False) -> float:
        """Seconds from its start, with nothing in the kernel, until a Service is served.

        `keep`: it has what it kept on its disk.
        """
        self.stop()
        run_command("nft", "flush", "ruleset", netns=self._netns.name)
        if not keep:
            self._kept.unlink(missing_ok=True)
        with ThreadPoolExecutor(1) as pool:
            served = pool.submit(self.await_name, ASKED, str(NAME_PORTS[0])[-1])
            began_s = time.monotonic()
            self._start()
            return served.result() - began_s

    def await_kept(self, count: int) -> None:
        """Until it has so many objects on its disk."""
        end_s = time.monotonic() + 60
        while not (self._kept.exists() and self._kept.read_bytes().count(b"\n") > count):
            if time.monotonic() > end_s:
                raise RuntimeError(f"{self.name} does not keep what it hears")
            time.sleep(0.1)

    def stop(self) -> None:
        self._running.close()
        self._limpet = None
        if self._proxy is not None:
            self._proxy.process.kill()

    def pause(self, *, on: bool) -> None:
        os.kill(self.pid, signal.SIGSTOP if on else signal.SIGCONT)

    def _start(self) -> None:
        if self._proxy is not None:
            self._proxy.start()
            return
        words = ["limpet", str(self._cluster.kubeconfig), str(self._kept.parent)]
        self._limpet = Part(self._netns, ["bench.services.part", *words], self._running)

    @property
    def _kept(self) -> Path:
        return self._cluster.folder / self.name / KEPT_FILE

    @property
    def pid(self) -> int:
        if self._limpet is not None:
            return self._limpet.pid
        pid = self._proxy.process.pid if self._proxy is not None else None
        if pid is None:
            raise RuntimeError(f"{self.name} does not run")
        return pid


class Cluster:
    """An API server with Services, and the nodes."""

    def __init__(self, bed: Bed, undo: ExitStack) -> None:
        self.folder = Path(undo.enter_context(tempfile.TemporaryDirectory()))
        self.iptables = bed.reference_folder
        self._undo = undo
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
            create_node(self._plane, node, f"192.0.2.{4 * number + 6}")
        self.objects = ServiceObjects(self._plane.kubeconfig)
        undo.callback(self.objects.close)
        self.sides = [Side(each, number, self, undo) for number, each in enumerate((OURS, *MODES))]
        self._direct = self.sides[0].more_pods("direct", (_DIRECT_CLIENT, _DIRECT_SERVER))

    def netns(self, name: str) -> Netns:
        made = Netns(f"svc-{name}")
        self._undo.callback(made.close)
        return made

    def grow(self, size: int) -> None:
        """So many Services that nobody asks; nobody hears of them now.

        iptables mode is left out where it has more than it can begin with: it walks through what
        it has put, and 10,000 Services of five endpoints take it more than ten minutes here.
        """
        for side in self.sides:
            side.stop()
        if size > _MOST_BY_IPTABLES:
            self.sides = [each for each in self.sides if each.name != "iptables"]
        self.objects.grow(size)

    @contextmanager
    def turn_of(self, side: Side) -> Iterator[None]:
        """The others stand still."""
        others = [each for each in self.sides if each is not side]
        for other in others:
            other.pause(on=True)
        try:
            yield
        finally:
            for other in others:
                other.pause(on=False)

    def settle(self, port: int) -> None:
        """All have what was moved to that port, and may change something at once again."""
        for side in self.sides:
            side.await_name(MOVED, str(port)[-1])
        self.rest()

    @staticmethod
    def rest() -> None:
        """A kube-proxy that has changed something changes nothing for a second."""
        time.sleep(_REST_S)

    def ways(self) -> dict[str, Way]:
        """Of each side by the Service, and from pod to pod."""
        ways = {side.name: side.pods.way(ASKED) for side in self.sides}
        return ways | {DIRECT: self._direct.way(_DIRECT_SERVER)}

    def connect(self, number: int) -> dict[str, float]:
        """The same ways, by clients and servers in processes of their own; each begins a round as
        often as others."""
        ways = [(side.name, side.pods, ASKED, 80) for side in self.sides]
        ways.append((DIRECT, self._direct, _DIRECT_SERVER, NAME_PORTS[0]))
        first = number % len(ways)
        return {
            name: pods.connect(address, port)
            for name, pods, address, port in ways[first:] + ways[:first]
        }


def create_node(plane: ControlPlane, name: str, address: str) -> None:
    """A kube-proxy waits half a minute for its Node's address."""
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
    told = {"status": {"addresses": [{"type": "InternalIP", "address": address}]}}
    plane.kubectl("create", "-f", "-", stdin=json.dumps(node))
    plane.kubectl("patch", "node", name, "--subresource=status", "-p", json.dumps(told))


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


def attach(node: Netns, pod: Netns, address: str) -> None:
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
