"""A world with a Kubernetes cluster: a control plane in its cloud, kubelets on its nodes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from limpet.lab.command import LabError, side_by_side
from limpet.lab.kube.control_plane import ControlPlane
from limpet.lab.kube.machine import KubeMachine
from limpet.lab.kube.programs import (
    CONTROL_PLANE_PROGRAMS,
    NODE_PROGRAMS,
    find_programs,
    missing_programs,
)
from limpet.lab.needs.check import check
from limpet.lab.topology import Topology
from limpet.lab.world.machine import UPLINK, Machine
from limpet.lab.world.site import FIRST_NODE, ROUTER, Interface, LabSite, host
from limpet.lab.world.wires import configure, create_namespace
from limpet.lab.world.world import World, silent

PLANE = "kube"
"""Name of the control plane's port of the cloud's switch, of its namespace and its folder."""
_READY_S = 300.0
_ASK_AGAIN_S = 0.2


class KubeWorld(World):
    """`plane` is the control plane; every node of the world joins it after the Limpet cluster.

    Where the topology is bare there is no Limpet cluster, and the nodes wait for a network.
    """

    machine_type: type[Machine] = KubeMachine

    def __init__(self, topology: Topology, name: str, folder: Path) -> None:
        super().__init__(topology, name, folder)
        self.addresses = _addresses(topology.cloud, topology.controller_addresses)
        """Addresses of the control plane."""
        self.plane = ControlPlane(
            self.wires.namespace(PLANE),
            folder / PLANE,
            [str(each.ip) for each in self.addresses],
        )
        for machine in self.kube_machines:
            machine.plane = self.plane
            machine.is_bare = topology.bare

    @property
    def kube_machines(self) -> list[KubeMachine]:
        return [each for each in self.machines.values() if isinstance(each, KubeMachine)]

    def up(self, tell: Callable[[str], None] = silent) -> None:
        """All nodes are Ready too, or known to the API server if bare. Raises: LimpetError."""
        if missing_programs():
            check(self.topology, self.topology.agent)
        tell(
            "Kubernetes' programs (a checkout builds them the first time, which takes half an hour)"
        )
        find_programs(*CONTROL_PLANE_PROGRAMS, *NODE_PROGRAMS)
        if self.topology.bare:
            self.build(tell)
            self.save()
        else:
            super().up(tell)
        tell("the control plane starts: etcd, API server, controller manager, scheduler")
        self.plane.start()
        tell("kubelets and containerd start, and their nodes become Ready")
        side_by_side(lambda machine: machine.start_kubelet(), self.kube_machines)
        if self.topology.bare:
            self._await_all(self.known_nodes, "known to the API server")
        else:
            self.await_ready()

    def build(self, tell: Callable[[str], None] = silent) -> None:
        """Raises: LabError."""
        super().build(tell)
        cloud = self.topology.cloud
        create_namespace(self.plane.netns)
        self.wires.plug(cloud, PLANE, self.plane.netns, UPLINK)
        routers = [each.ip for each in cloud.router_addresses]
        configure(self.plane.netns, UPLINK, self.addresses, via=routers)

    def down(self) -> None:
        """Raises: LabError."""
        self.plane.stop()
        side_by_side(lambda machine: machine.system.power_off(), self.kube_machines)
        super().down()

    def netns_of(self, target: str) -> str:
        """`kube` is the control plane's. Raises: LabError."""
        return self.plane.netns if target == PLANE else super().netns_of(target)

    def prefix_of(self, target: str) -> list[str]:
        """On a node in its own root, with its containerd. Raises: LabError."""
        machine = self.machines.get(target)
        if isinstance(machine, KubeMachine) and machine.system.root.pid is not None:
            return machine.system.prefix
        return super().prefix_of(target)

    def environment(self) -> dict[str, str]:
        """`kubectl` asks this cluster's API server, from wherever there is a wire to it."""
        return self.plane.environment()

    def hints(self) -> list[str]:
        """Raises: LabError."""
        kubectl = find_programs("kubectl") / "kubectl"
        return [
            "",
            "limpet lab shell cloud -- kubectl get nodes,pods --all-namespaces -o wide",
            f"or from here: export KUBECONFIG={self.plane.kubeconfig}; {kubectl} get nodes",
        ]

    def known_nodes(self) -> set[str]:
        """Nodes that the API server knows. Raises: LabError."""
        return {node["metadata"]["name"] for node in self._nodes()}

    def _nodes(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.plane.kubectl("get", "nodes", "-o", "json"))[
            "items"
        ]
        return found

    def ready_nodes(self) -> set[str]:
        """Nodes that Kubernetes calls Ready. Raises: LabError."""
        return {
            node["metadata"]["name"]
            for node in self._nodes()
            for condition in node["status"].get("conditions", ())
            if condition["type"] == "Ready" and condition["status"] == "True"
        }

    def await_ready(self) -> None:
        """Returns when every node is Ready. Raises: LabError with those that are not."""
        self._await_all(self.ready_nodes, "Ready")

    def _await_all(self, found: Callable[[], set[str]], what: str) -> None:
        deadline_s = time.monotonic() + _READY_S
        while waiting := self.machines.keys() - found():
            if time.monotonic() > deadline_s:
                raise LabError(
                    f"wait for {', '.join(sorted(waiting))}: not {what} in {_READY_S:g} s "
                    f"(kubectl describe nodes; logs: {self.folder}/nodes/*/system/kubelet.log)"
                )
            time.sleep(_ASK_AGAIN_S)


def _addresses(cloud: LabSite, taken: tuple[Interface, ...]) -> tuple[Interface, ...]:
    """In the cloud's network, below its nodes."""
    found = []
    for prefix in cloud.lan:
        numbers = range(ROUTER + 1, FIRST_NODE)
        free = (host(prefix, n) for n in numbers if host(prefix, n) not in taken)
        found.append(next(free))
    return tuple(found)
