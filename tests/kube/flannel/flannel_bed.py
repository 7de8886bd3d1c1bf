"""Worlds with real flanneld nodes beside Limpet's: an API server, a controller with the rights of
the manifests, and nodes of which each is run by the one or the other.

A node of flannel's attaches its pods as flannel's CNI plugin does: that makes a configuration of
subnet.env and hands it to bridge and host-local, which are the real ones here.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from ipaddress import IPv6Network, ip_network
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from limpet.base.addresses import Prefix
from limpet.lab.command import run_command
from limpet.lab.kube.control_plane import ADMINISTRATORS, ControlPlane
from limpet.lab.kube.programs import API_SERVER_PROGRAMS, find_programs
from limpet.lab.kube.world import KubeWorld
from limpet.lab.process import Daemon
from limpet.lab.topology import parse_topology
from limpet.lab.world.machine import Machine
from limpet.lab.world.node import DEFAULT_CONF
from limpet.lab.world.pod import CniAnswer, LabPod, decode_cni
from limpet.lab.world.site import LabSite, SiteNode
from limpet.lab.world.wires import Wires
from tests.kube.definitions import OURS, wait_until_served
from tests.waiting import PATIENCE_S, wait_until

ROOT = Path(__file__).parents[3]
MANIFEST = ROOT / "deploy" / "limpet.yaml"
NAMESPACE = "limpet-system"
CONTROLLER = f"system:serviceaccount:{NAMESPACE}:limpet-controller"
NETWORKS = ("10.244.0.0/16", "fd00:244::/48")
ANNOTATIONS = "flannel.alpha.coreos.com/"
W = TypeVar("W", bound="BesideWorld")
_numbers = itertools.count()


@cache
def reference_folder() -> Path:
    """bridge, host-local and iptables, unpacked. Raises: LabError."""
    return Path(run_command(str(ROOT / "scripts" / "fetch-reference")).strip())


class BesideMachine(Machine):
    """Limpet's agent or flanneld runs it; pods are attached by whichever does."""

    plane: ControlPlane | None = None
    flannel_runs = False

    def __init__(
        self, wires: Wires, site: LabSite, node: SiteNode, folder: Path, settings: Mapping[str, Any]
    ) -> None:
        super().__init__(wires, site, node, folder, settings)
        self.flanneld = Daemon("flanneld", folder / "flanneld.pid", folder / "flanneld.log")

    @property
    def subnet_env(self) -> Path:
        return self.folder / "flannel" / "subnet.env"

    @property
    def subnet_file(self) -> str:
        """The same as flanneld on the node sees it."""
        return str(self.subnet_env)

    @property
    def around(self) -> list[str]:
        """A command in front of another, which then runs on the node."""
        return ["nsenter", f"--net={self.netns_path}"]

    def start_flanneld(self) -> None:
        """Returns when its subnet file is there. Raises: LabError."""
        conf = self.folder / "net-conf.json"
        conf.write_text(
            json.dumps(
                {
                    "Network": NETWORKS[0],
                    "EnableIPv6": True,
                    "IPv6Network": NETWORKS[1],
                    "Backend": {"Type": "vxlan"},
                }
            )
        )
        self.subnet_env.unlink(missing_ok=True)
        assert self.plane is not None
        kubeconfig = self.plane.write_kubeconfig(
            "flannel", "flannel", groups=[ADMINISTRATORS], inside=True
        )
        self.flanneld.start_and_ask(
            [
                *self.around,
                self.flanneld_program(),
                *("--kube-subnet-mgr", "--ip-masq", f"--kubeconfig-file={kubeconfig}"),
                *(f"--net-config-path={conf}", f"--subnet-file={self.subnet_file}"),
                *("--iface=eth0", "--set-node-network-unavailable=false"),
            ],
            self.subnet_env.exists,
            within_s=PATIENCE_S,
            environment={
                "NODE_NAME": self.label,
                "PATH": f"{reference_folder()}/bin:{os.environ['PATH']}",
            },
        )
        self.flannel_runs = True

    def flanneld_program(self) -> str:
        return str(find_programs("flanneld") / "flanneld")

    def flannel_environment(self) -> dict[str, str]:
        """What subnet.env says."""
        lines = self.subnet_env.read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if line)

    def flannel_conf(self) -> dict[str, Any]:
        """What flannel's CNI plugin hands to bridge."""
        said = self.flannel_environment()
        subnets = [_network(said["FLANNEL_SUBNET"]), _network(said["FLANNEL_IPV6_SUBNET"])]
        return {
            "cniVersion": "1.0.0",
            "name": "cbr0",
            "type": "bridge",
            "bridge": "cni0",
            "mtu": int(said["FLANNEL_MTU"]),
            "hairpinMode": True,
            "isGateway": True,
            "isDefaultGateway": True,
            "ipMasq": False,
            "ipam": {
                "type": "host-local",
                "dataDir": str(self.data_dir),
                "ranges": [[{"subnet": str(each)}] for each in subnets],
                "routes": [{"dst": said["FLANNEL_NETWORK"]}],
            },
        }

    def cni(
        self,
        verb: str,
        pod: LabPod | None = None,
        *,
        conf: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> CniAnswer:
        """By who runs the node."""
        if not self.flannel_runs:
            return super().cni(verb, pod, conf=conf or DEFAULT_CONF, **options)
        folder = reference_folder() / "usr" / "lib" / "cni"
        environment = self.cni_environment(verb, pod, **options) | {"CNI_PATH": str(folder)}
        done = subprocess.run(
            ["nsenter", f"--net={self.netns_path}", str(folder / "bridge")],
            input=json.dumps(conf or self.flannel_conf()).encode(),
            env=environment,
            capture_output=True,
            check=False,
        )
        return decode_cni(done)

    def power_off(self) -> None:
        self.end_programs()
        super().power_off()

    def end_programs(self) -> None:
        """Those that nobody else ends."""
        self.flanneld.kill()


def _network(text: str) -> Prefix:
    found = ip_network(text, strict=False)
    assert isinstance(found, IPv6Network) is (":" in text)
    return found


class BesideWorld(KubeWorld):
    """Its control plane is an API server alone; nodes are added one by one."""

    machine_type = BesideMachine
    machines: dict[str, BesideMachine]  # type: ignore[assignment]
    programs: ClassVar[tuple[str, ...]] = (*API_SERVER_PROGRAMS, "flanneld")
    """What has to be there before anything begins."""

    def begin(self) -> None:
        """The network, the API server and the controller; no node. Raises: LabError."""
        find_programs(*self.programs)
        self.build()
        self.plane.start(only_api=True)
        apply_manifest(self.plane)
        kubeconfig = self.plane.write_kubeconfig("controller", CONTROLLER, inside=True)
        self.controller.settings = {
            **self.controller.settings,
            "store": "kubernetes",
            "namespace": NAMESPACE,
            "kubeconfig": str(kubeconfig),
            "flannel": True,
            "segments_from": "nodes",
        }
        for machine in self.machines.values():
            machine.plane = self.plane
        self.controller.start()
        wait_until(lambda: self.controller.socket.exists())

    def add_flannel(self, name: str, number: int) -> BesideMachine:
        """Its Node has the segments of that number; flanneld runs. Raises: LabError."""
        machine = self.machines[name]
        self.make_node(name, [f"10.244.{number}.0/24", f"fd00:244:0:{number:x}::/64"])
        machine.start_flanneld()
        return machine

    def add_limpet(self, name: str, number: int) -> BesideMachine:
        """It joins, and is granted what its Node has. Raises: LabError."""
        machine = self.machines[name]
        self.make_node(name, [f"10.244.{number}.0/24", f"fd00:244:0:{number:x}::/64"])
        self.enroll(machine)
        return machine

    def make_node(self, name: str, segments: list[str]) -> None:
        """flannel wants a Node that has some annotation. Raises: LabError."""
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "annotations": {"example.com/of": "a test"}},
            "spec": {"podCIDR": segments[0], "podCIDRs": segments},
        }
        self.plane.kubectl("create", "-f", "-", stdin=json.dumps(node))

    def annotations(self, name: str) -> dict[str, str]:
        """flannel's, without their prefix."""
        node = json.loads(self.plane.kubectl("get", "node", name, "-o", "json"))
        found = node["metadata"].get("annotations", {})
        return {
            key.removeprefix(ANNOTATIONS): value
            for key, value in found.items()
            if key.startswith(ANNOTATIONS)
        }


def apply_manifest(plane: ControlPlane) -> None:
    """Limpet's definitions, rights and policies; nothing of it runs. Raises: LabError."""
    plane.kubectl("apply", "-f", str(ROOT / "deploy" / "crds"))
    wait_until_served(plane, *OURS)
    plane.kubectl("apply", "-f", str(MANIFEST))


@contextlib.contextmanager
def beside_world(topology: str, folder: Path, kind: type[W]) -> Iterator[W]:
    """Begun; whatever happens, it goes again."""
    name = f"f{os.getpid()}-{next(_numbers)}"
    world = kind(parse_topology(topology, name, "a test"), name, folder / name)
    try:
        world.begin()
        yield world
    except BaseException:
        logs = [world.controller.process.log, *world.folder.glob("nodes/*/*.log")]
        for log in logs:
            if log.exists():
                sys.stderr.write(f"--- {log}\n{log.read_text(errors='replace')[-4000:]}\n")
        raise
    finally:
        for machine in world.machines.values():
            machine.end_programs()
        world.down()
