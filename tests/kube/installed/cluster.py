"""A cluster without a network in which deploy/limpet.yaml is applied, and what its nodes say."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import yaml

from limpet.agent.client import call
from limpet.base.errors import LimpetError
from limpet.lab.command import LabError, side_by_side
from limpet.lab.kube.control_plane import ControlPlane
from limpet.lab.kube.image import IMAGE
from limpet.lab.kube.machine import KubeMachine
from limpet.lab.kube.node_system import STATIC_PODS
from limpet.lab.kube.world import KubeWorld
from limpet.lab.topology import load_topology
from limpet.linux.namespaces import Namespace
from tests.kube.installed.test_manifests import MANIFEST, SPACE
from tests.waiting import wait_until

CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
_EVERY_S = 0.005
_SO_RCVBUFFORCE = 33
"""Source: include/uapi/asm-generic/socket.h: past `net.core.rmem_max`."""
_SERVER = "echo $POD > /www/index.html; exec httpd -f -p 80 -h /www"


@contextmanager
def bare_world(folder: Path, archive: Path) -> Iterator[KubeWorld]:
    """Nodes that have kubelet, containerd and the image, and nothing else; none is Ready."""
    with world_without_image(folder) as world:
        side_by_side(lambda machine: import_image(machine, archive), world.kube_machines)
        yield world


@contextmanager
def world_without_image(folder: Path) -> Iterator[KubeWorld]:
    """Nodes that have kubelet and containerd, and nothing of Limpet; none is Ready."""
    name = f"b{os.getpid()}"
    world = KubeWorld(load_topology("kube-bare"), name, folder / name)
    try:
        world.up()
        yield world
    finally:
        world.down()


def import_image(machine: KubeMachine, archive: Path) -> None:
    machine.system.run("ctr", "-n", "k8s.io", "image", "import", str(archive))


def manifest_for(world: KubeWorld) -> str:
    """As a person edits it who has no kube-proxy: the API server's own address is said."""
    wanted = f'kubernetes_server = "{world.plane.url_inside}"'
    text = MANIFEST.read_text().replace('# kubernetes_server = "https://192.0.2.1:6443"', wanted)
    assert text.count(wanted) == 2
    return text


def deployment(name: str, replicas: int) -> dict[str, Any]:
    """Pods on different nodes, which answer HTTP with their names."""
    pod_name = {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    labels = {"matchLabels": {"app": name}}
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": labels,
    }
    container = {
        "name": "server",
        "image": IMAGE,
        "command": ["/bin/sh", "-c", _SERVER],
        "env": [pod_name],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": labels,
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {
                    "containers": [container],
                    "topologySpreadConstraints": [spread],
                    "terminationGracePeriodSeconds": 0,
                    "dnsPolicy": "Default",
                },
            },
        },
    }


@dataclass(frozen=True)
class Pod:
    """One that runs, and where."""

    name: str
    machine: KubeMachine
    addresses: tuple[str, ...]

    def attachment(self) -> dict[str, Any]:
        """As the agent of its node keeps it."""
        for each in ask(self.machine, "attachments")["attachments"]:
            if each["pod"]["name"] == self.name:
                found: dict[str, Any] = each
                return found
        raise AssertionError(f"the agent of {self.machine.label} knows no pod {self.name}")

    def namespace(self) -> Namespace:
        return Namespace(str(self.machine.system.path(self.attachment()["netns"]["path"])))


def ask(machine: KubeMachine, verb: str, **arguments: Any) -> dict[str, Any]:
    """The agent of the node, whatever runs it. Raises: LimpetError."""
    return call(machine.system.path("/run/limpet/agent.sock"), verb, **arguments)


def running_pods(world: KubeWorld, app: str, count: int) -> dict[str, Pod]:
    """Of a Deployment, by node, once all of them run and have their addresses."""

    def found() -> dict[str, Pod]:
        items = json.loads(world.plane.kubectl("get", "pods", f"-lapp={app}", "-o", "json"))
        pods = {
            each["spec"]["nodeName"]: _pod(world, each)
            for each in items["items"]
            if each["status"]["phase"] == "Running"
            and each["status"].get("podIPs")
            and "deletionTimestamp" not in each["metadata"]
        }
        return pods if len(pods) == count else {}

    return wait_until(found, f"{count} pods of {app} run")


def _pod(world: KubeWorld, found: Mapping[str, Any]) -> Pod:
    machine = world.machine(found["spec"]["nodeName"])
    assert isinstance(machine, KubeMachine)
    addresses = tuple(each["ip"] for each in found["status"]["podIPs"])
    return Pod(found["metadata"]["name"], machine, addresses)


def fetch(client: Pod, address: str) -> str:
    """What a server at this address says to a pod, without an API server. Raises: LabError."""
    url = f"http://[{address}]/" if ":" in address else f"http://{address}/"
    netns = client.attachment()["netns"]["path"]
    words = ("busybox", "timeout", "5", "busybox", "wget", "-q", "-O", "-", url)
    return client.machine.system.run("nsenter", f"--net={netns}", *words).strip()


def answers(client: Pod, server: Pod) -> bool:
    """By all its addresses."""
    try:
        return {fetch(client, each) for each in server.addresses} == {server.name}
    except (LabError, LimpetError, AssertionError):  # the agent, or the pod, is not there yet
        return False


class Stream:
    """Numbered datagrams from a pod to another, one every 5 ms, counted where they come in."""

    def __init__(self, source: Pod, target: Pod) -> None:
        address = target.addresses[0]
        family = socket.AF_INET if ip_address(address).version == 4 else socket.AF_INET6
        with target.namespace() as there, there.entered():
            self._in = socket.socket(family, socket.SOCK_DGRAM)
        with source.namespace() as here, here.entered():
            self._out = socket.socket(family, socket.SOCK_DGRAM)
        self._in.bind((address, 0))
        self._in.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 1 << 22)
        self._in.settimeout(0.2)
        self._out.connect(self._in.getsockname())
        self.name = f"{source.machine.label} -> {target.machine.label}"
        self.sent = 0
        self._received: set[int] = set()
        self._ending = threading.Event()
        self._threads = [threading.Thread(target=each) for each in (self._send, self._receive)]
        for each in self._threads:
            each.start()

    def _send(self) -> None:
        while not self._ending.wait(_EVERY_S):
            self._out.send(self.sent.to_bytes(4, "big"))
            self.sent += 1

    def _receive(self) -> None:
        while True:
            try:
                self._received.add(int.from_bytes(self._in.recv(64), "big"))
            except TimeoutError:
                if self._ending.is_set():
                    return

    @property
    def flows(self) -> bool:
        return len(self._received) > 10

    def end(self) -> list[int]:
        """Numbers of those that did not come in."""
        self._ending.set()
        for each in self._threads:
            each.join()
        self._in.close()
        self._out.close()
        return sorted(set(range(self.sent)) - self._received)


def rollout(world: KubeWorld, what: str, space: str = SPACE) -> None:
    """Returns when all its pods are there and ready. Raises: LabError."""
    world.plane.kubectl("rollout", "status", what, "-n", space, "--timeout=300s")


class Watch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()

    def __str__(self) -> str:
        return f"{time.monotonic() - self._began_s:.1f} s"


def install_service(world: KubeWorld, machine: KubeMachine) -> None:
    """What the agent needs to run as a service of the node: it starts from the node's disk."""
    # A token for the node, in place of one for a pod: nobody renews it here.
    bound = ("--bound-object-kind=Node", f"--bound-object-name={machine.label}")
    words = ("create", "token", "limpet-agent", "-n", SPACE, "--duration=8h", *bound)
    token = world.plane.kubectl(*words).strip()
    path = world.plane.write_kubeconfig(f"agent-{machine.label}", "nobody", inside=True)
    config = yaml.safe_load(path.read_text())
    for user in config["users"]:
        user["user"] = {"token": token}
    machine.system.write("/etc/limpet/kubeconfig", yaml.safe_dump(config))
    machine.system.write("/etc/limpet/agent.toml", _SERVICE)


def start_service(machine: KubeMachine) -> None:
    """Returns when the agent serves pods. Raises: LabError with its log."""
    machine.agent.start(
        [*machine.system.prefix, sys.executable, "-m", "limpet", "agent"],
        notify=machine.run_dir / "service.notify",
        within_s=120.0,
    )


_SERVICE = """\
source = "kubernetes"
kubernetes_kubeconfig = "/etc/limpet/kubeconfig"
"""


@contextmanager
def without_api_server(plane: ControlPlane) -> Iterator[None]:
    """It is killed; within the block it is away, unless the block has started it again."""
    plane.stop_process("kube-apiserver", signal.SIGKILL)
    try:
        yield
    finally:
        if plane.processes["kube-apiserver"].pid is None:
            plane.start_process("kube-apiserver")


def kill_sandbox(pod: Pod) -> None:
    """As if it had crashed: the kubelet makes another for the same pod."""
    sandbox = pod.attachment()["holder"]["container_id"]
    run = pod.machine.system.run
    run("ctr", "-n", "k8s.io", "task", "kill", "-s", "SIGKILL", sandbox)
    wait_until(lambda: _is_in_another(pod, sandbox), f"{pod.name} is in another sandbox")


def _is_in_another(pod: Pod, sandbox: str) -> bool:
    found = [
        a for a in ask(pod.machine, "attachments")["attachments"] if a["pod"]["name"] == pod.name
    ]
    return bool(found) and found[0]["holder"]["container_id"] != sandbox


def start_static_pod(machine: KubeMachine, name: str) -> None:
    """The kubelet has it from the node's own disk; it answers HTTP with its name."""
    found = deployment(name, 1)["spec"]["template"]["spec"]
    spec = {key: value for key, value in found.items() if key != "topologySpreadConstraints"}
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    machine.system.write(f"{STATIC_PODS}/{name}.json", json.dumps(document))


def static_pod(machine: KubeMachine, name: str) -> Pod:
    """Once the agent of its node has attached it; no API server is asked."""

    def found() -> Pod | None:
        try:
            attached = ask(machine, "attachments")["attachments"]
        except LimpetError:
            return None  # the agent starts
        for each in attached:
            if each["pod"]["name"] == f"{name}-{machine.label}":
                addresses = tuple(text.partition("/")[0] for text in each["addresses"])
                return Pod(each["pod"]["name"], machine, addresses)
        return None

    pod = wait_until(found, f"static pod {name} is attached")
    assert pod is not None
    return pod
