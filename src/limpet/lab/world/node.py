"""A whole node on this machine: a network namespace for it and one for each of its pods.

Nothing of the machine itself is touched: state, run and record folders are the node's own.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from limpet.agent.client import call
from limpet.cni.shim_binary import shim_path
from limpet.lab.command import LabError, run_command
from limpet.lab.files import write_settings
from limpet.lab.netns import delete_namespace, make_namespace
from limpet.lab.process import Daemon
from limpet.lab.world.pod import CniAnswer, LabPod, decode_cni
from limpet.lab.world.tunnels import run_folder

LAB_MARK = "of-a-lab"
"""File in the state folder of a world's node, which says where the agent's log is: `limpet doctor`
there looks at no program and no file of the machine that the lab runs on."""

DEFAULT_CONF: Mapping[str, Any] = {
    "cniVersion": "1.0.0",
    "name": "limpet",
    "type": "limpet",
    "ipMasq": True,
    "isDefaultGateway": True,
    "ipam": {"type": "limpet"},
}


def lab_log(state_dir: Path) -> Path | None:
    """The file that the agent of a world's node writes to; None: it is no node of a world."""
    try:
        return Path((state_dir / LAB_MARK).read_text(encoding="utf-8").strip())
    except OSError:
        return None


class LabNode:
    """A node: its namespace, its folders, its agent, its pods."""

    def __init__(self, name: str, folder: Path, *, create: bool = True, **settings: Any) -> None:
        """`settings` are keys of the agent's configuration; paths are filled in.

        `create` false: its namespace is there already, or is made later. Raises: LabError.
        """
        self.name = name
        self.folder = folder
        self.pods: dict[str, LabPod] = {}
        self.environment: dict[str, str] = {}
        """More environment variables for the CNI binary."""
        self.agent_prefix: list[str] = []
        """A command that the agent is started by, such as one that gives it a disk of its own."""
        self.agent_environment: dict[str, str] = {}
        """More environment variables for the agent."""
        self.agent = Daemon(f"agent of {name}", folder / "agent.pid", folder / "agent.log")
        self.run_dir = run_folder(name)
        self.socket = self.run_dir / "agent.sock"
        self.data_dir = folder / "networks"
        folder.mkdir(parents=True, exist_ok=True)
        self.settings: dict[str, Any] = {
            "data_dir": str(self.data_dir),
            "state_dir": str(folder / "state"),
            "run_dir": str(self.run_dir),
            "socket": str(self.socket),
            **settings,
        }
        if create:
            self.create()

    def create(self) -> None:
        """Its namespace, with nothing but the loopback device. Raises: LabError."""
        make_namespace(self.name)

    @property
    def netns_path(self) -> str:
        return f"/run/netns/{self.name}"

    @property
    def config_path(self) -> Path:
        return self.folder / "agent.toml"

    @property
    def agent_pid(self) -> int:
        """Raises: LabError when no agent runs."""
        pid = self.agent.pid
        if pid is None:
            raise LabError(f"node {self.name}: no agent runs")
        return pid

    def start_agent(self) -> None:
        """Returns when the agent says that it is ready. Raises: LabError with its log."""
        self.write_config()
        self.agent.start(
            [
                *("nsenter", f"--net={self.netns_path}"),
                *self.agent_prefix,
                *(sys.executable, "-m", "limpet", "agent"),
                *("--config", str(self.config_path)),
            ],
            notify=self.run_dir / "notify.sock",
            environment=self.agent_environment,
        )

    def write_config(self) -> None:
        """The agent's configuration, as `settings` say."""
        write_settings(self.config_path, self.settings)

    def log(self) -> str:
        return self.agent.log.read_text(encoding="utf-8", errors="replace")

    def stop_agent(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Ends the agent, if one runs, and waits for it. Raises: LabError."""
        self.agent.stop(number)

    def ask(self, verb: str, **arguments: Any) -> dict[str, Any]:
        """An admin verb of the agent."""
        return call(self.socket, verb, **arguments)

    def pod(
        self, name: str, *, container_id: str | None = None, namespace: str = "default"
    ) -> LabPod:
        """A new sandbox; it is not attached yet."""
        pod = LabPod(self, name, container_id or name, namespace)
        self.pods[pod.container_id] = pod
        return pod

    def cni(
        self,
        verb: str,
        pod: LabPod | None = None,
        *,
        conf: Mapping[str, Any] = DEFAULT_CONF,
        ifname: str = "eth0",
        netns: str | None = None,
        args: str | None = None,
    ) -> CniAnswer:
        """Runs the CNI binary as a runtime does. `netns` empty: none is given."""
        return decode_cni(
            subprocess.run(
                [str(shim_path())],
                input=json.dumps(conf).encode(),
                env=self.cni_environment(verb, pod, ifname=ifname, netns=netns, args=args),
                capture_output=True,
                check=False,
            )
        )

    def cni_environment(
        self,
        verb: str,
        pod: LabPod | None = None,
        *,
        ifname: str = "eth0",
        netns: str | None = None,
        args: str | None = None,
    ) -> dict[str, str]:
        environment = {
            "PATH": os.environ["PATH"],
            "LIMPET_SOCKET": str(self.socket),
            "CNI_COMMAND": verb,
            "CNI_PATH": "/opt/cni/bin",
            **self.environment,
        }
        if pod is not None:
            named = f"K8S_POD_NAMESPACE={pod.namespace};K8S_POD_NAME={pod.name}"
            environment |= {
                "CNI_CONTAINERID": pod.container_id,
                "CNI_IFNAME": ifname,
                "CNI_NETNS": pod.netns_path if netns is None else netns,
                "CNI_ARGS": f"IgnoreUnknown=1;{named}" if args is None else args,
            }
        return environment

    def run(self, *command: str) -> str:
        """A command in the node's namespace. Raises: LabError."""
        return run_command(*command, netns=self.name)

    def links(self) -> dict[str, dict[str, Any]]:
        """Links of the node by name, as `ip -d -j link` shows them."""
        found: Sequence[dict[str, Any]] = json.loads(self.run("ip", "-d", "-j", "link", "show"))
        return {link["ifname"]: link for link in found}

    def reboot(self) -> None:
        """Power is lost and comes back: no agent, no devices, no pods, /run empty."""
        self.power_off()
        self.create()

    def power_off(self) -> None:
        """Only what is on its disk is left."""
        self.stop_agent(signal.SIGKILL)
        self.remove_pods()
        delete_namespace(self.name)
        shutil.rmtree(self.run_dir, ignore_errors=True)

    def remove_pods(self) -> None:
        for pod in self.pods.values():
            pod.remove()
        self.pods.clear()
