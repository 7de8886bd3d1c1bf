"""A node of a world that is a node of a Kubernetes cluster too."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from limpet.cni.conflist import CONFLIST, conflist_text
from limpet.cni.shim_binary import shim_path
from limpet.lab.command import LabError
from limpet.lab.kube.control_plane import ControlPlane
from limpet.lab.kube.node_system import NodeSystem
from limpet.lab.world.machine import Machine
from limpet.lab.world.site import LabSite, SiteNode
from limpet.lab.world.wires import Wires

NODES_GROUP = "system:nodes"
_NETWORK = "limpet"


class KubeMachine(Machine):
    """With a root of its own, containerd, and a kubelet once it was told of a control plane."""

    def __init__(
        self, wires: Wires, site: LabSite, node: SiteNode, folder: Path, settings: Mapping[str, Any]
    ) -> None:
        super().__init__(wires, site, node, folder, settings)
        system = folder / "system"
        world = folder.parents[1]
        self.system = NodeSystem(self.name, node.name, system, self.run_dir, [world])
        self.plane: ControlPlane | None = None
        self.is_bare = False
        """It has no network until somebody installs one."""

    def create(self) -> None:
        """Its namespace and its root. Raises: LabError."""
        super().create()
        self.run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.system.boot()

    def start_agent(self) -> None:
        """On the node, where the pods' namespaces are seen. Raises: LabError with its log."""
        self.agent_prefix = self.system.prefix
        super().start_agent()

    def start_kubelet(self, plane: ControlPlane | None = None) -> None:
        """containerd with the plugin in place unless bare, and a kubelet that joins `plane`.

        `plane` None: the one that it was told before. Raises: LabError with a log.
        """
        self.plane = plane or self.plane
        if self.plane is None:
            raise LabError(f"start the kubelet of {self.label}: there is no control plane for it")
        if not self.is_bare:
            self.system.write("/etc/limpet/shim.conf", f"socket={self.socket}\n")
            self.system.install_plugin(shim_path(), CONFLIST, conflist_text(_NETWORK).decode())
        self.system.start_containerd()
        self._start_kubelet(self.plane)

    def restart_kubelet(self) -> None:
        """It ends in order and starts anew, beside the containers that run. Raises: LabError."""
        if self.plane is None:
            raise LabError(f"restart the kubelet of {self.label}: it has none")
        self.system.kubelet.stop()
        self._start_kubelet(self.plane)

    def _start_kubelet(self, plane: ControlPlane) -> None:
        kubeconfig = plane.write_kubeconfig(
            f"kubelet-{self.label}", f"system:node:{self.label}", groups=[NODES_GROUP], inside=True
        )
        addresses = [str(each.ip) for each in self.addresses]
        self.system.start_kubelet(kubeconfig, plane.authority.certificate, addresses)

    def power_off(self) -> None:
        """Only what is on its disk is left. Raises: LabError."""
        self.agent.kill()
        self.system.power_off()
        super().power_off()

    def power_on(self) -> None:
        """As a node boots: agent unless bare, containerd, kubelet. Raises: LabError."""
        if self.is_bare:
            self.create()
        else:
            super().power_on()
        if self.plane is not None:
            self.start_kubelet()
