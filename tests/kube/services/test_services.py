"""A real agent serves what a real API server tells of Services, and goes on when that is away."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from limpet.base.errors import LimpetError
from limpet.lab.kube.control_plane import ControlPlane
from limpet.lab.world.node import LabNode
from tests.beds.namespaces import Netns
from tests.controller.machines import Controller
from tests.kube.conftest import ADDRESSES
from tests.kube.installed.test_manifests import User, admin
from tests.kube.nodes.test_joining_agent import controller, node
from tests.waiting import wait_until

__all__ = ["admin", "controller", "node"]

SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "web", "namespace": "default"},
    "spec": {"ports": [{"name": "http", "port": 80}, {"name": "ask", "port": 53}]},
}


def endpoint_slice(*addresses: str) -> dict[str, Any]:
    """Made by hand, for a Service without a selector."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": "web-1",
            "namespace": "default",
            "labels": {"kubernetes.io/service-name": "web"},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [each]} for each in addresses],
        "ports": [{"name": "http", "port": 8080}],
    }


@pytest.fixture
def joined(node: LabNode, controller: Controller) -> LabNode:
    """Of the cluster, with Services on; on the API server's machine."""
    node.settings["services"] = "on"
    controller.start()
    node.start_agent()
    wait_until(lambda: is_in_the_cluster(node), "it is in the cluster")
    return node


def is_in_the_cluster(node: LabNode) -> bool:
    try:
        return node.ask("status")["cluster"] is not None
    except LimpetError:
        return False  # it begins anew just now


def apply(plane: ControlPlane, *objects: dict[str, Any]) -> None:
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=text)


@contextmanager
def listening(host: Netns) -> Iterator[socket.socket]:
    with host.listening(ADDRESSES[0], 8080) as server:
        yield server


def is_served(host: Netns, address: str, server: socket.socket) -> bool:
    try:
        with host.connected(address, 80):
            server.accept()[0].close()
            return True
    except OSError:
        return False


def is_refused(host: Netns, address: str) -> bool:
    try:
        with host.connected(address, 80):
            return False
    except ConnectionRefusedError:
        return True


def test_a_service_is_served_as_it_is_told_and_after_a_boot_without_an_api_server(
    admin: User, joined: LabNode, controller: Controller, tmp_path: Path
) -> None:
    plane, node = admin.api, joined
    host = Netns(plane.netns)
    apply(plane, SERVICE)
    address = plane.kubectl("get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")

    with listening(host) as server:
        wait_until(lambda: is_refused(host, address), "a Service without endpoints refuses")
        apply(plane, endpoint_slice(ADDRESSES[0]))
        wait_until(lambda: is_served(host, address, server), "its endpoint is asked")

        shown = node.ask("service", name="default/web")
        assert [(each["address"], each["weight"]) for each in shown["endpoints"]] == [
            (ADDRESSES[0], 1)
        ]
        # From the node itself, which is the endpoint's too.
        told = node.ask("path", origin=ADDRESSES[0], target=address)
        assert told["service"]["name"] == "default/web"
        assert [each["there"]["target"] for each in told["paths"]] == [ADDRESSES[0]]
        with host.connected(address, 80), server.accept()[0]:
            (endpoint,) = node.ask("service", name="default/web")["endpoints"]
            assert endpoint["connections"] == 1
        listed = node.ask("services")
        assert listed["connected"]
        assert {"web", "kubernetes"} <= {each["name"] for each in listed["services"]}
        assert listed["kube_proxy"] == ""

        # A boot without an API server: what the kernel had is gone, and the disk has all.
        kept = node.folder / "state/cluster/services.jsonl"
        wait_until(lambda: kept.exists() and b'"web-1"' in kept.read_bytes(), "it is on the disk")
        node.stop_agent()
        host.run("nft", "delete", "table", "inet", "limpet_services")
        away = tmp_path / "away.kubeconfig"
        config = Path(node.settings["kubernetes_kubeconfig"]).read_text()
        away.write_text(config.replace(":6443", ":1"))
        known, node.settings["kubernetes_kubeconfig"] = (
            node.settings["kubernetes_kubeconfig"],
            str(away),
        )
        node.start_agent()
        assert is_served(host, address, server)
        wait_until(lambda: node.ask("services")["error"] != "", "it says that it hears nothing")
        assert not node.ask("services")["connected"]

        # What changed while nobody listened is heard of when somebody does again.
        node.stop_agent()
        plane.kubectl("delete", "endpointslice", "web-1")
        node.settings["kubernetes_kubeconfig"] = known
        node.start_agent()
        wait_until(lambda: is_refused(host, address), "the endpoint is gone")

    # Off again: nothing of it is left, and what knows nothing of it says so.
    node.stop_agent()
    node.settings["services"] = "off"
    node.start_agent()
    tables = subprocess.run(
        ["nsenter", f"--net={node.netns_path}", "nft", "list", "tables"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "limpet_services" not in tables
    with pytest.raises(LimpetError, match="off on this node"):
        node.ask("services")

    # As the cluster says, where the node's settings say nothing: the same process begins anew.
    node.stop_agent()
    del node.settings["services"]
    node.start_agent()
    pid = node.agent_pid
    assert not who_serves(node)["on"]
    host.run("nft", "add table ip kube-proxy; add chain ip kube-proxy services")
    controller.ask("network.set", services="auto")
    wait_until(lambda: "kube-proxy serves them" in who_serves(node)["why"], "it leaves them to it")
    assert not who_serves(node)["on"]
    assert who_serves(node)["kube_proxy"] == "nftables table kube-proxy"
    controller.ask("network.set", services="on")
    wait_until(lambda: who_serves(node)["on"], "it serves them")
    assert node.agent_pid == pid
    assert "limpet_services" in host.run("nft", "list", "tables")


def who_serves(node: LabNode) -> dict[str, Any]:
    try:
        found: dict[str, Any] = node.ask("status")["cluster"]["services"]
    except LimpetError:
        return {"on": False, "why": ""}  # it begins anew just now
    return found
