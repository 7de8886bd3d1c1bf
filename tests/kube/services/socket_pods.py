"""Pods of every kind that ask a Service at the socket, and what each of their questions met."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from limpet.lab.kube.machine import KubeMachine
from tests.kube.services.service_day import (
    NAME,
    PORT,
    PYTHON,
    V2,
    client,
    eventually,
    lines_of,
    now_s,
    servers,
)

REQUESTS = {"cpu": "10m", "memory": "32Mi"}
LIMITS = {"cpu": "500m", "memory": "128Mi"}
CLASSES: Mapping[str, Mapping[str, Any]] = {
    "besteffort": {},
    "burstable": {"requests": REQUESTS},
    "guaranteed": {"requests": LIMITS, "limits": LIMITS},
}
"""What a pod asks for, and so of which class of QoS the kubelet makes it."""
_ENOUGH = 5

SERVER = f"""
import asyncio, os
name = os.environ["POD"].encode()
class Datagrams(asyncio.DatagramProtocol):
    def connection_made(self, transport):
        self.transport = transport
    def datagram_received(self, data, peer):
        self.transport.sendto(name, peer)
async def serve(reader, writer):
    try:
        while line := await reader.readline():
            writer.write(name + b"\\n" if line == b"who\\n" else line)
            await writer.drain()
    except OSError:
        pass
    writer.close()
async def main():
    loop = asyncio.get_running_loop()
    await loop.create_datagram_endpoint(Datagrams, local_addr=("0.0.0.0", {PORT}))
    server = await asyncio.start_server(serve, "0.0.0.0", {PORT})
    await server.serve_forever()
asyncio.run(main())
"""
"""Says its pod's name to who asks by TCP or UDP, and gives every other line back."""

CURIOUS = f"""
import json, socket, sys, time
where, log = sys.argv[1:]
with open(log, "a", buffering=1) as out:
    while True:
        began_s = time.monotonic()
        peer = by = datagram_from = datagram_by = why = ""
        try:
            with socket.create_connection((where, {PORT}), timeout=10) as tcp:
                peer = tcp.getpeername()[0]
                tcp.sendall(b"who\\n")
                by = tcp.makefile().readline().strip()
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
                udp.settimeout(10)
                udp.sendto(b"who", (peer, {PORT}))
                said, source = udp.recvfrom(1000)
                datagram_by, datagram_from = said.decode(), source[0]
        except OSError as error:
            why = str(error) or type(error).__name__
        out.write(json.dumps([began_s, peer, by, datagram_from, datagram_by, why]) + "\\n")
        time.sleep(0.05)
"""
"""Asks a Service by a new socket of TCP and of UDP each time, and writes down who answered, and
whom it was told that it talks with."""


@dataclass(frozen=True)
class Answer:
    """To one question by TCP and one by UDP, by the clock of `time.monotonic`."""

    began_s: float
    peer: str
    """What getpeername says."""
    by: str
    datagram_from: str
    """What recvfrom says."""
    datagram_by: str
    why: str
    """Why there was none; empty: there was."""


def serving_pods(nodes: tuple[str, ...]) -> list[dict[str, Any]]:
    """A Deployment with a pod on each of these nodes, and its Service, by TCP and UDP and by a
    port of the nodes."""
    deployment, service = servers(NAME, nodes)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    container["command"] = [PYTHON, "-c", SERVER]
    service["spec"] |= {
        "type": "NodePort",
        "ports": [
            {"name": each, "port": PORT, "protocol": each.upper()} for each in ("tcp", "udp")
        ],
    }
    return [deployment, service]


def asking_pod(
    node: str, name: str, resources: Mapping[str, Any], script: str = CURIOUS, *words: str
) -> dict[str, Any]:
    """One that the API server tells this node's kubelet of; it asks the Service by its name."""
    made = client(name, script, NAME, *words)
    made["spec"]["nodeName"] = node
    made["spec"]["containers"][0]["resources"] = resources
    return made


def of_the_node(pod: dict[str, Any]) -> dict[str, Any]:
    """In the node's network namespace."""
    pod["spec"] |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    return pod


def answers_of(machine: KubeMachine, name: str, since_s: float = 0.0) -> list[Answer]:
    """To the questions that began since then, in order."""
    found = (Answer(*each) for each in lines_of(machine, name))
    return [each for each in found if each.began_s >= since_s]


def tracked(machine: KubeMachine, address: str) -> set[tuple[str, str, str]]:
    """Flows to a Service that the node's kernel tracks, by protocol, source and its port: there are
    none of those that were led to an endpoint at the socket."""
    found = set()
    for line in machine.run("conntrack", "-L", "-d", address).splitlines():
        words = re.search(r"^(\w+) .*? src=(\S+) dst=\S+ sport=(\d+)", line)
        if words is not None:  # ICMP has no ports
            found.add((words[1], words[2], words[3]))
    return found


def await_at_the_socket(machine: KubeMachine, name: str, source: str, address: str) -> list[Answer]:
    """Answers to the last questions of the pod `name`, whose packets come from `source`: each by an
    endpoint that nothing translated to. Of its first ones nftables may have served some."""
    good: list[Answer] = []

    def holds() -> bool:
        nonlocal good
        before, since_s = tracked(machine, address), now_s()
        eventually(lambda: len(answers_of(machine, name, since_s)) >= _ENOUGH, f"{name} asks")
        good = answers_of(machine, name, since_s)
        fresh = {each for each in tracked(machine, address) - before if each[1] == source}
        return not fresh and not any(each.why for each in good)

    eventually(holds, f"{name} is served at the socket")
    for each in good:
        assert (each.peer, each.datagram_from) == (address, address), each
    return good


def group_of(machine: KubeMachine, class_name: str, uid: str) -> list[str]:
    """Groups of v2 with processes of this pod below that of its class, as the kubelet has them."""
    folder = "" if class_name == "guaranteed" else f"/{class_name}"
    top = machine.system.path(f"/sys/fs/cgroup{V2}/kubepods{folder}/pod{uid}")
    # Not rglob: it fails on a folder that goes while it is walked.
    groups = (folder for folder, _, _ in os.walk(top))
    return [each for each in groups if _processes(Path(each, "cgroup.procs"))]


def _processes(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""  # its group goes just now
