"""Worlds for tests, and what tests do in them: traffic, waiting, listening to the kernel."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from limpet.lab.command import LabError, run_command
from limpet.lab.launch import launcher
from limpet.lab.topology import parse_topology
from limpet.lab.world.machine import Machine
from limpet.lab.world.node import LabNode
from limpet.lab.world.pod import LabPod
from limpet.lab.world.world import World
from tests.waiting import PATIENCE_S

_numbers = itertools.count()
_WITHIN_S = PATIENCE_S

ONE_LAN = """
[cloud]
addresses = ["203.0.113.10/24", "2001:db8:c::10/64"]
[site.lan]
lan = ["192.168.10.0/24", "fd00:10::/64"]
nodes = { node-1 = 1, node-2 = 1, node-3 = 1 }
"""
TWO_SITES = """
[cloud]
addresses = ["203.0.113.10/24", "2001:db8:c::10/64"]
[site.harbour]
lan = ["192.168.10.0/24", "fd00:10::/64"]
nodes = { crane-1 = 1, crane-2 = 1 }
[site.quarry]
lan = ["192.168.20.0/24", "fd00:20::/64"]
nodes = { digger-1 = 1 }
[controller]
segment_length_v4 = 29
"""


@contextlib.contextmanager
def a_world(topology: str, folder: Path) -> Iterator[World]:
    """A world that runs, with every pod attached and reached; whatever happens, it goes again."""
    name = f"t{os.getpid()}-{next(_numbers)}"
    world = World(parse_topology(topology, name, "a test"), name, folder / name)
    try:
        world.up()
        everybody_reaches_everybody(world)
        yield world
    except Exception:
        for machine in world.machines.values():
            with contextlib.suppress(OSError):
                sys.stderr.write(f"--- {machine.label}\n{machine.log()[-6000:]}\n")
        raise
    finally:
        world.down()


def everybody_reaches_everybody(world: World, *, within_s: float = _WITHIN_S) -> float:
    """Seconds that it took. Raises: AssertionError with who did not answer whom."""
    matrix = world.reach(within_s=within_s)
    failures = [f"{source} -> {target} {address}" for source, target, address in matrix.failures]
    assert failures == [], "\n".join(failures)
    return matrix.took_s


def limpet(machine: Machine, *words: str) -> str:
    """What a command prints on the node. Raises: LabError."""
    command = (sys.executable, "-m", "limpet", *words, "--config", str(machine.config_path))
    return run_command(*command, netns=machine.name)


def doctor(node: LabNode) -> dict[str, list[str]]:
    """Findings by level, whatever the exit code."""
    found: dict[str, list[str]] = {"ok": [], "warn": [], "error": []}
    for each in _examine(node):
        found[each["level"]].append(each["what"])
    return found


def findings(node: LabNode) -> dict[str, str]:
    """What is not as it should be: what doctor says of it, by id."""
    return {each["id"]: each["what"] for each in _examine(node) if each["level"] != "ok"}


def _examine(node: LabNode) -> list[dict[str, str]]:
    words = ("doctor", "--output", "json", "--config", str(node.config_path))
    inside = ("nsenter", f"--net={node.netns_path}")
    done = launcher().run([*inside, sys.executable, "-m", "limpet", *words])
    found: list[dict[str, str]] = json.loads(done.stdout)["findings"]
    return found


@contextlib.contextmanager
def with_endpoint(machine: Machine, endpoint: str) -> Iterator[None]:
    """A person has written this public endpoint down for the node."""
    machine.stop_agent()
    machine.settings["tunnel_endpoints"] = [endpoint]
    machine.start_agent()
    try:
        yield
    finally:
        machine.stop_agent()
        del machine.settings["tunnel_endpoints"]
        machine.start_agent()


def vtep_macs(machine: Machine) -> dict[str, str]:
    """MACs of the node's VXLAN devices as the kernel has them."""
    return {
        name: link["address"] for name, link in machine.links().items() if name.startswith("limvx")
    }


def routes(machine: Machine, version: int = 4) -> dict[str, dict[str, Any]]:
    """Routes of our table by prefix, without the barrier."""
    text = machine.run("ip", f"-{version}", "-j", "route", "show", "table", "5148")
    return {route["dst"]: route for route in json.loads(text) if route.get("type") != "unreachable"}


def route_devices(machine: Machine, pod: LabPod) -> set[str]:
    """Devices by which the node reaches a pod, IPv4 and IPv6, as far as there is a route."""
    found = set()
    for address in pod.addresses:
        try:
            (route,) = json.loads(machine.run("ip", "-j", "route", "get", str(address.ip)))
        except LabError:  # there is none
            continue
        found.add(route["dev"])
    return found


def remember(machine: Machine) -> dict[str, list[str]]:
    """Addresses of the node's pods by name."""
    return {pod.name: [str(a) for a in pod.addresses] for pod in machine.pods.values()}


# Traffic

_ECHO = """
import select, socket, sys
tcp = socket.create_server(("::", 7), family=socket.AF_INET6, dualstack_ipv6=True)
udp = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
udp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
udp.bind(("::", 7))
print("up", flush=True)
while True:
    for ready in select.select([tcp, udp], [], [])[0]:
        if ready is udp:
            data, source = udp.recvfrom(65536)
            udp.sendto(data, source)
            continue
        client, _ = tcp.accept()
        with client:
            size = int.from_bytes(client.recv(8, socket.MSG_WAITALL), "big")
            client.sendall(client.recv(size, socket.MSG_WAITALL))
"""
_ASK = """
import os, socket, sys
kind, address, size, whole = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "whole"
data = os.urandom(size)
family = socket.AF_INET6 if ":" in address else socket.AF_INET
with socket.socket(family, socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM) as s:
    s.settimeout(30 if kind == "tcp" else 3)  # of all that is sent
    if whole:  # IP_MTU_DISCOVER or IPV6_MTU_DISCOVER, ..._PMTUDISC_PROBE: as if no path were narrow
        s.setsockopt(*((41, 23, 3) if family == socket.AF_INET6 else (0, 10, 3)))
    s.connect((address, 7))
    if kind == "tcp":
        s.sendall(size.to_bytes(8, "big") + data)
        with s.makefile("rb") as answer:
            got = answer.read(size)
    else:
        s.send(data)
        got = s.recv(65536)
print("same" if got == data else "other")
"""


@contextlib.contextmanager
def echoing(netns: str) -> Iterator[None]:
    """Within the block, port 7 of TCP and UDP says what it is told."""
    process = subprocess.Popen(
        ["nsenter", f"--net=/run/netns/{netns}", sys.executable, "-c", _ECHO],
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"up\n"
        yield
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def echo(netns: str, kind: str, address: object, size: int, *, whole: bool = False) -> str:
    """`same` when all came back; `whole`: no packet may be cut into pieces. Raises: LabError."""
    words = (kind, str(address), str(size), "whole" if whole else "")
    return run_command(sys.executable, "-c", _ASK, *words, netns=netns).strip()


_UNDER_WAY = 10


class Pinging:
    """Pings a hundred times a second until it is stopped."""

    def __init__(self, netns: str, address: object) -> None:
        # A pipe would be full after ten seconds. It is closed on exit.
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [
                *("nsenter", f"--net=/run/netns/{netns}"),
                *("ping", "-n", "-i", "0.01", "-W", "2", str(address)),
            ],
            stdout=self._said,
        )

    def __enter__(self) -> Pinging:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._said.close()

    def stop(self) -> tuple[int, int]:
        """Packets sent, packets answered. Without those of the last tenth of a second whose answers
        were still on the way when the signal came."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait(PATIENCE_S)
        self._said.seek(0)
        text = self._said.read()
        words = next(line for line in text.splitlines() if "transmitted" in line).split()
        sent, answered = int(words[0]), int(words[3])
        last = max(map(int, re.findall(r"icmp_seq=(\d+) ttl", text)), default=0)
        return last if last and sent - last <= _UNDER_WAY else sent, answered


@contextlib.contextmanager
def listening(machine: Machine) -> Iterator[Callable[[], list[str]]]:
    """What the kernel told of routes, neighbours and links of the network between nodes.

    Without what it notes for itself of multicast groups (NOARP), and forgets when its table fills.
    """
    process = subprocess.Popen(
        ["nsenter", f"--net={machine.netns_path}", "ip", "monitor", "route", "neigh", "link"],
        stdout=subprocess.PIPE,
        text=True,
    )
    told: list[str] = []

    def stop() -> list[str]:
        process.terminate()
        text, _ = process.communicate(timeout=PATIENCE_S)
        of_nodes = [line for line in text.splitlines() if "table 5148" in line or "limvx" in line]
        told[:] = [line for line in of_nodes if "NOARP" not in line]
        return told

    try:
        yield stop
    finally:
        process.kill()
        process.wait()


def is_refused(call: Callable[[], object]) -> str:
    """The words of a command that must fail."""
    try:
        call()
    except LabError as error:
        return str(error)
    raise AssertionError("it was not refused")
