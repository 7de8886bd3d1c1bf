"""An endpoint's node loses power without a word: requests that fail until nobody sends to it any
more, from a node whose Services are Limpet's and from one that has a kube-proxy.

One site: two nodes that ask, two that die one after the other, one that stays. The control plane is
real with all its controllers, and its own defaults; kubelets there are none, so this says for the
nodes what their kubelets would: Ready, and a Lease that is renewed as long as a node lives. The
first node dies while the API server is reached, the second one while the site is cut off from it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.beds.traffic.tcp import serving
from tests.waiting import wait_until

from bench.bed import Bed
from bench.figures import Figure
from limpet.base.errors import LimpetError
from limpet.lab.kube.control_plane import ADMINISTRATORS
from limpet.lab.kube.kube_proxy import KubeProxy
from limpet.lab.kube.programs import CONTROL_PLANE_PROGRAMS, built_programs
from limpet.lab.kube.world import KubeWorld
from limpet.lab.topology import parse_topology
from limpet.lab.world.machine import Machine
from limpet.lab.world.pod import LabPod
from limpet.lab.world.world import World, silent

OURS, THEIRS = "limpet", "proxy"
# Addresses of its own: an address that a namespace of the machine has is not taken for a gone one.
_TOPOLOGY = f"""
disk_mib = 0
[controller]
pod_cidrs = ["10.253.0.0/16"]
[cloud]
addresses = ["203.0.113.10/24"]
[site.harbour]
lan = ["192.168.10.0/24"]
nodes = {{ {OURS} = 1, {THEIRS} = 1, dies-1 = 1, dies-2 = 1, stays = 1 }}
"""
_PORT, _TARGET_PORT = 80, 8080
_EVERY_S, _LIMIT_S = 0.05, 1.0
_STEADY = 60
"""Requests in a row that are answered, after which it is over."""
_WITHIN_S = 180.0
"""That the API server's word takes: kubelets have 50 s to be heard of."""
_CUT_OFF_S = 60.0
_RENEW_S = 10.0

_ASKER = f"""
import asyncio, json, sys, time
asked = set()
async def ask(out):
    began_s, said = time.monotonic(), ""
    try:
        async with asyncio.timeout({_LIMIT_S}):
            reader, writer = await asyncio.open_connection(sys.argv[1], {_PORT})
            said = (await reader.read()).decode()
            writer.close()
    except OSError:
        pass
    out.write(json.dumps([began_s, said]) + "\\n")
async def main():
    with open(sys.argv[2], "a", buffering=1) as out:
        while True:
            task = asyncio.create_task(ask(out))
            asked.add(task)
            task.add_done_callback(asked.discard)
            await asyncio.sleep({_EVERY_S})
asyncio.run(main())
"""
"""Asks so often, whatever became of the requests before."""


def node_death(bed: Bed, _rounds: int) -> list[Figure]:
    """Requests that fail, beside kube-proxy, with and without the API server."""
    if bed.reference_only:
        return []
    if built_programs(*CONTROL_PLANE_PROGRAMS) is None:
        bed.notes.append("node-death: left out: there is no API server (scripts/fetch-kubernetes)")
        return []
    figures = []
    with _world() as world, ExitStack() as undo:
        world.begin(undo)
        for service, dies, cut in (("first", "dies-1", False), ("second", "dies-2", True)):
            failed = world.kill(service, dies, cut=cut)
            where = "while cut off from the API server" if cut else "with the API server"
            for what, unit, number in (("requests that fail", "objects", 0), ("... in", "s", 1)):
                ours, theirs = ([failed[side][number]] for side in (OURS, THEIRS))
                figures.append(
                    Figure(
                        f"node-death-{service}-{unit}",
                        f"an endpoint's node dies, {where}: {what} (reference: kube-proxy)",
                        "s" if unit == "s" else "objects",
                        ours,
                        theirs,
                    )
                )
    bed.notes.append(
        f"node-death: {1 / _EVERY_S:.0f} requests a second, each has {_LIMIT_S:g} s; "
        f"while cut off they were counted for {_CUT_OFF_S:g} s"
    )
    return figures


class _World(KubeWorld):
    """Nodes without kubelets, each with a pod, and a control plane."""

    machine_type = Machine

    def up(self, tell: Callable[[str], None] = silent) -> None:
        World.up(self, tell)
        self.plane.start()

    def begin(self, undo: ExitStack) -> None:
        """Two Services of two endpoints, of which one stays; both nodes ask for both."""
        self._living = set(self.machines)
        for name in self.machines:
            _create_node(self, name)
        ending = threading.Event()
        renewing = threading.Thread(target=self._renew, args=(ending,))
        renewing.start()
        undo.callback(renewing.join)
        undo.callback(ending.set)
        wait_until(
            lambda: "default" in self.plane.kubectl("get", "serviceaccounts", "-o", "name"),
            "pods can be created",
        )
        for name in ("dies-1", "dies-2", "stays"):
            pod = self._pod(name)
            undo.enter_context(serving(pod, _TARGET_PORT, name))
            _create_pod(self, name, pod)
        self._addresses = {name: _create_service(self, name) for name in ("first", "second")}
        kubeconfig = self.plane.write_kubeconfig(
            "bench", "bench", groups=[ADMINISTRATORS], inside=True
        )
        self._start_ours(kubeconfig)
        self._start_theirs(kubeconfig, undo)

    def _pod(self, node: str) -> LabPod:
        return next(iter(self.machine(node).pods.values()))

    def _start_ours(self, kubeconfig: Path) -> None:
        machine = self.machine(OURS)
        machine.stop_agent()
        machine.settings |= {
            "services": "on",
            "source": "kubernetes",
            "kubernetes_kubeconfig": str(kubeconfig),
        }
        machine.start_agent()

    def _start_theirs(self, kubeconfig: Path, undo: ExitStack) -> None:
        machine = self.machine(THEIRS)
        folder = self.folder / "kube-proxy"
        proxy = KubeProxy(machine.name, folder, kubeconfig, node=THEIRS, mode="nftables")
        undo.callback(proxy.process.kill)
        proxy.start()

    def _renew(self, ending: threading.Event) -> None:
        while not ending.wait(_RENEW_S):
            for name in sorted(self._living):
                changes = json.dumps({"spec": {"renewTime": _now("%Y-%m-%dT%H:%M:%S.%fZ")}})
                try:
                    self.plane.kubectl("patch", "lease", name, "-n", _LEASES, "-p", changes)
                except LimpetError:
                    continue  # the next one is soon enough

    # A death

    def kill(self, service: str, dies: str, *, cut: bool) -> dict[str, tuple[int, float]]:
        """By who asks: requests that failed, and seconds from the first one's begin to the last
        one's."""
        address = self._addresses[service]
        with ExitStack() as undo:
            logs = {name: self._ask(name, service, address, undo) for name in (OURS, THEIRS)}
            answered = {dies, "stays"}
            for name, log in logs.items():
                wait_until(
                    lambda log=log: {said for _, said in _read(log)[-20:]} == answered,  # type: ignore[misc]
                    f"both endpoints answer {name}",
                )
            if cut:
                self.cut("cloud")
                undo.callback(self.restore, "cloud")
            died_s = time.monotonic()
            self._living.discard(dies)
            self.machine(dies).power_off()
            if cut:
                time.sleep(_CUT_OFF_S)
            else:
                for name, log in logs.items():
                    wait_until(
                        lambda log=log: _is_steady(log, died_s),  # type: ignore[misc]
                        f"{name} sends to nobody that is gone",
                        patience_s=_WITHIN_S,
                    )
            time.sleep(_LIMIT_S)
            return {name: _count(log, died_s) for name, log in logs.items()}

    def _ask(self, name: str, service: str, address: str, undo: ExitStack) -> Path:
        log = self.folder / f"{name}-{service}.jsonl"
        log.touch()
        client = subprocess.Popen(
            [
                *("nsenter", f"--net={self._pod(name).netns_path}"),
                *(sys.executable, "-c", _ASKER, address, str(log)),
            ]
        )
        undo.callback(client.wait)
        undo.callback(client.kill)
        return log


@contextmanager
def _world() -> Iterator[_World]:
    with tempfile.TemporaryDirectory() as folder:
        # Short: names of its namespaces are made of it.
        name = f"bd{time.monotonic_ns() % 100_000}"
        world = _World(parse_topology(_TOPOLOGY, name, "the bench"), name, Path(folder) / name)
        try:
            world.up()
            yield world
        finally:
            world.down()


# What was asked


def _read(log: Path) -> list[tuple[float, str]]:
    """When each request began, and by whom it was answered."""
    return sorted(tuple(json.loads(line)) for line in log.read_text().split("\n")[:-1])


def _is_steady(log: Path, since_s: float) -> bool:
    last = [said for at_s, said in _read(log) if at_s > since_s][-_STEADY:]
    return len(last) == _STEADY and all(last)


def _count(log: Path, since_s: float) -> tuple[int, float]:
    failed = [at_s for at_s, said in _read(log) if not said and at_s > since_s - _LIMIT_S]
    return len(failed), failed[-1] - failed[0] if failed else 0.0


# Objects

_LEASES = "kube-node-lease"


def _now(form: str = "%Y-%m-%dT%H:%M:%SZ") -> str:
    return datetime.now(UTC).strftime(form)


def _apply(world: KubeWorld, *items: dict[str, Any]) -> None:
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    world.plane.kubectl("apply", "-f", "-", stdin=text)


def _tell_status(world: KubeWorld, kind: str, name: str, status: dict[str, Any]) -> None:
    told = json.dumps({"status": status})
    world.plane.kubectl("patch", kind, name, "--subresource=status", "--type=merge", "-p", told)


def _create_node(world: KubeWorld, name: str) -> None:
    address = str(world.machine(name).addresses[0].ip)
    _apply(world, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    ready |= {"lastHeartbeatTime": _now(), "lastTransitionTime": _now()}
    addresses = [{"type": "InternalIP", "address": address}]
    _tell_status(world, "node", name, {"conditions": [ready], "addresses": addresses})
    spec = {"holderIdentity": name, "leaseDurationSeconds": 40}
    spec["renewTime"] = _now("%Y-%m-%dT%H:%M:%S.%fZ")
    metadata = {"name": name, "namespace": _LEASES}
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
    _apply(world, {**lease, "metadata": metadata, "spec": spec})


def _create_pod(world: KubeWorld, name: str, pod: LabPod) -> None:
    labels = {"first": str(name != "dies-2"), "second": str(name != "dies-1")}
    spec = {
        "nodeName": name,
        "automountServiceAccountToken": False,
        "containers": [{"name": "web", "image": "none"}],
        "tolerations": [{"operator": "Exists"}],
    }
    metadata = {"name": name, "labels": labels}
    _apply(world, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    address = next(str(each.ip) for each in pod.addresses if each.version == 4)
    conditions = [{"type": each, "status": "True"} for each in ("Ready", "ContainersReady")]
    status = {"phase": "Running", "conditions": conditions}
    status |= {"podIP": address, "podIPs": [{"ip": address}]}
    _tell_status(world, "pod", name, status)


def _create_service(world: KubeWorld, name: str) -> str:
    """Its address."""
    # Or the nearest of the two has all of ours.
    metadata = {"name": name, "annotations": {"limpet.dev/traffic-distribution": "Even"}}
    spec = {"selector": {name: "True"}, "ports": [{"port": _PORT, "targetPort": _TARGET_PORT}]}
    _apply(world, {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})
    found = world.plane.kubectl("get", "service", name, "-o", "jsonpath={.spec.clusterIP}")
    return found.strip()
