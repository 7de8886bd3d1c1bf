"""TCP from pod to pod, by iperf3, and what has to be equal for it to be compared."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from bench.nodes.netns import Netns
from bench.nodes.node import Node, Pod, ip_json, output_of

_BYTES = "1500M"
_FIRST = ("nice", "-n", "-20")
"""Whatever else runs on the machine is to take as little as it can."""
_CLIENT_LIMIT_S = 30


@dataclass(frozen=True, slots=True)
class Transfer:
    """`cpu_s_per_gb`: processor time of both ends, with the kernel's work done on their behalf."""

    gbit_per_s: float
    cpu_s_per_gb: float


def transfer(client: Pod, server: Pod, size: str = _BYTES) -> Transfer:
    """One cubic TCP stream of that `size` over IPv4, seen from the receiver.

    Short, so that many interleaved rounds fit in a run: on a busy machine that says more.
    """
    target = server.address(4)
    command = [*_FIRST, "iperf3", "--client", target, "--bytes", size]
    command += ["--congestion", "cubic", "--json", "--connect-timeout", "3000"]
    report = _iperf3(command, client, server)
    received, cpu = report["end"]["sum_received"], report["end"]["cpu_utilization_percent"]
    cpu_s = (cpu["host_total"] + cpu["remote_total"]) / 100 * received["seconds"]
    return Transfer(received["bits_per_second"] / 1e9, cpu_s / (received["bytes"] / 1e9))


@contextmanager
def _iperf3_server(pod: Pod) -> Iterator[None]:
    """A server that listens in the pod, for one client: a used one is busy for a while."""
    with pod.netns.inside():
        server = subprocess.Popen(
            [*_FIRST, "iperf3", "--server", "--one-off", "--forceflush"],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    with server:
        assert server.stdout is not None
        try:
            if not any("listening" in line for line in server.stdout):
                raise RuntimeError("iperf3 --server ended before it listened")
            yield
        finally:
            server.kill()


def _iperf3(command: list[str], client: Pod, server: Pod) -> dict[str, Any]:
    """Its report. Raises: RuntimeError."""
    with _iperf3_server(server), client.netns.inside():
        done = subprocess.run(command, capture_output=True, text=True, timeout=_CLIENT_LIMIT_S)
    report: dict[str, Any] = json.loads(done.stdout or "{}")
    # It may tell of a failure in its report and exit with 0.
    if done.returncode != 0 or "error" in report:
        raise RuntimeError(f"{' '.join(command)}: {report.get('error', done.stderr.strip())}")
    return report


def link_settings(node: Node, pod: Pod) -> dict[str, str]:
    """MTU, queues and offloads along a pod's path: its interface, the node's end, the bridge."""
    (host,) = node.pod_links_of(pod)
    outer = next(link for link in ip_json(node.netns, "link show") if link["ifindex"] == host)
    return {
        **link_settings_of(pod.netns, "eth0", "pod"),
        **link_settings_of(node.netns, outer["ifname"], "node's end"),
        **link_settings_of(node.netns, outer["master"], "bridge"),
    }


def link_settings_of(netns: Netns, ifname: str, place: str) -> dict[str, str]:
    """MTU, queues and offloads of one link; every key begins with `place`."""
    (link,) = ip_json(netns, f"link show dev {ifname}")
    settings = {}
    for key in ("mtu", "qdisc", "num_tx_queues", "num_rx_queues", "gso_max_size"):
        settings[f"{place} {key}"] = str(link.get(key))
    for line in output_of(netns, ["ethtool", "-k", ifname]).splitlines()[1:]:
        feature, _, value = line.strip().partition(": ")
        settings[f"{place} {feature}"] = value.removesuffix(" [fixed]")
    return settings


def differences(ours: dict[str, str], reference: dict[str, str]) -> list[str]:
    """What is not equal, in words."""
    return [
        f"{key}: {ours.get(key)} (limpet), {reference.get(key)} (other)"
        for key in sorted(ours.keys() | reference.keys())
        if ours.get(key) != reference.get(key)
    ]
