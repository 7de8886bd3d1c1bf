"""A node in a root: pods by the installed CNI binary, and traffic between them."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.packages.roots import RootMachine
from tests.waiting import wait_until

BINARY = "/opt/cni/bin/limpet"
CONFLIST = "/etc/cni/net.d/10-limpet.conflist"


def cni(machine: RootMachine, command: str, pod: str) -> dict[str, Any]:
    """What the binary answers for a pod in the named network namespace of its name."""
    conflist = json.loads(machine.path(CONFLIST).read_text())
    conf = {**conflist["plugins"][0], "name": conflist["name"], "cniVersion": "1.0.0"}
    environment = {
        "CNI_COMMAND": command,
        "CNI_CONTAINERID": pod,
        "CNI_NETNS": f"/run/netns/{pod}",
        "CNI_IFNAME": "eth0",
        "CNI_PATH": str(Path(BINARY).parent),
        "CNI_ARGS": f"K8S_POD_NAMESPACE=default;K8S_POD_NAME={pod}",
    }
    said = machine.run(BINARY, env=environment, stdin=json.dumps(conf))
    document: dict[str, Any] = json.loads(said) if said else {}
    return document


def add_pod(machine: RootMachine, pod: str) -> str:
    """Its IPv4 address."""
    machine.run("ip", "netns", "add", pod)
    found = cni(machine, "ADD", pod)["ips"]
    return next(str(each["address"]).split("/")[0] for each in found if "." in each["address"])


def remove_pod(machine: RootMachine, pod: str) -> None:
    cni(machine, "DEL", pod)
    machine.run("ip", "netns", "delete", pod)


@contextmanager
def pinged(machine: RootMachine, address: str, pod: str = "") -> Iterator[dict[str, int]]:
    """A hundred packets a second, from a pod or the node; afterwards: how many sent, lost."""
    counts: dict[str, int] = {}
    log = machine.path(f"/run/ping-{pod or 'node'}")
    said = f"/run/{log.name}"
    words = f"exec ping -n -i 0.01 {address} >{said} 2>&1"
    pinging = machine.start("sh", "-c", words, netns=pod)
    wait_until(lambda: log.exists() and "icmp_seq=5 " in log.read_text(), f"{address} answers")
    yield counts
    os.kill(pinging.pid, signal.SIGINT)
    wait_until(lambda: not pinging.running, "ping has ended")
    found = re.findall(r"(\d+) packets transmitted, (\d+) received", log.read_text())
    sent, answered = map(int, found[-1])
    counts.update(sent=sent, lost=sent - answered)
    log.unlink()
