"""A machine with systemd that is a Node, and next door an API server with a controller."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from limpet.lab.command import run_command
from limpet.lab.kube.control_plane import ControlPlane
from limpet.lab.netns import delete_namespace
from tests.cli.install.service_machine import ServiceMachine
from tests.cli.install.test_install import LIMPET, limpet
from tests.clients.machine import CHECKOUT, OUTSIDE
from tests.kube.definitions import OURS, wait_until_served
from tests.kube.installed.test_accounts import kubeconfig_of, settings_in_the_manifests
from tests.kube.installed.test_manifests import MANIFEST
from tests.waiting import wait_until

KUBELET = "/etc/kubernetes/kubelet.conf"
CONTROLLER = "/tmp/cloud/controller.toml"
ADDRESS, PORT = "192.0.2.1", 7470
"""Of the API server and of the controller."""
_numbers = itertools.count()


@dataclass(frozen=True)
class Edge:
    """A machine, and beside it an API server with a controller."""

    machine: ServiceMachine
    plane: ControlPlane
    node: str
    """The machine's name."""

    def token(self) -> str:
        return limpet(self.machine, "token", "create", "--config", CONTROLLER).strip()

    def install(self, *words: str) -> str:
        return limpet(self.machine, "install", *self.words, *words)

    @property
    def words(self) -> tuple[str, ...]:
        return "--kubernetes", "--kubeconfig", KUBELET

    def status(self) -> dict[str, Any]:
        said = self.machine.try_run(*LIMPET, "status", "--output", "json").stdout
        found: dict[str, Any] = json.loads(said or "{}")
        return found

    def presence(self) -> dict[str, Any]:
        listed = json.loads(self.plane.kubectl("get", "nodepresences", "-o", "json"))["items"]
        return next((each for each in listed if each["metadata"]["name"] == self.node), {})


@contextmanager
def edge_machine(folder: Path, node: str) -> Iterator[Edge]:
    """Nothing of Limpet is on it; its kubelet's kubeconfig is."""
    subprocess.run([CHECKOUT / "scripts" / "fetch-runtimes"], check=True)
    netns = f"lki{os.getpid()}-{next(_numbers)}"
    with ServiceMachine() as machine:
        holder = machine.start("sleep", "100000", netns=OUTSIDE)
        run_command("ip", "netns", "attach", netns, str(holder.pid))
        plane = ControlPlane(netns, folder / "plane", (ADDRESS,))
        try:
            run_command("ip", "route", "add", "default", "dev", "lo", netns=netns)
            plane.start(only_api=True)
            plane.kubectl("apply", "-f", str(MANIFEST))
            wait_until_served(plane, *OURS)
            known = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}}
            plane.kubectl("create", "-f", "-", stdin=json.dumps(known))
            start_controller(machine, plane, folder)
            user = f"system:node:{node}"
            kubelet = plane.write_kubeconfig("kubelet", user, groups=["system:nodes"], inside=True)
            machine.write(KUBELET, kubelet.read_text())
            yield Edge(machine, plane, node)
        finally:
            plane.stop()
            delete_namespace(netns)


def start_controller(machine: ServiceMachine, plane: ControlPlane, folder: Path) -> None:
    config = yaml.safe_load(kubeconfig_of(plane, folder, "limpet-controller").read_text())
    for cluster in config["clusters"]:
        cluster["cluster"]["server"] = plane.url_inside
    machine.write("/tmp/cloud/kubeconfig", yaml.safe_dump(config))
    settings = {
        **settings_in_the_manifests(),
        "kubeconfig": "/tmp/cloud/kubeconfig",
        "socket": "/tmp/cloud/c.sock",
        "listen": f"[::]:{PORT}",
        "advertise": [f"{ADDRESS}:{PORT}"],
    }
    del settings["metrics_listen"]
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in settings.items()]
    machine.write(CONTROLLER, "".join(lines))
    machine.start(*LIMPET, "controller", "--config", CONTROLLER, netns=OUTSIDE)
    network = ("get", "clusternetworks", "-o", "jsonpath={.items[*].status.controllers.addresses}")
    wait_until(lambda: plane.kubectl(*network), "it leads, and says where it is")
