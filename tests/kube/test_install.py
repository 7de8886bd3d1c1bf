"""`limpet install --kubernetes` on a machine with systemd, and a real API server next door."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from limpet.lab.command import run_command
from limpet.lab.kube.control_plane import ControlPlane
from limpet.lab.netns import delete_namespace
from tests.cli.install.service_machine import ServiceMachine
from tests.cli.install.test_install import LIMPET, assert_unchanged, limpet, refusal, state_of
from tests.clients.machine import OUTSIDE
from tests.kube.test_accounts import kubeconfig_of, settings_in_the_manifests
from tests.kube.test_manifests import MANIFEST
from tests.waiting import wait_until

NODE = "edge-1"
KUBELET = "/etc/kubernetes/kubelet.conf"
CONTROLLER = "/tmp/cloud/controller.toml"
_numbers = itertools.count()


@dataclass(frozen=True)
class Edge:
    """A machine, and beside it an API server with a controller."""

    machine: ServiceMachine
    plane: ControlPlane

    def token(self) -> str:
        return limpet(self.machine, "token", "create", "--config", CONTROLLER).strip()

    def install(self, *words: str) -> str:
        return limpet(self.machine, "install", *self.words, *words)

    @property
    def words(self) -> tuple[str, ...]:
        return "--kubernetes", "--kubeconfig", KUBELET

    def status(self) -> dict[str, Any]:
        said = self.machine.try_run(*LIMPET, "status", "--output", "json").stdout
        found: dict[str, Any] = json.loads(said)
        return found

    def presence(self) -> dict[str, Any]:
        listed = json.loads(self.plane.kubectl("get", "nodepresences", "-o", "json"))["items"]
        return next((each for each in listed if each["metadata"]["name"] == NODE), {})


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    folder = tmp_path_factory.mktemp("edge")
    netns = f"lki{os.getpid()}-{next(_numbers)}"
    with ServiceMachine() as machine:
        holder = machine.start("sleep", "100000", netns=OUTSIDE)
        run_command("ip", "netns", "attach", netns, str(holder.pid))
        plane = ControlPlane(netns, folder / "plane", ("192.0.2.1",))
        try:
            run_command("ip", "route", "add", "default", "dev", "lo", netns=netns)
            plane.start(only_api=True)
            plane.kubectl("apply", "-f", str(MANIFEST))
            for kind in ("clusternetworks", "nodegrants", "nodepresences", "communities"):
                plane.kubectl("wait", "--for=condition=Established", f"crd/{kind}.limpet.dev")
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
            plane.kubectl("create", "-f", "-", stdin=json.dumps(node))
            start_controller(machine, plane, folder)
            user = f"system:node:{NODE}"
            kubelet = plane.write_kubeconfig("kubelet", user, groups=["system:nodes"], inside=True)
            machine.write(KUBELET, kubelet.read_text())
            yield Edge(machine, plane)
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
        "listen": "192.0.2.1:7470",
        "advertise": ["192.0.2.1:7470"],
    }
    del settings["metrics_listen"]
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in settings.items()]
    machine.write(CONTROLLER, "".join(lines))
    machine.start(*LIMPET, "controller", "--config", CONTROLLER, netns=OUTSIDE)
    network = ("get", "clusternetworks", "-o", "jsonpath={.items[*].status.controllers.addresses}")
    wait_until(lambda: plane.kubectl(*network), "it leads, and says where it is")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--kubernetes",), "--kubeconfig"),
        (("--kubeconfig", KUBELET), "go with --kubernetes"),
        (("--kubernetes", "--kubeconfig", KUBELET), "--token"),
        (("--kubernetes", "--kubeconfig", "/nowhere", "--token", "TOKEN"), "/nowhere"),
        (
            ("--kubernetes", "--kubeconfig", KUBELET, "--token", "TOKEN", "--name", "edge-9"),
            "edge-9",
        ),
    ],
    ids=["no kubeconfig", "no kubernetes", "no token", "no such file", "no such node"],
)
def test_what_cannot_be_is_refused_in_words_and_changes_nothing(
    edge: Edge, words: tuple[str, ...], said: str
) -> None:
    before = state_of(edge.machine)
    token = edge.token()

    words = tuple(token if each == "TOKEN" else each for each in words)
    assert said in "".join(refusal(edge.machine, "install", *words))

    assert_unchanged(before, edge.machine)


def test_a_node_is_installed_by_a_token_goes_on_without_the_api_server_and_is_taken_away(
    edge: Edge,
) -> None:
    """As its kubelet, under its Node's name, with controllers that the API server names."""
    before = state_of(edge.machine)

    said = edge.install("--token", edge.token())

    assert f"{NODE} (" in said
    assert "joined" in said
    assert "limpet.dev/agent=systemd" in said
    wait_until(edge.presence, "its presence is written as its kubelet")
    assert edge.machine.run("systemctl", "is-enabled", "limpet-agent").strip() == "enabled"
    config = edge.machine.path("/etc/limpet/agent.toml").read_text()
    assert 'source = "kubernetes"' in config

    edge.plane.kubectl("label", "node", NODE, "limpet.dev/agent=systemd")
    again = edge.install()
    assert "up to date" in again
    assert "limpet.dev/agent" not in again

    edge.plane.stop_process("kube-apiserver")
    edge.machine.run("systemctl", "restart", "limpet-agent", timeout_s=60)
    wait_until(
        lambda: edge.machine.try_run(*LIMPET, "status").returncode == 0,
        "it serves pods while no API server is there",
    )
    assert edge.status()["cluster"]["segments"]
    edge.plane.start_process("kube-apiserver")

    limpet(edge.machine, "uninstall", "--purge")
    assert_unchanged(before, edge.machine)
