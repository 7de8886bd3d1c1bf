"""Clocks that are wrong by years, in a cluster whose certificates were made this year."""

from __future__ import annotations

from pathlib import Path

import pytest

from limpet.agent.client import typed
from limpet.agent.status.cluster import ClusterStatus
from limpet.cli.commands.status import cluster_lines
from limpet.cli.doctor.cluster.membership import cluster_findings
from limpet.lab.clock import LONG_AGO, clock_environment
from limpet.lab.world.node import LabNode
from tests.controller.machines import Controller
from tests.kube.nodes.test_joining_agent import admin, cluster, connected, controller, node
from tests.waiting import wait_until

__all__ = ["admin", "controller", "node"]

YEARS = [(LONG_AGO, "behind"), ("2040-01-01 00:00:00", "ahead")]


def status(node: LabNode) -> ClusterStatus:
    found = cluster(node)
    assert found is not None
    return typed(found, ClusterStatus)


def off_by(node: LabNode) -> float:
    api_server = status(node).api_server
    assert api_server is not None
    return api_server.clock_ahead_s


def forget_nodes(controller: Controller) -> None:
    """Another machine of that name has joined in the test before. Returns when it leads."""
    wait_until(lambda: "event=ready" in controller.log.read_text(), "it leads")
    for each in controller.ask("node.list")["nodes"]:
        if each["state"] != "removed":
            controller.ask("node.remove", node=each["uid"])


@pytest.mark.parametrize(("year", "side"), YEARS, ids=["1970", "2040"])
def test_a_node_joins_serves_pods_and_says_that_its_clock_is_wrong(
    node: LabNode,
    controller: Controller,
    tmp_path: Path,
    year: str,
    side: str,
    request: pytest.FixtureRequest,
) -> None:
    controller.start()
    forget_nodes(controller)
    node.agent_environment |= clock_environment(year, tmp_path)
    node.start_agent()
    wait_until(lambda: cluster(node) is not None and connected(node), "it has joined")
    wait_until(lambda: node.ask("status")["ready"], "pods can be started")
    pod = node.pod(f"web-{side}")
    request.addfinalizer(pod.remove)
    addresses = pod.add().addresses
    wait_until(lambda: off_by(node), "it knows what time it is there")

    lines = list(cluster_lines(status(node)))
    found = [each for each in cluster_findings(status(node)) if "clock" in each.what]

    assert [line for line in lines if f"{side} of the API server's" in line]
    assert [(each.id, each.level.value) for each in found] == [("clock-wrong", "warn")]
    assert "timedatectl" in found[0].advice
    pod.delete()
    assert pod.add().addresses == addresses

    # Somebody does what it says.
    node.stop_agent()
    for name in clock_environment(year, tmp_path):
        del node.agent_environment[name]
    node.start_agent()
    wait_until(lambda: cluster(node) is not None and connected(node), "it is back")
    assert off_by(node) == 0
    assert not [line for line in cluster_lines(status(node)) if "clock" in line]
    controller.stop()  # the next test's does not have to wait for its Lease


@pytest.mark.parametrize(("year", "side"), YEARS, ids=["1970", "2040"])
def test_a_controller_whose_clock_is_wrong_leads_and_says_so_and_nodes_join_and_go_on(
    node: LabNode,
    controller: Controller,
    tmp_path: Path,
    year: str,
    side: str,
    request: pytest.FixtureRequest,
) -> None:
    controller.environment |= clock_environment(year, tmp_path)
    controller.start()
    forget_nodes(controller)
    wait_until(
        lambda: "the clock of this machine is wrong" in controller.log.read_text(), "it says so"
    )
    assert ("ahead_s=-" in controller.log.read_text()) is (side == "behind")
    node.start_agent()
    wait_until(lambda: cluster(node) is not None and connected(node), "it has joined")
    assert off_by(node) == 0  # its own is right
    wait_until(lambda: node.ask("status")["ready"], "pods can be started")
    granted = [each["prefix"] for each in node.ask("status")["segments"]]
    pod = node.pod(f"db-{side}")
    request.addfinalizer(pod.remove)
    addresses = pod.add().addresses

    # The clock is set; what was granted holds.
    assert controller.stop() == 0  # gives its Lease back: the next one leads at once
    controller.environment.clear()
    controller.start()
    wait_until(lambda: connected(node), "it hears the controller again")
    assert [each["prefix"] for each in node.ask("status")["segments"]] == granted
    pod.delete()
    assert pod.add().addresses == addresses
    controller.stop()
