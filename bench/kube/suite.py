"""The table of k8s-bench-suite: pod to pod and pod to Service, TCP and UDP, on one node and across
nodes, and what the parts of a node cost, idle and under load; for Limpet, and for flannel with
kube-proxy.

    API server, controller ── LAN ── limpet-1, limpet-2     (an agent each, with Services)
                                 └── flannel-1, flannel-2   (flanneld and kube-proxy each)

Source of the table: https://github.com/InfraBuilder/k8s-bench-suite. That starts iperf3 between two
machines; here both ends are in one thread (`flows`), so that rates can be compared on two busy
processors: they are of one flow, and of one processor.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tests.beds.services.socket_bed import Cgroup, mounted
from tests.kube.flannel.flannel_bed import BesideWorld, beside_world, reference_folder
from tests.waiting import wait_until

from bench.bed import Bed
from bench.figures import Figure, Unit
from bench.nodes.resident import cpu_s, resident_mb
from bench.traffic.flows import Flows, Way, in_turns
from limpet.lab.kube.control_plane import ADMINISTRATORS
from limpet.lab.kube.kube_proxy import KubeProxy
from limpet.lab.kube.programs import built_programs
from limpet.lab.world.pod import LabPod
from limpet.linux.namespaces import Namespace

OURS, THEIRS = "limpet", "flannel"
_TOPOLOGY = """
disk_mib = 0
[cloud]
addresses = ["203.0.113.10/24", "2001:db8:c::10/64"]
[site.harbour]
lan = ["192.168.10.0/24", "fd00:10::/64"]
nodes = { limpet-1 = 0, limpet-2 = 0, flannel-1 = 0, flannel-2 = 0 }
"""
_PORT = 5201
_FIRST_NUMBER = {OURS: 1, THEIRS: 100}
_TURNS = 20
_IDLE_S = 20.0
_PLACES = (("near", "the same node"), ("far", "across nodes"))
_KINDS: tuple[tuple[str, str, Unit], ...] = (
    ("stream", "TCP", "Gbit/s"),
    ("datagrams", "UDP", "Gbit/s"),
)


class _Used(NamedTuple):
    """Of all parts of one node."""

    cpu_percent: float
    """Of one processor."""
    resident_mb: float


def suite(bed: Bed, rounds: int) -> list[Figure]:
    """k8s-bench-suite's table for Limpet and for flannel with kube-proxy."""
    if bed.reference_only:
        return []
    if built_programs("etcd", "kube-apiserver", "kubectl", "flanneld", "kube-proxy") is None:
        bed.notes.append("suite: left out: its programs are not there (scripts/fetch-kubernetes)")
        return []
    with (
        tempfile.TemporaryDirectory() as folder,
        beside_world(_TOPOLOGY, Path(folder), _World) as world,
        ExitStack() as undo,
    ):
        world.fill(undo)
        figures = [*_idle(world)]
        for place, where in _PLACES:
            for target in ("pod", "Service"):
                figures += _rates(world, rounds, place, f"pod to {target}, {where}", target)
        world.serve_at_the_socket(undo)
        for place, where in _PLACES:
            words = f"pod to Service at the socket (eBPF), {where}"
            figures += _rates(world, rounds, place, words, "Service", name="socket")
    bed.notes.append("suite: of each side one node's parts: an agent; flanneld and kube-proxy")
    return figures


class _World(BesideWorld):
    """Two nodes of each side; on the first of them one asks and one serves, on the second one
    serves."""

    def fill(self, undo: ExitStack) -> None:
        self._cgroup: Cgroup | None = None
        kubeconfig = self.plane.write_kubeconfig(
            "bench", "bench", groups=[ADMINISTRATORS], inside=True
        )
        self._proxies: dict[str, KubeProxy] = {}
        self.served: dict[str, str] = {}
        """Of each pod, and of the Service before each that serves."""
        for side in (OURS, THEIRS):
            for number in (1, 2):
                self._add(side, number, kubeconfig, undo)
            self.machines[f"{side}-1"].start_pod(f"{side}-client")
            for place, number in (("near", 1), ("far", 2)):
                name = f"{side}-{place}"
                pod = self.machines[f"{side}-{number}"].start_pod(name)
                self.served[name] = _ipv4(pod)
                self.served[f"{name}-service"] = self._create_service(name)
        for side in (OURS, THEIRS):
            client = self.pod(f"{side}-client")
            for place, _ in _PLACES:
                address = self.served[f"{side}-{place}"]
                wait_until(lambda c=client, a=address: c.reaches(a), f"{side} reaches {place}")  # type: ignore[misc]
                self._await_service(client, f"{side}-{place}")

    def _add(self, side: str, number: int, kubeconfig: Path, undo: ExitStack) -> None:
        name = f"{side}-{number}"
        if side == OURS:
            self.machines[name].settings |= {
                "services": "on",
                "source": "kubernetes",
                "kubernetes_kubeconfig": str(kubeconfig),
            }
            self.add_limpet(name, _FIRST_NUMBER[side] + number)
            return
        machine = self.add_flannel(name, _FIRST_NUMBER[side] + number)
        told = {"addresses": [{"type": "InternalIP", "address": str(machine.addresses[0].ip)}]}
        patch = json.dumps({"status": told})
        self.plane.kubectl("patch", "node", name, "--subresource=status", "-p", patch)
        proxy = KubeProxy(
            machine.name,
            machine.folder / "kube-proxy",
            kubeconfig,
            node=name,
            mode="nftables",
            iptables=reference_folder(),
        )
        undo.callback(proxy.process.kill)
        proxy.start()
        self._proxies[name] = proxy

    def _create_service(self, name: str) -> str:
        ports = [{"name": each, "port": _PORT, "protocol": each.upper()} for each in _PROTOCOLS]
        service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}}
        labels = {"kubernetes.io/service-name": name}
        found = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": f"{name}-1", "labels": labels},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [self.served[name]]}],
            "ports": ports,
        }
        items = [{**service, "spec": {"ports": ports}}, found]
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
        self.plane.kubectl("create", "-f", "-", stdin=text)
        path = "jsonpath={.spec.clusterIP}"
        return self.plane.kubectl("get", "service", name, "-o", path).strip()

    def _await_service(self, client: LabPod, name: str) -> None:
        """Its rules are there: a pod that does not listen refuses by itself, at the other end."""
        pod, address = self.pod(name), self.served[f"{name}-service"]

        def is_served() -> bool:
            with ExitStack() as undo:
                way = Way(_inside(client), _inside(pod), address, _PORT, _PORT)
                try:
                    Flows(undo).questions(way)
                except OSError:
                    return False
                return True

        wait_until(is_served, f"the Service of {name} is served")

    def serve_at_the_socket(self, undo: ExitStack) -> None:
        """Of Limpet, for the pod that asks, from now on."""
        machine = self.machines[f"{OURS}-1"]
        machine.stop_agent()
        self._cgroup = Cgroup()
        undo.callback(self._cgroup.close)
        undo.enter_context(mounted("bpf", Path(machine.settings["run_dir"]) / "bpf"))
        undo.callback(machine.stop_agent)
        machine.settings |= {
            "services_backend": "ebpf",
            "services_cgroup": str(self._cgroup.path),
        }
        machine.start_agent()
        wait_until(lambda: machine.ask("services")["backend"] == "ebpf", "it is not served")

    def way(self, side: str, place: str, target: str) -> Way:
        name = f"{side}-{place}"
        client, server = self.pod(f"{side}-client"), self.pod(name)
        address = self.served[name if target == "pod" else f"{name}-service"]
        asks = _Inside(client.netns_path, self._cgroup if side == OURS else None)
        return Way(asks, _inside(server), address, _PORT, _PORT)

    def pids(self, side: str) -> list[int]:
        """Of the parts of its first node."""
        name = f"{side}-1"
        machine = self.machines[name]
        if side == OURS:
            found = [machine.agent.pid]
        else:
            found = [machine.flanneld.pid, self._proxies[name].process.pid]
        if None in found:
            raise RuntimeError(f"{name}: one of its parts has ended")
        return [each for each in found if each is not None]


_PROTOCOLS = ("tcp", "udp")


def _ipv4(pod: LabPod) -> str:
    return next(str(each.ip) for each in pod.addresses if each.version == 4)


def _inside(pod: LabPod) -> Callable[[], Any]:
    return _Inside(pod.netns_path)


@dataclass(frozen=True, slots=True)
class _Inside:
    """Two of one pod are the same."""

    path: str
    cgroup: Cgroup | None = None
    """In which sockets are made, too."""

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with ExitStack() as undo:
            if self.cgroup is not None:
                undo.enter_context(self.cgroup.entered())
            undo.enter_context(undo.enter_context(Namespace(self.path)).entered())
            yield


# Measuring


def _idle(world: _World) -> Iterator[Figure]:
    with _using(world) as used:
        time.sleep(_IDLE_S)
    yield from _of_parts("idle", "idle", {side: [used[side]] for side in used})


def _rates(
    world: _World, rounds: int, place: str, words: str, target: str, *, name: str = ""
) -> Iterator[Figure]:
    """`name`: of the figures, in place of the target's."""
    for kind, protocol, unit in _KINDS:
        rates: dict[str, list[float]] = {OURS: [], THEIRS: []}
        loads: dict[str, list[_Used]] = {OURS: [], THEIRS: []}
        for _ in range(rounds):
            with ExitStack() as undo:
                flows = Flows(undo)
                open_ = flows.stream if kind == "stream" else flows.datagrams
                turns = {side: open_(world.way(side, place, target)) for side in rates}
                with _using(world) as used:
                    for found in in_turns(turns, _TURNS):
                        for side, rate in found.items():
                            rates[side].append(rate)
                for side, each in used.items():
                    loads[side].append(each)
        figure = f"suite-{place}-{name or target.lower()}-{protocol.lower()}"
        title = f"{words}, {protocol} (reference: flannel with kube-proxy)"
        yield Figure(figure, title, unit, rates[OURS], rates[THEIRS])
        yield from _of_parts(figure, "... under that load", loads)


def _of_parts(name: str, words: str, used: Mapping[str, list[_Used]]) -> Iterator[Figure]:
    """`used`: by side."""
    asked: tuple[tuple[str, str, Unit], ...] = (
        ("cpu_percent", "CPU", "CPU %"),
        ("resident_mb", "memory", "MB"),
    )
    for field, what, unit in asked:
        ours, theirs = ([getattr(each, field) for each in used[side]] for side in (OURS, THEIRS))
        yield Figure(f"{name}-{field}", f"{words}: {what} of a node's parts", unit, ours, theirs)


@contextmanager
def _using(world: _World) -> Iterator[dict[str, _Used]]:
    """Filled at the end: what the parts of each side's first node used within the block."""
    found: dict[str, _Used] = {}
    pids = {side: world.pids(side) for side in (OURS, THEIRS)}
    before = {side: sum(map(cpu_s, of_side)) for side, of_side in pids.items()}
    began_s = time.monotonic()
    yield found
    took_s = time.monotonic() - began_s
    for side, of_side in pids.items():
        spent_s = sum(map(cpu_s, of_side)) - before[side]
        found[side] = _Used(spent_s / took_s * 100, sum(map(resident_mb, of_side)))
