"""A whole node on this machine: a network namespace for it and one for each of its pods.

Nothing of the machine itself is touched: state, run and record folders are the node's own.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv6Interface, ip_interface
from pathlib import Path
from typing import Any

from limpet.agent.client import call
from limpet.agent.shim_binary import shim_path
from limpet.model.errors import LimpetError

_READY_TIMEOUT_S = 20.0
_STOP_TIMEOUT_S = 20.0
DEFAULT_CONF: Mapping[str, Any] = {
    "cniVersion": "1.0.0",
    "name": "limpet",
    "type": "limpet",
    "ipMasq": True,
    "isDefaultGateway": True,
    "ipam": {"type": "limpet"},
}


class LabError(LimpetError):
    """Something of the lab did not work."""


def run_command(*command: str, netns: str | None = None, stdin: str | None = None) -> str:
    """stdout of a command, in a namespace if one is named. Raises: LabError with its stderr."""
    inside = ["nsenter", f"--net=/run/netns/{netns}"] if netns else []
    done = subprocess.run(
        [*inside, *command], input=stdin, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise LabError(f"run {' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


_SERVER = """
import socket, sys
server = socket.create_server(
    ("::", int(sys.argv[1])), family=socket.AF_INET6, dualstack_ipv6=True
)
print("up", flush=True)
while True:
    client, _ = server.accept()
    client.sendall(sys.argv[2].encode())
    client.close()
"""
_CLIENT = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=3) as server:
    print(server.recv(1000).decode(), end="")
"""


def fetch(address: str, port: int, *, netns: str) -> str:
    """What a server on TCP says first, asked from a namespace. Raises: LabError."""
    return run_command(sys.executable, "-c", _CLIENT, address, str(port), netns=netns)


@dataclass(frozen=True)
class CniAnswer:
    """What the CNI binary said."""

    exit_code: int
    document: dict[str, Any]
    """Result or error; empty when it printed nothing."""

    @property
    def addresses(self) -> list[IPv4Interface | IPv6Interface]:
        return [ip_interface(ip["address"]) for ip in self.document.get("ips", [])]


class LabPod:
    """A network namespace that stands for a pod's sandbox."""

    def __init__(self, node: LabNode, name: str, container_id: str, namespace: str) -> None:
        self.node = node
        self.name = name
        self.namespace = namespace
        self.container_id = container_id
        self.netns = f"{node.name}-{container_id}"
        self.addresses: list[IPv4Interface | IPv6Interface] = []
        run_command("ip", "netns", "add", self.netns)
        run_command("ip", "link", "set", "lo", "up", netns=self.netns)

    @property
    def netns_path(self) -> str:
        return f"/run/netns/{self.netns}"

    def add(self, **options: Any) -> CniAnswer:
        """ADD through the CNI binary. Raises: LabError when it fails."""
        answer = self.node.cni("ADD", self, **options)
        if answer.exit_code:
            raise LabError(f"attach pod {self.name}: {answer.document}")
        self.addresses = answer.addresses
        return answer

    def delete(self, **options: Any) -> CniAnswer:
        """DEL. Raises: LabError when it fails."""
        answer = self.node.cni("DEL", self, **options)
        if answer.exit_code:
            raise LabError(f"detach pod {self.name}: {answer.document}")
        return answer

    def run(self, *command: str) -> str:
        """Raises: LabError."""
        return run_command(*command, netns=self.netns)

    def reaches(self, address: object, *, within_s: int = 3) -> bool:
        """One ping is answered."""
        try:
            self.run("ping", "-n", "-q", "-c", "1", "-W", str(within_s), str(address))
        except LabError:
            return False
        return True

    @contextlib.contextmanager
    def serving(self, port: int, text: str) -> Iterator[None]:
        """Within the block the pod says `text` to whoever connects to `port`, over TCP."""
        process = subprocess.Popen(
            ["nsenter", f"--net={self.netns_path}", sys.executable, "-c", _SERVER, str(port), text],
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        try:
            if process.stdout.readline() != b"up\n":
                raise LabError(f"serve on port {port} of pod {self.name}: it did not start")
            yield
        finally:
            process.kill()
            process.wait()
            process.stdout.close()

    def remove(self) -> None:
        """Deletes the namespace, as a runtime does after DEL."""
        with contextlib.suppress(LabError):
            run_command("ip", "netns", "del", self.netns)


class LabNode:
    """A node: its namespace, its folders, its agent, its pods."""

    def __init__(self, name: str, folder: Path, **settings: Any) -> None:
        """`settings` are keys of the agent's configuration; paths are filled in."""
        self.name = name
        self.folder = folder
        self.pods: dict[str, LabPod] = {}
        self.environment: dict[str, str] = {}
        """More environment variables for the CNI binary."""
        self.agent_prefix: list[str] = []
        """A command that the agent is started by, such as one that gives it a disk of its own."""
        self._agent: subprocess.Popen[bytes] | None = None
        self.run_dir = Path("/dev/shm") / name
        """On tmpfs, as /run is on a node; some machines that run the lab have theirs on disk."""
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
        run_command("ip", "netns", "add", name)
        run_command("ip", "link", "set", "lo", "up", netns=name)

    @property
    def netns_path(self) -> str:
        return f"/run/netns/{self.name}"

    @property
    def config_path(self) -> Path:
        return self.folder / "agent.toml"

    @property
    def agent_pid(self) -> int:
        """Raises: LabError when no agent runs."""
        if self._agent is None:
            raise LabError(f"node {self.name}: no agent runs")
        return self._agent.pid

    def start_agent(self) -> None:
        """Returns when the agent says that it is ready. Raises: LabError with its log."""
        lines = [f"{key} = {json.dumps(value)}" for key, value in self.settings.items()]
        self.config_path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        notify = self.folder / "notify.sock"
        notify.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as readiness:
            readiness.bind(str(notify))
            readiness.settimeout(0.1)
            with open(self.log_path, "ab") as log:
                self._agent = subprocess.Popen(
                    [
                        *("nsenter", f"--net={self.netns_path}"),
                        *self.agent_prefix,
                        *(sys.executable, "-m", "limpet", "agent"),
                        *("--config", str(self.config_path)),
                    ],
                    env={**os.environ, "NOTIFY_SOCKET": str(notify)},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            self._await_ready(readiness)

    def _await_ready(self, readiness: socket.socket) -> None:
        assert self._agent is not None
        for _ in range(int(_READY_TIMEOUT_S / 0.1)):
            with contextlib.suppress(TimeoutError):
                if readiness.recv(100).startswith(b"READY=1"):
                    return
            if self._agent.poll() is not None:
                break
        raise LabError(f"start agent of {self.name}: {self.log()[-2000:]}")

    @property
    def log_path(self) -> Path:
        return self.folder / "agent.log"

    def log(self) -> str:
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def stop_agent(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Ends the agent that `start_agent` started, and waits for it."""
        if self._agent is not None:
            with contextlib.suppress(ProcessLookupError):
                self._agent.send_signal(number)
            self._agent.wait(_STOP_TIMEOUT_S)
            self._agent = None

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
        self.stop_agent(signal.SIGKILL)
        self.remove_pods()
        run_command("ip", "netns", "del", self.name)
        shutil.rmtree(self.run_dir, ignore_errors=True)
        run_command("ip", "netns", "add", self.name)
        run_command("ip", "link", "set", "lo", "up", netns=self.name)

    def remove_pods(self) -> None:
        for pod in self.pods.values():
            pod.remove()
        self.pods.clear()

    def remove(self) -> None:
        """Ends the agent and deletes every namespace of the node."""
        self.stop_agent(signal.SIGKILL)
        self.remove_pods()
        with contextlib.suppress(LabError):
            run_command("ip", "netns", "del", self.name)
        shutil.rmtree(self.run_dir, ignore_errors=True)


def decode_cni(done: subprocess.CompletedProcess[bytes]) -> CniAnswer:
    """Raises: LabError when stdout is neither empty nor JSON."""
    if not done.stdout.strip():
        return CniAnswer(done.returncode, {})
    try:
        return CniAnswer(done.returncode, json.loads(done.stdout))
    except ValueError as error:
        raise LabError(f"the CNI binary printed {done.stdout[:200]!r}") from error
