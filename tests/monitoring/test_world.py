"""Each expression of dashboards and alerts at a real Prometheus, of the figures of a real world."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from ipaddress import IPv6Address

import pytest

from limpet.cli.usage.figures import all_names
from limpet.lab.world.machine import Machine
from limpet.lab.world.world import World
from tests.lab.bed import a_world
from tests.lab.services import tell, web
from tests.monitoring.prometheus import MONITORING, Prometheus, finite, rules
from tests.waiting import wait_until

# A LAN, NATs that can be opened for each other, and one that cannot: all rungs but two.
TOPOLOGY = """
[cloud]
addresses = ["203.0.113.10/24"]
nodes = { hub = 1 }
relays = ["hub"]
[site.harbour]
lan = ["192.168.1.0/24"]
nat = "cone"
nodes = { crane-1 = 1, crane-2 = 1 }
[site.quarry]
lan = ["192.168.1.0/24"]
nat = "port-restricted"
nodes = { digger-1 = 1 }
[site.mast]
lan = ["192.168.30.0/24"]
nat = "symmetric"
nodes = { radio-1 = 1 }
[controller]
metrics_listen = ["[::]:9472"]
[agent]
metrics_listen = ["[::]:9471"]
dns_metrics_listen = ["[::]:9473"]
dns_upstreams = ["127.0.0.1:5399"]
"""
SERVING = "crane-1"
"""It serves Services and names, and has a policy."""
POLICY = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "held", "namespace": "default"},
    "spec": {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": []},
}
ELSEWHERE = {
    "limpet_agent_exchange_total",
    "limpet_controller_addresses_held_twice",
    "limpet_controller_events_dropped",
    "limpet_agent_unexpected_errors_total",
    "limpet_controller_unexpected_errors_total",
    "limpet_dns_unexpected_errors_total",
}
"""Figures that a world without Kubernetes, a defect, or lost messages does not have."""
NORMAL = {
    "LimpetOnRelayLong",  # radio-1 and digger-1 meet at a relay
    "LimpetServicesStale",  # the world has no API server
    "LimpetNamesUpstream",  # nor has it a name server
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with a_world(TOPOLOGY, tmp_path_factory.mktemp("world")) as world:
        machine = world.machine(SERVING)
        machine.settings["dns"] = "on"
        tell(machine, web((machine, next(iter(machine.pods.values())))))
        machine.ask("policy.apply", documents=[POLICY])
        yield world


@pytest.fixture(scope="module")
def names(world: World) -> Iterator[subprocess.Popen[bytes]]:
    """The process that answers names, on the node that knows Services."""
    machine = world.machine(SERVING)
    command = (sys.executable, "-m", "limpet", "dns", "serve", "--config", str(machine.config_path))
    inside = ("nsenter", f"--net={machine.netns_path}")
    with (
        open(machine.folder / "dns.log", "wb") as log,
        subprocess.Popen([*inside, *command], stdout=log, stderr=log) as process,
    ):
        yield process
        process.terminate()


@pytest.fixture(scope="module")
def prometheus(
    world: World, names: subprocess.Popen[bytes], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    """On the hub: it reaches nodes behind NATs at their addresses in the pods' network."""
    overlay = {name: _overlay(machine) for name, machine in world.machines.items()}
    jobs = {
        "limpet-agent": {name: f"{at}:9471" for name, at in overlay.items()},
        "limpet-controller": {"cloud": "203.0.113.10:9472"},
        "limpet-dns": {SERVING: f"{overlay[SERVING]}:9473"},
    }
    folder = tmp_path_factory.mktemp("prometheus")
    with Prometheus(world.machine("hub"), folder, jobs) as prometheus:
        prometheus.until_scraped()
        wait_until(lambda: finite(prometheus.ask("rate(limpet_agent_rounds_total[30s])")), "rates")
        yield prometheus


def _overlay(machine: Machine) -> str:
    address = machine.overlay_addresses()[0]
    return f"[{address}]" if isinstance(address, IPv6Address) else str(address)


def expressions(dashboard: str, instance: str) -> list[tuple[str, str]]:
    """Of each panel, with what Grafana puts in place of variables."""
    found = json.loads((MONITORING / dashboard).read_text(encoding="utf-8"))
    return [
        (
            panel["title"],
            target["expr"].replace("$__rate_interval", "30s").replace("$instance", instance),
        )
        for panel in found["panels"]
        for target in panel.get("targets", ())
    ]


def test_a_healthy_world_is_silent(prometheus: Prometheus) -> None:
    wait_until(lambda: prometheus.active() <= NORMAL, "nothing is wrong")
    assert set(prometheus.alerts()) == {rule["alert"] for rule in rules()}


def test_every_panel_of_the_cluster_shows_something(prometheus: Prometheus) -> None:
    for title, expression in expressions("limpet-cluster.json", ""):
        wait_until(lambda: finite(prometheus.ask(expression)), f"{title}: {expression}")  # noqa: B023


def test_every_panel_of_a_node_shows_something(prometheus: Prometheus) -> None:
    """Of the node that serves; what a relay has, of the relay."""
    for title, expression in expressions("limpet-node.json", SERVING):
        if "relay_pairs" in expression:
            expression = expression.replace(SERVING, "hub")
        wait_until(lambda: finite(prometheus.ask(expression)), f"{title}: {expression}")  # noqa: B023


def test_every_figure_that_an_alert_asks_for_is_there(prometheus: Prometheus) -> None:
    asked = {
        name for rule in rules() for name in re.findall(r"limpet_[a-z_0-9]+", rule["expr"])
    } - {"limpet_"}

    wait_until(lambda: asked <= prometheus.names() | ELSEWHERE)


def test_the_figures_of_a_real_world_are_those_of_the_reference_and_no_others(
    prometheus: Prometheus,
) -> None:
    """docs/reference/metrics.md is made of the same tables (`scripts/write-reference`)."""
    told = set(all_names())
    wait_until(lambda: told <= prometheus.names() | ELSEWHERE)

    found = {name for name in prometheus.names() if name.startswith("limpet_")}
    assert sorted(found - told) == []


def test_faults_are_noticed(
    world: World, prometheus: Prometheus, names: subprocess.Popen[bytes]
) -> None:
    """After all that looks at a world in which nothing is wrong."""
    with ExitStack() as undo:
        names.terminate()
        world.machine("crane-2").stop_agent(signal.SIGKILL)
        full = world.machine("digger-1")
        full.fill_disk()
        undo.callback(full.empty_disk)
        world.controller.stop()
        undo.callback(world.controller.start)
        prometheus.until_active(
            "LimpetNamesDown",
            "LimpetAgentDown",
            "LimpetControllerLost",
            "LimpetControllerNotScraped",
            "LimpetPeersUnreached",
        )
        told = [
            alert["annotations"]
            for alerts in prometheus.alerts().values()
            for alert in alerts
            if alert["labels"].get("instance") == "crane-2"
        ]
        assert any("crane-2" in each["summary"] for each in told)
        assert all("<" not in text for each in told for text in each.values()), "templates"
