"""Services in worlds of the lab: told by the file that a node keeps of them, since no world has an
API server; and clients that connect all the time."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from limpet.lab.world.machine import Machine
from limpet.lab.world.pod import LabPod
from limpet.lab.world.world import World
from limpet.services.kept import KEPT_FILE, encode_items
from limpet.services.values import (
    Endpoint,
    EndpointPort,
    EndpointSlice,
    Service,
    ServicePort,
)
from tests.beds.traffic.tcp import serving
from tests.waiting import PATIENCE_S

ADDRESS, PORT, TARGET_PORT = "10.96.0.7", 80, 8080
NAME = "shop/web"


def web(
    *pods: tuple[Machine, LabPod], name: str = "web", address: str = ADDRESS, **says: Any
) -> list[Service | EndpointSlice]:
    """A Service of these pods; `says`: what else it says."""
    service = Service(
        "shop", name, cluster_ips=(address,), ports=(ServicePort("http", "TCP", PORT),), **says
    )
    found = tuple(Endpoint(ipv4(pod), node=machine.label, pod=pod.name) for machine, pod in pods)
    ports = (EndpointPort("http", "TCP", TARGET_PORT),)
    return [service, EndpointSlice("shop", f"{name}-1", name, 4, ports, found)]


def ipv4(pod: LabPod) -> str:
    return next(str(each.ip) for each in pod.addresses if each.version == 4)


def tell(machine: Machine, items: list[Service | EndpointSlice]) -> None:
    """The node has kept this, as if an API server had said it, which is away; its agent begins
    anew."""
    machine.stop_agent()
    machine.settings |= {
        "services": "on",
        "source": "kubernetes",
        "kubernetes_kubeconfig": str(machine.folder / "there-is-none"),
    }
    keep(machine, items)
    machine.start_agent()


def keep(machine: Machine, items: list[Service | EndpointSlice]) -> None:
    """The node, whose agent is away, has kept this."""
    path = Path(machine.settings["state_dir"]) / "cluster" / KEPT_FILE
    path.write_bytes(encode_items(items))


def endpoints(machine: Machine, name: str = NAME) -> dict[str, tuple[int, str]]:
    """By node: how often its endpoint is drawn, and why it is not."""
    shown = machine.ask("service", name=name)
    return {each["node"]: (each["weight"], each["why"]) for each in shown["endpoints"]}


class Tried(NamedTuple):
    at_s: float
    took_s: float
    answer: str
    """Of whoever was reached; what went wrong begins with `!`."""


_CLIENT = """
import json, socket, sys, time
while True:
    began = time.time()
    try:
        with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5) as server:
            answer = server.recv(1000).decode()
    except OSError as error:
        answer = f"!{error}"
    print(json.dumps([began, time.time() - began, answer]), flush=True)
    time.sleep(0.02)
"""


class Connecting:
    """Within the block a pod connects to the Service, again and again."""

    def __init__(self, pod: LabPod, address: str = ADDRESS) -> None:
        self._command = (
            *("nsenter", f"--net={pod.netns_path}", sys.executable, "-c", _CLIENT),
            *(address, str(PORT)),
        )
        self.tried: list[Tried] = []

    def __enter__(self) -> Connecting:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def until(self, answer: str) -> Tried:
        """The first that is answered so from now on. Raises: AssertionError when none is."""
        end_s = time.monotonic() + PATIENCE_S
        while (tried := self.next()).answer != answer:
            assert time.monotonic() < end_s, f"{answer} does not answer: {self.tried[-5:]}"
        return tried

    def next(self) -> Tried:
        assert self._process.stdout is not None
        tried = Tried(*json.loads(self._process.stdout.readline()))
        self.tried.append(tried)
        return tried

    @property
    def failed(self) -> list[Tried]:
        return [each for each in self.tried if each.answer.startswith("!")]


@contextlib.contextmanager
def serving_all(world: World, *names: str) -> Iterator[None]:
    """The first pod of each of these nodes says the name of its node."""
    with contextlib.ExitStack() as stack:
        for name in names:
            pod = next(iter(world.machine(name).pods.values()))
            stack.enter_context(serving(pod, TARGET_PORT, name))
        yield
