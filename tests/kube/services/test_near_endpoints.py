"""Near endpoints as a real EndpointSlice controller says them: its hints for zones and nodes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from limpet.base.errors import LimpetError
from limpet.lab.kube.control_plane import ControlPlane
from limpet.lab.world.node import LabNode
from tests.kube.installed.test_manifests import SPACE, User, admin, pod
from tests.kube.nodes.test_joining_agent import controller, node
from tests.kube.services.test_services import joined
from tests.waiting import wait_until

__all__ = ["admin", "controller", "joined", "node"]

ZONES = {"node-a": "east", "node-b": "west", "node-c": "east"}
"""The agent is that of the first."""
HERE = {"10.0.1.1"}
EAST = {*HERE, "10.0.3.1", "10.0.3.2"}
ALL = {*EAST, "10.0.2.1", "10.0.2.2", "10.0.2.3"}
"""So many that one of its own is not enough for a node that is told of no preference."""
_NODES = {"1": "node-a", "2": "node-b", "3": "node-c"}
"""By the third number of a pod's address."""
WEB: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "web", "namespace": SPACE},
    # No kubelet says of a node that it lives, so its pods are called not ready after a while.
    "spec": {
        "selector": {"app": "web"},
        "ports": [{"port": 80}],
        "publishNotReadyAddresses": True,
    },
}


@pytest.fixture
def plane(admin: User, joined: LabNode) -> ControlPlane:
    """Its controllers run; pods of three nodes in two zones serve."""
    api = admin.api
    admin.run("create", about={"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-c"}})
    for name, zone in ZONES.items():
        admin.run("label", "node", name, f"topology.kubernetes.io/zone={zone}")
    api.start_process("kube-controller-manager")
    admin.run("create", about=WEB)
    for address in sorted(ALL):
        name = f"web-{address.replace('.', '-')}"
        serving = pod(name, _NODES[address.split(".")[2]], "bystander")
        serving["metadata"]["labels"] = {"app": "web"}
        admin.run("create", about=serving)
        status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}
        merge = ("--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))
        admin.run("patch", "pod", name, "-n", SPACE, *merge)
    return api


def used(node: LabNode) -> set[str]:
    """Addresses of those that the agent sends to; none while it has not heard of the Service."""
    try:
        shown = node.ask("service", name=f"{SPACE}/web")["endpoints"]
    except LimpetError:
        return set()
    return {each["address"] for each in shown if each["weight"]}


def hints(plane: ControlPlane) -> dict[str, dict[str, list[str]]]:
    """Names of zones and of nodes that the controller's slices have for each endpoint."""
    select = ("-n", SPACE, "-l", "kubernetes.io/service-name=web", "-o", "json")
    told = json.loads(plane.kubectl("get", "endpointslices", *select))
    return {
        address: {
            kind: [one["name"] for one in found]
            for kind, found in (each.get("hints") or {}).items()
        }
        for piece in told["items"]
        for each in piece["endpoints"] or ()
        for address in each["addresses"]
    }


def distribute(plane: ControlPlane, how: str | None) -> None:
    asked = json.dumps({"spec": {"trafficDistribution": how}})
    plane.kubectl("patch", "service", "web", "-n", SPACE, "--type=merge", "-p", asked)


def test_a_node_sends_to_those_that_the_hints_of_a_real_controller_are_for(
    plane: ControlPlane, joined: LabNode
) -> None:
    wait_until(lambda: used(joined) == ALL, "nothing is asked for: all serve")
    assert hints(plane) == {each: {} for each in ALL}

    zones = {x: {"forZones": [ZONES[_NODES[x.split(".")[2]]]]} for x in ALL}
    for how in ("PreferSameZone", "PreferClose"):
        distribute(plane, how)
        wait_until(lambda: hints(plane) == zones, f"{how}: each endpoint is for its zone")
        wait_until(lambda: used(joined) == EAST, "those of its zone serve")

    distribute(plane, "PreferSameNode")
    nodes = {x: {**zones[x], "forNodes": [_NODES[x.split(".")[2]]]} for x in ALL}
    wait_until(lambda: hints(plane) == nodes, "each endpoint is for its node, and for its zone")
    wait_until(lambda: used(joined) == HERE, "its own serves")

    # No hint is for this node then, and what the Service asks for says nothing of its zone.
    gone = f"web-{min(HERE).replace('.', '-')}"
    plane.kubectl("delete", "pod", gone, "-n", SPACE, "--force", "--grace-period=0")
    wait_until(lambda: used(joined) == EAST - HERE, "those of its zone serve")

    distribute(plane, None)
    wait_until(lambda: used(joined) == ALL - HERE, "all that are there serve")
