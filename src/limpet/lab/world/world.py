"""A whole edge world on this machine: a cloud, sites, nodes, pods, and what befalls them.

Everything is in network namespaces with the world's name in theirs, in one folder, and in
folders of the same names in /dev/shm. Nothing of the machine itself is touched.
"""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self

from limpet.base.errors import LimpetError
from limpet.lab.clock import LONG_AGO
from limpet.lab.command import LabError, run_command, side_by_side
from limpet.lab.files import write_text
from limpet.lab.kube.cgroups import end_groups
from limpet.lab.measure.matrix import Matrix, MeasuredEnd, measure_until
from limpet.lab.needs.check import check
from limpet.lab.netns import delete_namespace
from limpet.lab.process import Daemon
from limpet.lab.topology import Topology, parse_topology
from limpet.lab.world.controller import LabController
from limpet.lab.world.gateway import Gateway
from limpet.lab.world.machine import Machine
from limpet.lab.world.pod import LabPod
from limpet.lab.world.site import CLOUD, Nat
from limpet.lab.world.tunnels import end_tunnel, find_ipsec_program, find_tunnel_program
from limpet.lab.world.wires import Wires, existing_namespaces, namespace_prefix

TOPOLOGY = "topology.toml"
"""Its name in the folder of a world."""
_STATE = "world.json"


def silent(_step: str) -> None:
    """Tells nobody."""


class World:
    """Describes a world; `up` builds it, `open` finds it again in a later command."""

    machine_type: type[Machine] = Machine

    def __init__(self, topology: Topology, name: str, folder: Path) -> None:
        self.topology = topology
        self.name = name
        self.folder = folder
        self.wires = Wires(name, topology)
        self.controller = LabController(
            self.wires.cloud,
            folder / CLOUD,
            topology.controller_addresses,
            **topology.controller,
        )
        self.gateways = {
            site.name: Gateway(self.wires, site, folder / "sites" / site.name)
            for site in topology.sites
        }
        self.machines: dict[str, Machine] = {
            node.name: self.machine_type(
                self.wires, site, node, folder / "nodes" / node.name, topology.agent
            )
            for site, node in topology.nodes
        }

    @classmethod
    def open(cls, folder: Path) -> Self:
        """A world that an earlier command built. Raises: LabError."""
        try:
            state = json.loads((folder / _STATE).read_text(encoding="utf-8"))
            text = (folder / TOPOLOGY).read_text(encoding="utf-8")
            world = cls(parse_topology(text, state["topology"], TOPOLOGY), state["name"], folder)
            for name, memory in state["machines"].items():
                world.machines[name].recall(memory)
            for name, memory in state["gateways"].items():
                world.gateways[name].recall(memory)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LabError(
                f"open the world in {folder}: {error!r} (it was not built to the end, or is "
                f"damaged: limpet lab down --name {folder.name})"
            ) from error
        return world

    def save(self) -> None:
        """What later commands need."""
        state: dict[str, Any] = {
            "name": self.name,
            "topology": self.topology.name,
            "machines": {name: each.memory() for name, each in self.machines.items()},
            "gateways": {name: each.memory() for name, each in self.gateways.items()},
        }
        write_text(self.folder / _STATE, json.dumps(state, indent=1))

    # Building and taking away

    def up(self, tell: Callable[[str], None] = silent) -> None:
        """Everything runs, every node has joined, every pod is attached. Raises: LimpetError.

        What was built stays when it fails: `down` takes it away.
        """
        self.build(tell)
        tell("the IP controller starts in the cloud")
        self.controller.start()
        tell(f"{len(self.machines)} nodes join with a token each, and their agents start")
        side_by_side(self.enroll, self.machines.values())
        tell("pods are attached through the CNI binary")
        side_by_side(self._first_pods, self.machines.values())
        self.save()

    def build(self, tell: Callable[[str], None] = silent) -> None:
        """The network and the bare nodes; no process runs. Raises: LabError; MissingError before
        anything is built where this machine lacks something that the topology needs."""
        if existing_namespaces(self.name):
            raise LabError(
                f"build world {self.name}: some of it is here already "
                f"(limpet lab down --name {self.name})"
            )
        self.check_machine(tell)
        tell("network namespaces: sites, routers, a backbone, a cloud")
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / TOPOLOGY).write_text(self.topology.text, encoding="utf-8")
        self.save()
        self.wires.build_backbone()
        side_by_side(self.wires.build_switch, self.topology.sites)
        side_by_side(lambda gateway: gateway.build(), self.gateways.values())
        side_by_side(self._build_machine, self.machines.values())

    def check_machine(self, tell: Callable[[str], None] = silent) -> None:
        """Whether this machine has what the topology needs, and which programs make the nodes'
        tunnels. Nothing is built. Raises: MissingError.
        """
        programs = {"tunnel_program": find_tunnel_program(tell)}
        if self.topology.ipsec:
            programs["ipsec_program"] = find_ipsec_program(tell)
        check(self.topology, {**programs, **self.topology.agent})
        for machine in self.machines.values():
            machine.settings = {**programs, **machine.settings}

    def _build_machine(self, machine: Machine) -> None:
        machine.mount_disk(self.topology.disk_mib)
        machine.create()

    def enroll(self, machine: Machine) -> None:
        """The node joins with a token of its own; its agent starts. Raises: LimpetError."""
        token = self.controller.token(roles=list(machine.node.roles))
        machine.join(token, self.controller.endpoints)
        machine.start_agent()

    def _first_pods(self, machine: Machine) -> None:
        for number in range(machine.node.pods):
            machine.start_pod(f"{machine.label}-pod-{number}")

    def down(self) -> None:
        """Nothing of it is left, whatever there was. Raises: LabError."""
        for machine in self.machines.values():
            machine.agent.kill()
        for gateway in self.gateways.values():
            gateway.uplink.process.kill()
        self.controller.process.kill()
        clear_away(self.name, self.folder)

    # Finding

    def machine(self, name: str) -> Machine:
        """Raises: LabError."""
        try:
            return self.machines[name]
        except KeyError as error:
            raise LabError(
                f"find node {name}: it is not in this world (there are: {', '.join(self.machines)})"
            ) from error

    @property
    def pods(self) -> list[LabPod]:
        """All that are attached, node by node."""
        return [pod for machine in self.machines.values() for pod in machine.pods.values()]

    def pod(self, name: str) -> LabPod:
        """Raises: LabError."""
        for pod in self.pods:
            if pod.name == name:
                return pod
        raise LabError(
            f"find pod {name}: it is not in this world "
            f"(there are: {', '.join(pod.name for pod in self.pods)})"
        )

    def select(self, target: str) -> list[Machine]:
        """Machines by a node's name, a site's, `cloud`, or `all`. Raises: LabError."""
        if target == "all":
            return list(self.machines.values())
        if target in self.machines:
            return [self.machines[target]]
        found = [each for each in self.machines.values() if each.site.name == target]
        if not found:
            sites = ", ".join(site.name for site in self.topology.sites)
            raise LabError(
                f"find {target}: neither a node ({', '.join(self.machines)}) nor a site ({sites}) "
                "of this world, nor `all`"
            )
        return found

    def gateway(self, site: str) -> Gateway:
        """Raises: LabError."""
        try:
            return self.gateways[site]
        except KeyError as error:
            raise LabError(
                f"find the gateway of {site}: that is no site of this world (there are: "
                f"{', '.join(self.gateways)})"
            ) from error

    def select_gateways(self, target: str) -> list[Gateway]:
        """Gateways by a site's name, or `all`. Raises: LabError."""
        return list(self.gateways.values()) if target == "all" else [self.gateway(target)]

    def netns_of(self, target: str) -> str:
        """Namespace of a node, pod, `cloud` (its controller), `backbone`, SITE.router, SITE.switch.

        A carrier's NAT is SITE.carrier, and a link that delays SITE.line, where the kernel does not
        do it. Raises: LabError.
        """
        names = {pod.name: pod.netns for pod in self.pods}
        names |= {name: machine.name for name, machine in self.machines.items()}
        names |= {CLOUD: self.wires.cloud, "backbone": self.wires.backbone}
        for site in self.topology.sites:
            names[f"{site.name}.router"] = self.wires.router(site)
            names[f"{site.name}.switch"] = self.wires.switch(site)
            if site.nat is Nat.CGN:
                names[f"{site.name}.carrier"] = self.wires.carrier(site)
            if self.wires.line(site) in existing_namespaces(self.name):
                names[f"{site.name}.line"] = self.wires.line(site)
        try:
            return names[target]
        except KeyError as error:
            raise LabError(
                f"find {target}: there is no such node, pod or place "
                f"(there are: {', '.join(sorted(names))})"
            ) from error

    def prefix_of(self, target: str) -> list[str]:
        """A command in front of another, which then runs there. Raises: LabError."""
        return ["nsenter", f"--net=/run/netns/{self.netns_of(target)}"]

    def environment(self) -> dict[str, str]:
        """More variables for a person's commands in it."""
        return {}

    def hints(self) -> list[str]:
        """What a person can do with it that not every world has, a line each."""
        return []

    # Reach

    def places(self) -> list[MeasuredEnd]:
        """Pods, and nodes with their overlay addresses (those whose agents answer)."""
        found = [
            MeasuredEnd(pod.name, pod.netns, tuple(address.ip for address in pod.addresses))
            for pod in self.pods
        ]
        for machine in self.machines.values():
            try:
                addresses = tuple(machine.overlay_addresses())
            except LimpetError:
                addresses = ()
            found.append(MeasuredEnd(machine.label, machine.name, addresses))
        return found

    def reach(self, *, within_s: float = 0) -> Matrix:
        """Who reaches whom; what does not answer is asked again for `within_s`."""
        return measure_until(self.places(), within_s=within_s)

    # Faults

    def cut(self, link: str) -> None:
        """Nothing passes between a site, or the cloud, and the rest. Raises: LabError."""
        self._check_link(link)
        self.wires.cut(link)

    def restore(self, link: str) -> None:
        """Raises: LabError."""
        self._check_link(link)
        self.wires.restore(link)

    def _check_link(self, link: str) -> None:
        if link != CLOUD and self.topology.site(link) is None:
            sites = ", ".join(site.name for site in self.topology.sites)
            raise LabError(f"cut {link}: neither `cloud` nor a site of this world ({sites})")

    def reboot(self, machines: Iterable[Machine]) -> None:
        """All lose power at once, then all start at once. Raises: LimpetError."""
        chosen = list(machines)
        side_by_side(lambda machine: machine.power_off(), chosen)
        side_by_side(lambda machine: machine.power_on(), chosen)
        self.save()

    def change_addresses(self, machines: Iterable[Machine]) -> None:
        """Changes the addresses of the machines' uplinks, all at once. Raises: LabError."""
        side_by_side(lambda machine: machine.change_addresses(), machines)
        self.save()

    def kill_agents(self, machines: Iterable[Machine]) -> None:
        """Ends the machines' agents with SIGKILL. Raises: LabError."""
        side_by_side(lambda machine: machine.stop_agent(signal.SIGKILL), machines)

    def start_agents(self, machines: Iterable[Machine]) -> None:
        """Starts those of the machines' agents that do not run. Raises: LabError."""
        side_by_side(
            lambda machine: machine.start_agent(),
            [each for each in machines if each.agent.pid is None],
        )

    def start_controller(self) -> None:
        """Starts the controller if it does not run. Raises: LabError."""
        if self.controller.process.pid is None:
            self.controller.start()

    def turn_clocks_back(self, machines: Iterable[Machine], start: str | None = LONG_AGO) -> None:
        """Agents start anew with a wall clock that starts at `start`; None: with the true one.

        Raises: LabError.
        """
        machines = list(machines)
        for machine in machines:
            machine.set_clock(start)  # or all agents would be down before it fails

        def turn(machine: Machine) -> None:
            machine.stop_agent()
            machine.start_agent()

        side_by_side(turn, machines)
        self.save()


def clear_away(name: str, folder: Path) -> None:
    """A world goes, however little of it is left. Raises: LabError.

    Only its folder, the processes whose pids are noted there, and what has its name in its own.
    """
    for file in sorted(folder.glob("**/*.pid")):
        Daemon(f"{file.stem} of {file.parent.name}", file, file.with_suffix(".log")).kill()
    nodes = {namespace_prefix(name) + each.name for each in folder.glob("nodes/*")}
    for namespace in nodes:
        end_tunnel(namespace)
    end_groups(namespace_prefix(name))
    for namespace in existing_namespaces(name):
        delete_namespace(namespace)
    for run_dir in Path("/dev/shm").glob(f"{namespace_prefix(name)}*"):
        shutil.rmtree(run_dir, ignore_errors=True)
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        if Path(line.split()[1]).is_relative_to(folder):
            run_command("umount", "-l", line.split()[1])
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        raise LabError(f"remove {folder}: something in it does not go")
