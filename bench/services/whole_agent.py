"""What memory the whole agent of a node takes that serves many Services, beside a real kube-proxy.

One node is a member of a cluster that hears a real API server; kube-proxy, in its nftables mode,
runs on another and hears the same. Then the agent serves at the socket, too, of a cgroup and a
bpffs of its own, without kube-proxy beside it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from tests.beds.services.socket_bed import Cgroup, mounted
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
        rules = list(_measured(node, cluster, objects, proxy, rounds))
        cgroup = Cgroup()
        undo.callback(cgroup.close)
        undo.enter_context(mounted("bpf", node.run_folder / "bpf"))
        at_the_socket = {"services_backend": "ebpf", "services_cgroup": str(cgroup.path)}
        programs = list(_measured(node, cluster, objects, None, rounds, **at_the_socket))
        return [*_figures(*_by_when(rules)), *_figures_at_the_socket(*_by_when(programs))]


Samples = dict[str, list[float]]
_MOST = "the most at its start"


def _measured(
    node: Node,
    cluster: KubeCluster,
    objects: ServiceObjects,
    proxy: KubeProxy | None,
    rounds: int,
    **settings: str,
) -> Iterator[tuple[str, float, float]]:
    """When, of the agent, of kube-proxy (0 where there is none)."""
    ports = itertools.cycle(_PORTS)
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
                **settings,
            },
        )
        try:
            # It reads what it finds of 10,000 Services before it answers.
            if proxy is not None:
                proxy.start(within_s=_WITHIN_S)
            for when in _WHEN:
                if when == "all changed since":
                    objects.move_all(next(ports))
                elif when == "restarted":
                    agent.stop()
                    agent.start()
                    if proxy is not None:
                        proxy.process.kill()
                        proxy.start(within_s=_WITHIN_S)
                wait_until(
                    lambda: _lines(kept) > objects.count,
                    "the agent does not keep all",
                    patience_s=_WITHIN_S,
                )
                pids = [agent.agent_pid, *([] if proxy is None else [_pid_of(proxy)])]
                for pid in pids:
                    wait_until(partial(_is_quiet, pid), "it goes on working", patience_s=_WITHIN_S)
                theirs = 0.0 if proxy is None else resident_mb(_pid_of(proxy))
                yield when, resident_mb(agent.agent_pid), theirs
            yield _MOST, peak_resident_mb(agent.agent_pid), 0.0
        except BaseException as error:
            error.add_note(agent.log_tail())
            raise
        finally:
            agent.close()
            if proxy is not None:
                proxy.process.kill()


def _by_when(samples: Iterable[tuple[str, float, float]]) -> tuple[Samples, Samples]:
    ours: Samples = {}
    theirs: Samples = {}
    for when, mine, other in samples:
        ours.setdefault(when, []).append(mine)
        theirs.setdefault(when, []).append(other)
    return ours, theirs


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


_WHAT = f"the whole agent, {SERVICES:,} Services, {SERVICES * ENDPOINTS:,} endpoints"


def _figures(ours: Samples, theirs: Samples) -> Iterator[Figure]:
    for when in _WHEN:
        yield Figure(
            f"whole-agent-{_slug(when)}",
            f"{_WHAT}, {when}: resident (reference: kube-proxy nftables)",
            "MB",
            ours[when],
            theirs[when],
        )
    for when in _WHEN:
        yield Figure(
            f"whole-agent-{_slug(when)}-bound",
            f"{_WHAT}, {when}: resident",
            "MB",
            ours[when],
            target=Target(_MOST_MB, of_ratio=False),
        )
    yield Figure("whole-agent-most", f"... {_MOST}", "MB", ours[_MOST])


def _figures_at_the_socket(ours: Samples, _theirs: Samples) -> Iterator[Figure]:
    for when in (*_WHEN, _MOST):
        yield Figure(
            f"whole-agent-ebpf-{_slug(when)}",
            f"{_WHAT}, at the socket, {when}: resident",
            "MB",
            ours[when],
            target=None if when == _MOST else Target(_MOST_MB, of_ratio=False),
        )


def _slug(words: str) -> str:
    return words.replace(" ", "-")
