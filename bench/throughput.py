"""TCP from pod to pod on one node, by iperf3, and what has to be equal for it to be compared."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from bench.node import Node, Pod, ip_json, output_of

_BYTES = "1500M"
_CLIENT_LIMIT_S = 30


@dataclass(frozen=True, slots=True)
class Transfer:
    """`cpu_s_per_gb`: processor time of both ends, with the kernel's work done on their behalf."""

    gbit_per_s: float
    cpu_s_per_gb: float


def transfer(client: Pod, server: Pod) -> Transfer:
    """One cubic TCP stream over IPv4, seen from the receiver.

    Short, so that many interleaved rounds fit in a run: on a busy machine that says more.
    """
    target = server.address(4)
    command = ["iperf3", "--client", target, "--bytes", _BYTES]
    command += ["--congestion", "cubic", "--json", "--connect-timeout", "3000"]
    with _iperf3_server(server), client.netns.inside():
        done = subprocess.run(command, capture_output=True, text=True, timeout=_CLIENT_LIMIT_S)
    report = json.loads(done.stdout or "{}")
    # It may tell of a failure in its report and exit with 0.
    if done.returncode != 0 or "error" in report:
        raise RuntimeError(f"iperf3 to {target}: {report.get('error', done.stderr.strip())}")
    received, cpu = report["end"]["sum_received"], report["end"]["cpu_utilization_percent"]
    cpu_s = (cpu["host_total"] + cpu["remote_total"]) / 100 * received["seconds"]
    return Transfer(received["bits_per_second"] / 1e9, cpu_s / (received["bytes"] / 1e9))


@contextmanager
def _iperf3_server(pod: Pod) -> Iterator[None]:
    """A server that listens in the pod, for one client: a used one is busy for a while."""
    with pod.netns.inside():
        server = subprocess.Popen(
            ["iperf3", "--server", "--one-off", "--forceflush"],
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


def link_settings(node: Node, pod: Pod) -> dict[str, str]:
    """MTU, queues and offloads along a pod's path: its interface, the node's end, the bridge."""
    (inner,) = ip_json(pod.netns, "link show dev eth0")
    (host,) = node.pod_links_of(pod)
    outer = next(link for link in ip_json(node.netns, "link show") if link["ifindex"] == host)
    (bridge,) = ip_json(node.netns, f"link show dev {outer['master']}")
    settings = {}
    for place, netns, link in (
        ("pod", pod.netns, inner),
        ("node's end", node.netns, outer),
        ("bridge", node.netns, bridge),
    ):
        for key in ("mtu", "qdisc", "num_tx_queues", "num_rx_queues", "gso_max_size"):
            settings[f"{place} {key}"] = str(link.get(key))
        for line in output_of(netns, ["ethtool", "-k", link["ifname"]]).splitlines()[1:]:
            feature, _, value = line.strip().partition(": ")
            settings[f"{place} {feature}"] = value.removesuffix(" [fixed]")
    return settings


def differences(ours: dict[str, str], reference: dict[str, str]) -> list[str]:
    """What is not equal, in words."""
    return [
        f"{key}: {ours.get(key)} (limpet), {reference.get(key)} (reference)"
        for key in sorted(ours.keys() | reference.keys())
        if ours.get(key) != reference.get(key)
    ]
