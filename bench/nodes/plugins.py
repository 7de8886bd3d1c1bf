"""The two plugins under test, each on a node of its own and with the same work to do.

Both give a pod an IPv4 and an IPv6 address behind a bridge with the gateway addresses, default
routes of both families, masquerade of what leaves, and the same MTU.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bench.nodes.launch import Command, Outcome, run, run_many
from bench.nodes.node import MTU_BYTES, OUTSIDE_ADDRESSES, Node, Pod, ip_json, output_of
from bench.nodes.resident import cpu_s, resident_kib
from limpet.cni.shim_binary import shim_path

SEGMENTS = ("10.244.7.0/24", "fd00:10:244:7::/64")
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_READY_WITHIN_S = 30.0
_GONE_WITHIN_S = 60.0


class Plugin:
    """A CNI plugin on a node. Subclasses say which program, with which configuration."""

    label: str
    program: Path
    conf: dict[str, Any]
    environment: dict[str, str]

    def __init__(self, node: Node) -> None:
        self.node = node

    def close(self) -> None:
        """Ends what the plugin keeps running."""

    def cpu_s(self) -> float:
        """Processor time so far of all that was started for it and has ended."""
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    def command(self, verb: str, pod: Pod | None = None) -> Command:
        """The invocation, as a runtime makes it: DEL and CHECK carry the result of ADD."""
        environment = dict(self.environment, CNI_COMMAND=verb, CNI_PATH=str(self.program.parent))
        conf = dict(self.conf)
        if pod is not None:
            environment |= {
                "CNI_CONTAINERID": pod.container_id,
                "CNI_NETNS": str(pod.netns.path),
                "CNI_IFNAME": "eth0",
                "CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;"
                f"K8S_POD_NAME={pod.name};K8S_POD_INFRA_CONTAINER_ID={pod.container_id};"
                f"K8S_POD_UID={pod.container_id[:32]}",
            }
            if verb != "ADD" and pod.result:
                conf["prevResult"] = pod.result
        return Command(str(self.program), environment, json.dumps(conf).encode())

    def add(self, pod: Pod) -> Outcome:
        """Attach a new pod of another name in this namespace."""
        pod.renew()
        command = self.command("ADD", pod)
        with self.node.netns.inside():
            outcome = run(command)
        pod.result = json.loads(outcome.check().stdout)
        return outcome

    def add_many(self, pods: list[Pod], width: int) -> list[Outcome]:
        """Attach new pods, `width` at a time; in the order in which they were done."""
        for pod in pods:
            pod.renew()
        by_container = {pod.container_id: pod for pod in pods}
        commands = [self.command("ADD", pod) for pod in pods]
        with self.node.netns.inside():
            outcomes = run_many(commands, width)
        for outcome in outcomes:
            pod = by_container[outcome.command.environment["CNI_CONTAINERID"]]
            pod.result = json.loads(outcome.check().stdout)
        return outcomes

    def delete(self, pod: Pod) -> tuple[Outcome, float]:
        """Detach it; the outcome, and the ms from its answer until the interface was gone."""
        links = self.node.pod_links_of(pod)
        command = self.command("DEL", pod)
        self.node.links.forget_events()
        with self.node.netns.inside():
            outcome = run(command).check()
        pod.result = {}
        gone_ns = self.node.links.wait_until_gone(links, limit_s=_GONE_WITHIN_S)
        return outcome, (gone_ns - outcome.ended_ns) / 1e6 if gone_ns else 0.0

    def delete_many(self, pods: list[Pod], width: int) -> tuple[list[Outcome], int]:
        """Detach them, `width` at a time; the outcomes, and when the last interface was gone."""
        links = self.node.pod_links()
        commands = [self.command("DEL", pod) for pod in pods]
        self.node.links.forget_events()
        with self.node.netns.inside():
            outcomes = run_many(commands, width)
        for outcome in outcomes:
            outcome.check()
        for pod in pods:
            pod.result = {}
        gone_ns = self.node.links.wait_until_gone(links, limit_s=_GONE_WITHIN_S)
        return outcomes, gone_ns or max(outcome.ended_ns for outcome in outcomes)

    def check_its_work(self) -> None:
        """RuntimeError unless a pod gets all that both sides have to do."""
        (pod,) = self.node.new_pods(1)
        self.add(pod)
        (link,) = ip_json(pod.netns, "address show dev eth0")
        if link["mtu"] != MTU_BYTES:
            raise RuntimeError(f"{self.label}: the pod's MTU is {link['mtu']}, not {MTU_BYTES}")
        for version, outside in zip((4, 6), OUTSIDE_ADDRESSES, strict=True):
            routes = ip_json(pod.netns, f"-{version} route show default")
            if not routes:
                raise RuntimeError(f"{self.label}: the pod has no IPv{version} default route")
            for what, target in (("its gateway", routes[0]["gateway"]), ("outside", outside)):
                try:
                    output_of(pod.netns, ["ping", f"-{version}", "-c1", "-W3", target])
                except RuntimeError:
                    raise RuntimeError(
                        f"{self.label}: the pod gets no answer from {what}, {target}"
                        + (" (no masquerade?)" if what == "outside" else "")
                    ) from None
        self.delete(pod)
        if ip_json(pod.netns, "link show type veth"):
            raise RuntimeError(f"{self.label}: the pod has an interface after DEL")


class Reference(Plugin):
    """Debian's containernetworking-plugins: bridge and host-local, as scripts/fetch-reference
    unpacks them."""

    label = "reference"

    def __init__(self, node: Node, unpacked: Path) -> None:
        super().__init__(node)
        self.program = unpacked / "usr/lib/cni/bridge"
        (extensions,) = unpacked.glob("usr/lib/*/xtables")
        self.environment = {
            "PATH": f"{unpacked}/bin:{_SYSTEM_PATH}",
            "XTABLES_LIBDIR": str(extensions),
        }
        self.conf = {
            "cniVersion": "1.0.0",
            "name": "bench",
            "type": "bridge",
            "bridge": "cni0",
            "mtu": MTU_BYTES,
            "isDefaultGateway": True,
            "ipMasq": True,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": segment}] for segment in SEGMENTS],
                "dataDir": str(node.folder / "networks"),
            },
        }


class Limpet(Plugin):
    """Our shim and an agent in the node's namespace, started by the constructor."""

    label = "limpet"

    def __init__(
        self,
        node: Node,
        wrapper: tuple[str, ...] = (sys.executable, "-m"),
        settings: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """`wrapper` is what runs the module `limpet`: Python, or Python under a profiler.

        `settings`: of the agent, beside the bench's.
        """
        super().__init__(node)
        self.program = Path(shim_path())
        self.socket = node.run_folder / "agent.sock"
        self.environment = {"PATH": _SYSTEM_PATH, "LIMPET_SOCKET": str(self.socket)}
        self.conf = {
            "cniVersion": "1.0.0",
            "name": "bench",
            "type": "limpet",
            "mtu": MTU_BYTES,
            "isDefaultGateway": True,
            "ipMasq": True,
            "ipam": {"type": "limpet"},
        }
        config = node.folder / "agent.toml"
        of_agent = {
            "segments": list(SEGMENTS),
            "data_dir": str(node.folder / "networks"),
            "state_dir": str(node.folder / "state"),
            "run_dir": str(node.run_folder),
            "socket": str(self.socket),
            "mtu_bytes": MTU_BYTES,
            **settings,
        }
        # What JSON writes of strings, lists and numbers is TOML too.
        config.write_text("".join(f"{key} = {json.dumps(v)}\n" for key, v in of_agent.items()))
        self._arguments = [*wrapper, "limpet", "agent", "--config", str(config)]
        self._log = node.folder / "agent.log"
        self.ready_ms = self.start()

    @property
    def agent_pid(self) -> int:
        return self._agent.pid

    def start(self) -> float:
        """Start the agent; ms until its socket accepts."""
        with self._log.open("ab") as log, self.node.netns.inside(), ExitStack() as undo:
            started = time.monotonic()
            self._agent = subprocess.Popen(
                self._arguments,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"PATH": _SYSTEM_PATH},
                start_new_session=True,
            )
            undo.callback(self.stop)
            while not _accepts(self.socket):
                if self._agent.poll() is not None or time.monotonic() - started > _READY_WITHIN_S:
                    raise RuntimeError(f"limpet: the agent does not start:\n{self.log_tail()}")
                time.sleep(0.001)
            ready_ms = (time.monotonic() - started) * 1000
            undo.pop_all()
        return ready_ms

    def stop(self) -> None:
        """End the agent as systemd would; killed when it does not end within 10 s."""
        self._agent.send_signal(signal.SIGTERM)
        try:
            self._agent.wait(10)
        except subprocess.TimeoutExpired:
            self._agent.kill()
            self._agent.wait()

    def close(self) -> None:
        self.stop()

    def cpu_s(self) -> float:
        """With the agent, which runs on."""
        return super().cpu_s() + cpu_s(self._agent.pid)

    def resident_mb(self) -> float:
        """Resident memory of the agent now, in MB of 10^6 bytes."""
        return resident_kib(self._agent.pid) * 1024 / 1e6

    def log_tail(self, length: int = 2000) -> str:
        """The end of what the agent said on stdout and stderr."""
        return self._log.read_text(errors="replace")[-length:]


def _accepts(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(os.fspath(path))
        except OSError:
            return False
    return True
