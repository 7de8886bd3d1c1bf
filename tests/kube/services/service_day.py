"""Pods that ask a Service and that serve it, and what became of every request."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from limpet.lab.kube.machine import KubeMachine
from limpet.lab.kube.node_system import STATIC_PODS
from limpet.lab.kube.world import KubeWorld
from limpet.lab.process import Daemon
from tests.kube.installed.cluster import deployment, manifest_for
from tests.waiting import wait_until

IMAGE = "limpet.dev/limpet:dev"
"""Of a checkout. It has a Python: what asks and what serves are real processes in containers."""
PYTHON = "python3.11"
PORT = 80
NAME = "web"
"""In the namespace of who asks, as its resolv.conf completes it."""
ON = 'services = "on"\ndns = "on"\n'
"""Beside `policies = "on"`, which the manifest has."""
V2 = "" if Path("/sys/fs/cgroup/cgroup.controllers").exists() else "/unified"
"""Below a folder of cgroups, that of v2, which is that of the node alone."""
NODE_CGROUP, MOUNTED_CGROUP = f"/sys/fs/cgroup{V2}", f"/host/cgroup{V2}"
"""On the node, and in an agent's pod, which looks by itself for the root of this machine's."""
_NAMES = ("-m", "limpet", "dns", "serve", "--config", "/etc/limpet/agent.toml")
_LOGS = "/var/log/day"
_PATIENCE_S = 300.0
_REQUEST_S = 3.0
"""A SYN that is lost is sent again after a second."""
_AGAIN_S = 20.0
_ASKED_AGAIN_S = 5.0
"""After so long the C library asks a name server again (resolv.conf(5))."""

SERVER = f"""
import asyncio, os, resource
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
name = os.environ["POD"].encode()
async def serve(reader, writer):
    try:
        while line := await reader.readline():
            if line.startswith(b"GET"):
                writer.write(b"HTTP/1.0 200 OK\\r\\n\\r\\n" + name)
                break
            writer.write(line)
            await writer.drain()
    except OSError:
        pass
    writer.close()
async def main():
    server = await asyncio.start_server(serve, "0.0.0.0", {PORT}, backlog=4096)
    await server.serve_forever()
asyncio.run(main())
"""
"""Answers GET with its pod's name, and gives every other line back."""

ASKER = f"""
import json, socket, sys, time
where, log = sys.argv[1:]
with open(log, "a", buffering=1) as out:
    while True:
        began_s, said, why = time.monotonic(), b"", ""
        try:
            with socket.create_connection((where, {PORT}), timeout={_REQUEST_S}) as asked:
                asked.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
                while some := asked.recv(4096):
                    said += some
        except OSError as error:
            why = str(error) or type(error).__name__
        took_s = time.monotonic() - began_s
        out.write(json.dumps([began_s, took_s, said.decode().rpartition("\\n")[2], why]) + "\\n")
        time.sleep(max(0, 0.05 - took_s))
"""
"""Asks a Service twenty times a second, and writes down what became of it."""

HOLDER = f"""
import asyncio, json, resource, sys, time
where, log, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
async def ask(number, pair, round):
    reader, writer = pair
    line = f"{{number}} {{round}}\\n".encode()
    writer.write(line)
    async with asyncio.timeout({_AGAIN_S}):
        if await reader.readline() != line:
            raise OSError("closed")
async def main():
    pairs = []
    while len(pairs) < count:
        some = [asyncio.open_connection(where, {PORT}) for _ in range(min(50, count - len(pairs)))]
        pairs += await asyncio.gather(*some)
    round = 0
    with open(log, "a", buffering=1) as out:
        while True:
            began_s = time.monotonic()
            asked = [ask(n, pair, round) for n, pair in enumerate(pairs)]
            done = await asyncio.gather(*asked, return_exceptions=True)
            bad = [str(each) or type(each).__name__ for each in done if each is not None]
            out.write(json.dumps([began_s, len(pairs), bad]) + "\\n")
            round += 1
            await asyncio.sleep(1)
asyncio.run(main())
"""
"""Holds connections to a Service, and asks on each of them every second."""


@dataclass(frozen=True)
class Request:
    """By the clock of `time.monotonic`, which all processes of this machine share."""

    began_s: float
    took_s: float
    said: str
    """By whom it was answered; empty: by nobody."""
    why: str

    @property
    def ended_s(self) -> float:
        return self.began_s + self.took_s

    @property
    def has_lost_a_question(self) -> bool:
        """It was answered, by a name that was told at the second attempt only."""
        return bool(self.said) and self.took_s >= _ASKED_AGAIN_S


@dataclass(frozen=True)
class Round:
    """Of all connections that are held, one question each."""

    began_s: float
    count: int
    failed: list[str]


def manifest_with_services(world: KubeWorld, *, backend: str = "") -> str:
    """As a person edits it who wants Services and policies, and has no kube-proxy.

    `backend`: of Services; other than nftables it has the mounts that it needs.
    """
    text, services = manifest_for(world), ON
    if backend:
        text = text.replace("# - {name: ", "- {name: ")
        services += f'services_backend = "{backend}"\nservices_cgroup = "{MOUNTED_CGROUP}"\n'
    documents = list(yaml.safe_load_all(text))
    for each in documents:
        if (each["kind"], each["metadata"]["name"]) == ("ConfigMap", "limpet-agent"):
            each["data"]["agent.toml"] += services
    return yaml.safe_dump_all(documents)


def mount_bpffs(machine: KubeMachine) -> None:
    """As systemd does at the boot of a node; eBPF is nowhere else. Gone when it loses power."""
    machine.system.run("mount", "-t", "bpf", "-o", "mode=700", "bpf", "/sys/fs/bpf")


def servers(name: str, nodes: Iterable[str]) -> list[dict[str, Any]]:
    """A Deployment with a pod on each of these nodes, and its Service."""
    found = deployment(name, len(list(nodes)))
    spec = found["spec"]["template"]["spec"]
    spec["nodeSelector"] = {"serves": name}
    spec["containers"][0] |= {"image": IMAGE, "command": [PYTHON, "-c", SERVER]}
    spec["containers"][0]["readinessProbe"] = {"tcpSocket": {"port": PORT}, "periodSeconds": 1}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        # Or one of the two may be nearer, and have all requests.
        "metadata": {"name": name, "annotations": {"limpet.dev/traffic-distribution": "Even"}},
        "spec": {"selector": {"app": name}, "ports": [{"port": PORT}]},
    }
    return [found, service]


def client(name: str, script: str, *words: str) -> dict[str, Any]:
    """A pod that runs a script with the first of these words, where it writes, and the others."""
    log = f"{_LOGS}/{name}.jsonl"
    container = {
        "name": "client",
        "image": IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": [PYTHON, "-c", script, words[0], log, *words[1:]],
        "volumeMounts": [{"name": "logs", "mountPath": _LOGS}],
    }
    spec = {
        "containers": [container],
        "volumes": [{"name": "logs", "hostPath": {"path": _LOGS, "type": "DirectoryOrCreate"}}],
        "terminationGracePeriodSeconds": 0,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def start_client(machine: KubeMachine, name: str, script: str, *words: str) -> None:
    """A static pod: the kubelet has it from the node's own disk, also while it is cut off."""
    document = client(name, script, *words)
    machine.system.write(f"{STATIC_PODS}/{name}.json", json.dumps(document))


def names_of(machine: KubeMachine) -> Daemon:
    """What answers names, as a service of the node; who starts it ends it."""
    folder = machine.folder
    return Daemon(f"names of {machine.label}", folder / "names.pid", folder / "names.log")


def start_names(machine: KubeMachine, names: Daemon) -> None:
    """Returns when it answers. Raises: LabError."""
    names.start(
        [*machine.system.prefix, sys.executable, *_NAMES],
        notify=machine.run_dir / "names.notify",
        within_s=120.0,
    )


def end_client(machine: KubeMachine, name: str) -> None:
    """The kubelet ends it some seconds later."""
    machine.system.path(f"{STATIC_PODS}/{name}.json").unlink()


def lines_of(machine: KubeMachine, name: str) -> list[Any]:
    """Whole lines of a client's log."""
    try:
        text = machine.system.path(f"{_LOGS}/{name}.jsonl").read_text()
    except FileNotFoundError:
        return []
    found = []
    for line in text.split("\n")[:-1]:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue  # it lost power within it
    return found


def requests_of(machine: KubeMachine, name: str = "asker", since_s: float = 0.0) -> list[Request]:
    """That began since then, in order."""
    found = (Request(*each) for each in lines_of(machine, name))
    return [each for each in found if each.began_s >= since_s]


def rounds_of(machine: KubeMachine, name: str = "holder") -> list[Round]:
    return [Round(*each) for each in lines_of(machine, name)]


def is_served(machine: KubeMachine, since_s: float, count: int = 20) -> bool:
    """The last requests since then, so many, were all answered."""
    last = requests_of(machine, since_s=since_s)[-count:]
    return len(last) == count and all(each.said for each in last)


def eventually(holds: Callable[[], object], what: str) -> None:
    """Nodes that boot on a busy machine take longer than `tests.waiting` is patient."""
    wait_until(holds, what, patience_s=_PATIENCE_S)


def now_s() -> float:
    return time.monotonic()


class Account:
    """What became of the requests of each chapter, for the person who reads it."""

    def __init__(self, tell: Callable[[str, object], None]) -> None:
        self._tell = tell

    def close(self, chapter: str, requests: list[Request]) -> list[Request]:
        """The failed ones, told; and those that were answered after a question for the name was
        lost."""
        failed = [each for each in requests if not each.said or each.has_lost_a_question]
        reasons = dict(Counter(each.why or "a question for the name was lost" for each in failed))
        span_s = failed[-1].ended_s - failed[0].began_s if failed else 0.0
        words = f"{len(requests)} requests, {len(failed)} failed"
        words += f" within {span_s:.1f} s: {reasons}" if failed else ""
        self._tell(chapter, words)
        print(f"{chapter}: {words}")  # noqa: T201 - pytest shows it, -s at once
        return failed
