"""A node with a root of its own that moves from flannel to Limpet and back: what a person does on
it, and pods whose namespaces are its own."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import ip_interface
from pathlib import Path
from typing import Any

from limpet.agent.client import call
from limpet.base.addresses import Address
from limpet.base.errors import LimpetError
from limpet.lab.command import LabError, run_command
from limpet.lab.kube.machine import KubeMachine
from limpet.lab.process import Daemon
from limpet.lab.topology import Topology
from limpet.lab.world.pod import decode_cni
from limpet.lab.world.site import LabSite, SiteNode
from limpet.lab.world.wires import Wires
from tests.kube.flannel.flannel_bed import BesideMachine, BesideWorld, reference_folder
from tests.waiting import PATIENCE_S

CONFLIST = "/etc/cni/net.d/10-flannel.conflist"
RECORDS = "/var/lib/cni/networks/cbr0"
KUBE_FLANNEL = {
    "name": "cbr0",
    "cniVersion": "0.3.1",
    "plugins": [
        {"type": "flannel", "delegate": {"hairpinMode": True, "isDefaultGateway": True}},
        {"type": "portmap", "capabilities": {"portMappings": True}},
    ],
}
"""As kube-flannel's manifest has it."""
MOVER = "mover"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Mover(BesideMachine, KubeMachine):
    """A node whose files are its own."""

    def __init__(
        self, wires: Wires, site: LabSite, node: SiteNode, folder: Path, settings: Mapping[str, Any]
    ) -> None:
        super().__init__(wires, site, node, folder, settings)
        self.limpet_agent = Daemon("agent", folder / "limpet.pid", folder / "limpet.log")

    # flannel

    @property
    def subnet_file(self) -> str:
        return "/run/flannel/subnet.env"

    @property
    def subnet_env(self) -> Path:
        return self.system.path(self.subnet_file)

    def flanneld_program(self) -> str:
        """A copy that is seen there."""
        path = self.folder / "flanneld"
        if not path.exists():
            shutil.copy(super().flanneld_program(), path)
        return str(path)

    @property
    def around(self) -> list[str]:
        path = f"PATH={reference_folder()}/bin:{_PATH}"
        return [*self.system.prefix, "env", path]

    def write_conflist(self) -> None:
        self.system.write(CONFLIST, json.dumps(KUBE_FLANNEL))

    def flannel_conf(self) -> dict[str, Any]:
        conf = super().flannel_conf()
        conf["ipam"]["dataDir"] = str(Path(RECORDS).parent)
        return conf

    # Limpet

    def do(self, *words: str) -> str:
        """What a command prints on the node. Raises: LabError."""
        return run_command(*self.around, *words)

    def limpet(self, *words: str) -> str:
        """Raises: LabError."""
        return self.do(sys.executable, "-m", "limpet", *words)

    @contextlib.contextmanager
    def running(self, *words: str) -> Iterator[None]:
        """A command runs on the node within the block."""
        process = subprocess.Popen([*self.around, *words])
        try:
            yield
        finally:
            process.kill()
            process.wait()

    def refused(self, *words: str, stdin: str) -> str:
        """What `limpet WORDS` says that must fail."""
        done = subprocess.run(
            [*self.around, sys.executable, "-m", "limpet", *words],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode, done.stdout
        return done.stdout + done.stderr

    def start_limpet(self) -> None:
        """The agent as a service would start it. Raises: LabError."""
        self.limpet_agent.kill()  # one that an uninstall has ended is still to be waited for
        self.limpet_agent.start_and_ask(
            [*self.around, sys.executable, "-m", "limpet", "agent"],
            self._answers,
            within_s=PATIENCE_S,
        )

    def _answers(self) -> bool:
        try:
            call(self.system.path("/run/limpet/agent.sock"), "status")
        except (LimpetError, OSError):
            return False
        return True

    # Pods

    def attach_pod(self, name: str, *, by: str) -> list[Address]:
        """Its addresses. `by`: "flannel" or "limpet", whose plugin is called. Raises: LabError."""
        self.do("ip", "netns", "add", name)
        return [each.ip for each in self._cni("ADD", name, by)]

    def detach_pod(self, name: str, *, by: str) -> None:
        """Raises: LabError."""
        self._cni("DEL", name, by)
        self.do("ip", "netns", "delete", name)

    def _cni(self, verb: str, name: str, by: str) -> Sequence[Any]:
        folder = reference_folder() / "usr" / "lib" / "cni"
        plugin, conf = str(folder / "bridge"), self.flannel_conf() if by == "flannel" else {}
        if by == "limpet":
            plugin = "/usr/lib/cni/limpet"
            [text] = self.system.path("/etc/cni/net.d").glob("*limpet*")
            document = json.loads(text.read_text())
            plain = {"cniVersion": "1.0.0", "name": document["name"]}
            conf = {**document["plugins"][0], **plain}
        environment = {
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": f"{name}-container",
            "CNI_NETNS": f"/run/netns/{name}",
            "CNI_IFNAME": "eth0",
            "CNI_PATH": str(folder),
            "CNI_ARGS": f"IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={name}",
        }
        words = [f"{key}={value}" for key, value in environment.items()]
        done = subprocess.run(
            [*self.around, "env", *words, plugin],
            input=json.dumps(conf).encode(),
            capture_output=True,
            check=False,
        )
        answer = decode_cni(done)
        if answer.exit_code:
            raise LabError(f"{verb} {name}: {answer.document} {done.stderr.decode()}")
        return [ip_interface(each["address"]) for each in answer.document.get("ips", ())]

    def pings_from(self, name: str, address: object) -> bool:
        """One ping of the pod is answered."""
        ping = ("ping", "-n", "-q", "-c", "1", "-W", "1", str(address))
        try:
            self.do("nsenter", f"--net=/run/netns/{name}", *ping)
        except LabError:
            return False
        return True

    def end_programs(self) -> None:
        self.limpet_agent.kill()
        super().end_programs()


class MovingWorld(BesideWorld):
    """The node `mover` has a root of its own."""

    def __init__(self, topology: Topology, name: str, folder: Path) -> None:
        super().__init__(topology, name, folder)
        [(site, node)] = [each for each in topology.nodes if each[1].name == MOVER]
        settings = topology.agent
        self.mover = Mover(self.wires, site, node, folder / "nodes" / MOVER, settings)
        self.machines[MOVER] = self.mover
