"""What memory the whole agent of a node takes that serves many Services, beside a real kube-proxy.

One node is a member of a cluster that hears a real API server; kube-proxy, in its nftables mode,
runs on another and hears the same.
"""

from __future__ import annotations

import itertools
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from tests.waiting import wait_until

from bench.bed import Bed
from bench.figures import Figure, Target
from bench.kube.cluster import KubeCluster
from bench.nodes.node import OUTSIDE_ADDRESSES, Node
from bench.nodes.plugins import Limpet
from bench.nodes.resident import cpu_s, peak_resident_mb, resident_mb
from bench.services.cluster import create_node
from bench.services.objects import ENDPOINTS, ServiceObjects
from limpet.lab.command import run_command
from limpet.lab.kube.kube_proxy import KubeProxy
from limpet.lab.kube.programs import API_SERVER_PROGRAMS, built_programs
from limpet.services.kept import KEPT_FILE

SERVICES = 10_000
_OTHERS = 2
"""Nodes of the cluster beside the one that is looked at."""
_QUIET_S, _QUIET_CPU_S = 3.0, 0.1
"""Who uses less than that within so long has done what there was to do."""
_WITHIN_S = 300.0
_PROXY_NODE = "proxied"
_PORTS = (8081, 8080)
"""That all endpoints move to, in turns; they begin at the last."""
_WHEN = ("all heard", "all changed since", "restarted")
_MOST_MB = 150.0


def whole_agent(bed: Bed, rounds: int) -> list[Figure]:
    """Resident memory of an agent and of kube-proxy, and the most that the agent had."""
    if bed.reference_only:
        return []
    if built_programs(*API_SERVER_PROGRAMS, "kube-proxy") is None:
        bed.notes.append("whole-agent: left out: there is no API server (scripts/fetch-kubernetes)")
        return []
    node = Node("whole", bed.disk_folder)
    with ExitStack() as undo:
        undo.callback(node.close)
        cluster = KubeCluster(node, _OTHERS, undo)
        cluster.start_controller(undo)
        objects = ServiceObjects(cluster.plane.kubeconfig)
        undo.callback(objects.close)
        objects.grow(SERVICES)
        proxy = _proxy_beside(cluster, node)
        undo.callback(proxy.process.kill)
        return list(_figures(*_measured(node, cluster, objects, proxy, rounds)))


Samples = dict[str, list[float]]


def _measured(
    node: Node, cluster: KubeCluster, objects: ServiceObjects, proxy: KubeProxy, rounds: int
) -> tuple[Samples, Samples, list[float]]:
    """By when: of the agent, of kube-proxy; and the most that the agent had."""
    ours: Samples = {when: [] for when in _WHEN}
    theirs: Samples = {when: [] for when in _WHEN}
    most, ports = [], itertools.cycle(_PORTS)
    kept = node.folder / "state" / "cluster" / KEPT_FILE
    for _ in range(rounds):
        kept.unlink(missing_ok=True)
        agent = Limpet(
            node,
            settings={
                "segments": [],
                "source": "kubernetes",
                "kubernetes_kubeconfig": str(cluster.kubeconfig),
                "services": "on",
                "log_level": "warning",
            },
        )
        try:
            # It reads what it finds of 10,000 Services before it answers.
            proxy.start(within_s=_WITHIN_S)
            for when in _WHEN:
                if when == "all changed since":
                    objects.move_all(next(ports))
                elif when == "restarted":
                    agent.stop()
                    agent.start()
                    proxy.process.kill()
                    proxy.start(within_s=_WITHIN_S)
                wait_until(
                    lambda: _lines(kept) > objects.count,
                    "the agent does not keep all",
                    patience_s=_WITHIN_S,
                )
                for pid in (agent.agent_pid, _pid_of(proxy)):
                    wait_until(partial(_is_quiet, pid), "it goes on working", patience_s=_WITHIN_S)
                ours[when].append(resident_mb(agent.agent_pid))
                theirs[when].append(resident_mb(_pid_of(proxy)))
            most.append(peak_resident_mb(agent.agent_pid))
        except BaseException as error:
            error.add_note(agent.log_tail())
            raise
        finally:
            agent.close()
            proxy.process.kill()
    return ours, theirs, most


def _proxy_beside(cluster: KubeCluster, node: Node) -> KubeProxy:
    """Where the API server is, which the node that is looked at is not."""
    create_node(cluster.plane, _PROXY_NODE, OUTSIDE_ADDRESSES[0])
    run_command("sysctl", "-qw", "net.ipv4.ip_forward=1", netns=node.outside.name)
    folder = node.folder / "proxy"
    return KubeProxy(
        node.outside.name, folder, cluster.kubeconfig, node=_PROXY_NODE, mode="nftables"
    )


def _pid_of(proxy: KubeProxy) -> int:
    pid = proxy.process.pid
    if pid is None:
        raise RuntimeError("kube-proxy does not run")
    return pid


def _lines(kept: Path) -> int:
    return kept.read_bytes().count(b"\n") if kept.exists() else 0


def _is_quiet(pid: int) -> bool:
    before_s = cpu_s(pid)
    time.sleep(_QUIET_S)
    return cpu_s(pid) - before_s < _QUIET_CPU_S


def _figures(ours: Samples, theirs: Samples, most: list[float]) -> list[Figure]:
    what = f"the whole agent, {SERVICES:,} Services, {SERVICES * ENDPOINTS:,} endpoints"
    found = [
        Figure(
            f"whole-agent-{when.replace(' ', '-')}",
            f"{what}, {when}: resident (reference: kube-proxy nftables)",
            "MB",
            ours[when],
            theirs[when],
        )
        for when in _WHEN
    ]
    found += [
        Figure(
            f"whole-agent-{when.replace(' ', '-')}-bound",
            f"{what}, {when}: resident",
            "MB",
            ours[when],
            target=Target(_MOST_MB, of_ratio=False),
        )
        for when in _WHEN
    ]
    return [*found, Figure("whole-agent-most", "... the most at its start", "MB", most)]
