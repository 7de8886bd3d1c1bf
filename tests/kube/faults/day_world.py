"""A world for long stories: an API server and two controllers in its cloud, agents that hear the
API server with the rights of the manifests, nodes that come and go. Pods are the lab's own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
from collections.abc import Callable

import yaml

from limpet.base.errors import LimpetError
from limpet.cluster.api import ACCOUNT_AUDIENCE
from limpet.lab.command import side_by_side
from limpet.lab.kube.programs import find_programs
from limpet.lab.kube.world import PLANE, KubeWorld
from limpet.lab.topology import Topology
from limpet.lab.world.controller import LabController
from limpet.lab.world.machine import Machine
from limpet.lab.world.world import silent
from tests.kube.flannel.flannel_bed import CONTROLLER, NAMESPACE, apply_manifest
from tests.kube.installed.test_manifests import pod
from tests.waiting import wait_until

_ACCOUNT = "limpet-agent"
_TOKENS = ("create", "token", _ACCOUNT, "-n", NAMESPACE, "--duration=12h")


class DayWorld(KubeWorld):
    """`controllers` are two, of which one leads; `controller` is the one that led last."""

    machine_type = Machine
    by_account: frozenset[str] = frozenset()
    """Nodes that get in by the account of their agent's pod, the others by a token."""

    def __init__(self, topology: Topology, name: str, folder: os.PathLike[str]) -> None:
        super().__init__(topology, name, folder)  # type: ignore[arg-type]
        second = LabController(self.plane.netns, self.folder / PLANE / "controller", self.addresses)
        self.controllers = [self.controller, second]
        self.spare: dict[str, Machine] = {}
        """Nodes that were removed; they may come back as new ones."""

    # Building

    def up(self, tell: Callable[[str], None] = silent) -> None:
        find_programs("etcd", "kube-apiserver", "kubectl")
        self.build(tell)
        self.plane.start(only_api=True)
        apply_manifest(self.plane)
        kubeconfig = self.plane.write_kubeconfig("controller", CONTROLLER, inside=True)
        for controller in self.controllers:
            controller.settings = {
                **controller.settings,
                "store": "kubernetes",
                "namespace": NAMESPACE,
                "kubeconfig": str(kubeconfig),
                "advertise": self.endpoints,
            }
            controller.start()
        wait_until(self.leader, "no controller leads")
        side_by_side(self.enroll, self.machines.values())
        side_by_side(self._first_pods, self.machines.values())
        self.save()

    def enroll(self, machine: Machine) -> None:
        """A Node and the pod of its agent are there, whose account it has at the API server; it
        joins, and has segments. Raises: LimpetError."""
        name = machine.label
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
        for about in (node, pod(f"{_ACCOUNT}-{name}", name, _ACCOUNT)):
            self.plane.kubectl("apply", "-f", "-", stdin=json.dumps(about))
        self._write_credentials(machine)
        if name not in self.by_account:
            said: list[str] = []
            wait_until(lambda: self._joins(machine, said), f"{name} cannot join: {said}")
        machine.start_agent()
        wait_until(lambda: _has_segments(machine), f"{name} gets no segments")

    def _joins(self, machine: Machine, said: list[str]) -> bool:
        """As a person tries it again, who is told that nobody leads now."""
        try:
            token = self.awaited_leader().token(roles=list(machine.node.roles))
            machine.join(token, self.endpoints)
        except LimpetError as error:
            said[:] = [str(error)]
            return False
        return True

    def _write_credentials(self, machine: Machine) -> None:
        bound = ("--bound-object-kind=Pod", f"--bound-object-name={_ACCOUNT}-{machine.label}")
        self.plane.write_kubeconfig("nobody", "nobody", inside=True)
        config = yaml.safe_load((self.plane.folder / "nobody.kubeconfig").read_text())
        for user in config["users"]:
            user["user"] = {"token": self.plane.kubectl(*_TOKENS, *bound).strip()}
        kubeconfig, token = machine.folder / "kubeconfig", machine.folder / "token"
        kubeconfig.write_text(yaml.safe_dump(config))
        audience = f"--audience={ACCOUNT_AUDIENCE}"
        token.write_text(self.plane.kubectl(*_TOKENS, *bound, audience).strip())
        settings = {"source": "kubernetes", "kubernetes_kubeconfig": str(kubeconfig)}
        if machine.label in self.by_account:
            settings["kubernetes_join_token_file"] = str(token)
        machine.settings = {**machine.settings, **settings}

    def down(self) -> None:
        for controller in self.controllers:
            controller.process.kill()
        self.plane.stop()
        for machine in self.spare.values():
            machine.agent.kill()
        super(KubeWorld, self).down()

    # Controllers and the control plane

    @property
    def endpoints(self) -> list[str]:
        """Of both controllers."""
        return [each for controller in self.controllers for each in controller.endpoints]

    def leader(self) -> LabController | None:
        """None: nobody leads now."""
        for controller in self.controllers:
            with contextlib.suppress(LimpetError):
                controller.ask("network.show")
                self.controller = controller
                return controller
        return None

    def awaited_leader(self) -> LabController:
        found = wait_until(self.leader, "no controller leads")
        assert found is not None
        return found

    def start_controller(self) -> None:
        """All of the cloud that does not run: etcd, the API server, both controllers."""
        for name in ("etcd", "kube-apiserver"):
            if self.plane.processes[name].pid is None:
                self.plane.start_process(name)
        for controller in self.controllers:
            if controller.process.pid is None:
                controller.start()
            os.kill(controller.process.pid or 0, signal.SIGCONT)
        self.awaited_leader()

    def heal(self) -> None:
        """Nothing is cut, all of the cloud runs, and a controller leads. Raises: LabError."""
        for link in self.wires.cuts():
            self.restore(link)
        self.start_controller()

    # Nodes that come and go

    def remove(self, machine: Machine) -> None:
        """For ever: in Limpet and in Kubernetes; its disk is lost. Raises: LimpetError."""
        name = machine.label
        wait_until(lambda: self._is_removed(name), f"{name} cannot be removed")
        self.plane.kubectl("delete", "node", name)
        self.plane.kubectl("delete", "pod", f"{_ACCOUNT}-{name}", "-n", NAMESPACE, "--force")
        machine.power_off()
        for each in machine.disk.iterdir():
            shutil.rmtree(each)
        machine.agent.log.unlink()
        machine.wanted_pods.clear()
        self.spare[name] = self.machines.pop(name)

    def _is_removed(self, name: str) -> bool:
        """As a person tries it again, who is told that nobody leads now, or is not answered."""
        with contextlib.suppress(LimpetError):
            self.awaited_leader().ask("node.remove", node=name)
        with contextlib.suppress(LimpetError):
            known = self.awaited_leader().ask("node.list")["nodes"]
            return all(each["name"] != name or each["state"] == "removed" for each in known)
        return False

    def add(self, name: str) -> Machine:
        """Another machine of that name, with a pod. Raises: LimpetError."""
        machine = self.spare.pop(name)
        self.machines[name] = machine
        machine.create()
        self.enroll(machine)
        machine.start_pod(f"{name}-pod-0")
        return machine


def _has_segments(machine: Machine) -> bool:
    """An agent that gets in by itself begins again then."""
    with contextlib.suppress(LimpetError):
        return bool(machine.ask("status")["segments"])
    return False
