"""1,000 nodes as objects of a real API server: what agents and controller cost it, and it them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass

from tests.waiting import wait_until

from bench.bed import Bed
from bench.figures import Figure, Target
from bench.kube.api_load import Load, read_load
from bench.kube.cluster import KubeCluster
from bench.nodes.node import Node, output_of
from bench.nodes.plugins import Limpet
from bench.nodes.resident import cpu_s, resident_kib, waits
from limpet.base.ownership import VXLAN_IFNAME_PREFIX
from limpet.kubernetes.reflector_state import WATCH_S
from limpet.lab.kube.programs import API_SERVER_PROGRAMS, built_programs

NODES = 1000
_CHANGES = 20
"""Nodes that change, one after the other, in each round."""
_CHANGE_EVERY_S = 0.15
"""So that the agent does not take two of them in one round."""
_IDLE_S = 90.0
"""An API server sends each watch a bookmark about once a minute."""
_ALONE_S = 20.0
_SETTLED_S = 8.0
"""After which an agent has asked all who do not answer."""
_REST_S = 10.0
_WITHIN_S = 60.0
_KIB, _MB = 1024, 1e6
_DEVICE = f"{VXLAN_IFNAME_PREFIX}4"
_OF_AGENT = ("clusternetworks", "nodegrants", "nodepresences")
_OF_CONTROLLER = (*_OF_AGENT, "communities", "configmaps", "secrets", "nodes", "pods")
_WRITTEN = (*_OF_AGENT, "communities", "nodes", "events")
_QUIET_S, _QUIET_WITHIN_S = 6.0, 300.0
"""What a controller looks at, it looks at each two seconds."""
_NO_LOOK_S = 1e6
"""Each minute an agent looks at all that its kernel has, which costs as much as many changes: it is
in the figures of the idle agent, and not in those of what happens."""


@dataclass(frozen=True, slots=True)
class _Used:
    """Processor time in seconds, by who used it."""

    agent: float
    controller: float
    api_server: float
    took_s: float
    agent_waits: float
    """How often the agent has waited, so how often it was woken."""


def kubernetes(bed: Bed, rounds: int) -> list[Figure]:
    """An idle hour, a node that changes, and the heartbeats of all Nodes, at agent, controller and
    API server."""
    if bed.reference_only:
        return []
    if built_programs(*API_SERVER_PROGRAMS) is None:
        bed.notes.append(
            "kubernetes: left out: there is no API server (scripts/fetch-kubernetes builds one, "
            "which needs Go and half an hour the first time)"
        )
        return []
    started_s = time.monotonic()
    node = Node("kube", bed.disk_folder)
    with ExitStack() as undo:
        undo.callback(node.close)
        figures = _Run(bed, node, undo).figures(rounds)
    bed.notes.append(
        f"kubernetes: took {time.monotonic() - started_s:.0f} s; all its times are of processors"
    )
    return figures


class _Run:
    """Of one cluster."""

    def __init__(self, bed: Bed, node: Node, undo: ExitStack) -> None:
        self._bed = bed
        self._node = node
        started_s = time.monotonic()
        self._cluster = KubeCluster(node, NODES, undo)
        bed.notes.append(
            f"kubernetes: {NODES} nodes joined and shown as objects in "
            f"{time.monotonic() - started_s:.0f} s, the control plane's start included"
        )
        alone = read_load(self._cluster.plane)
        time.sleep(_ALONE_S)
        self._own_leases = (read_load(self._cluster.plane) - alone).requests_of("leases") / _ALONE_S
        """The API server's, a second."""
        self._cluster.start_controller(undo)
        wait_until(
            lambda: self._watches_more(alone, _OF_CONTROLLER),
            "the controller does not watch all",
        )
        watches = read_load(self._cluster.plane)
        self._agent = self._start_agent()
        undo.callback(lambda: self._agent.close())
        watched = (read_load(self._cluster.plane) - watches).watches
        if strange := {name for name, many in watched.items() if many} - set(_OF_AGENT):
            raise RuntimeError(f"kubernetes: the agent watches {', '.join(sorted(strange))}")
        self._await_quiet()

    def _await_quiet(self) -> None:
        """Until nothing is written that agents hear of: at its start, and when there are new Nodes,
        the controller writes conditions of all objects."""

        def is_quiet() -> bool:
            before = read_load(self._cluster.plane)
            time.sleep(_QUIET_S)
            load = read_load(self._cluster.plane) - before
            return load.requests_of(*_WRITTEN) == 0

        end_s = time.monotonic() + _QUIET_WITHIN_S
        while not is_quiet():
            if time.monotonic() > end_s:
                raise RuntimeError("kubernetes: the controller goes on writing")

    def _watches_more(self, before: Load, names: Collection[str]) -> bool:
        more = (read_load(self._cluster.plane) - before).watches
        return all(more[name] > 0 for name in names)

    def _start_agent(self, **settings: float) -> Limpet:
        """It has programmed all nodes, and has asked them."""
        agent = Limpet(
            self._node,
            settings={
                "segments": [],
                "source": "kubernetes",
                "kubernetes_kubeconfig": str(self._cluster.kubeconfig),
                "log_level": "warning",
                **settings,
            },
        )
        try:
            self._await_entries(NODES)
        except BaseException as error:
            agent.close()
            error.add_note(agent.log_tail())
            raise
        time.sleep(_SETTLED_S)
        return agent

    def figures(self, rounds: int) -> list[Figure]:
        try:
            idle = self._idle()
            self._agent.close()
            self._agent = self._start_agent(resync_s=_NO_LOOK_S)
            self._await_quiet()
            return [*idle, *self._changes(rounds), *self._heartbeats(rounds)]
        except Exception as error:
            error.add_note(self._agent.log_tail())
            raise

    # An idle hour

    def _idle(self) -> list[Figure]:
        before = read_load(self._cluster.plane)
        used = self._while(lambda: time.sleep(_IDLE_S))
        after = read_load(self._cluster.plane)
        load = after - before
        hourly = 3600 / used.took_s
        # A watch that ends within the stretch is one of the renewals, which are counted by rule.
        renewals = 3600 / (WATCH_S * 1.25)
        events = [load.event_bytes[name] / after.watches[name] for name in _OF_AGENT]
        asked = load.requests_of(*_OF_AGENT)
        leases = load.requests_of("leases") - self._own_leases * used.took_s
        return [
            Figure(
                "kube-agent-requests",
                f"API server, {NODES} nodes idle: requests of one agent",
                "1/h",
                [asked * hourly + len(_OF_AGENT) * renewals],
            ),
            Figure("kube-agent-bytes", "... told to it", "KB/h", [sum(events) * hourly / 1e3]),
            Figure(
                "kube-controller-requests",
                "... requests of the controller that leads",
                "1/h",
                [leases * hourly + sum(after.watches.values()) * renewals],
            ),
            Figure(
                "kube-agent-memory",
                f"agent that hears the API server, {NODES} nodes: resident",
                "MB",
                [self._agent.resident_mb()],
            ),
            Figure(
                "kube-agent-idle", "... idle: of one core", "CPU %", [_percent(used.agent, used)]
            ),
            Figure(
                "kube-controller-memory",
                f"controller with its store there, {NODES} nodes: resident",
                "MB",
                [resident_kib(self._cluster.controller.pid) * _KIB / _MB],
            ),
            Figure(
                "kube-controller-idle",
                "... idle: of one core",
                "CPU %",
                [_percent(used.controller, used)],
            ),
        ]

    # One node that changes

    def _changes(self, rounds: int) -> list[Figure]:
        agent, controller, api_server, asked, told = [], [], [], [], []
        for sequence in range(2, rounds + 2):
            before = read_load(self._cluster.plane)

            used = self._beyond_idle(lambda sequence=sequence: self._change_some(sequence))  # type: ignore[misc]
            load = read_load(self._cluster.plane) - before
            agent.append(used.agent * 1e3 / _CHANGES)
            controller.append(used.controller * 1e3 / _CHANGES)
            api_server.append(used.api_server * 1e3 / _CHANGES)
            asked.append(load.requests_of(*_OF_AGENT) / _CHANGES)
            # The controller has one watch, the agent another.
            told.append(load.event_bytes["nodepresences"] / 2 / _CHANGES / 1e3)
        return [
            Figure(
                "kube-change-agent",
                f"one node of {NODES} changes: each agent (flannel: 2)",
                "CPU ms",
                agent,
                target=Target(2, of_ratio=False),
            ),
            Figure("kube-change-controller", "... the controller", "CPU ms", controller),
            Figure("kube-change-api", "... the API server, with one agent", "CPU ms", api_server),
            Figure("kube-change-requests", "... requests", "objects", asked),
            Figure("kube-change-bytes", "... told to each agent", "KB", told),
        ]

    def _change_some(self, sequence: int) -> None:
        async def work() -> None:
            for number in range(1, _CHANGES + 1):
                await self._cluster.publish(number, sequence)
                await asyncio.sleep(_CHANGE_EVERY_S)

        asyncio.run(self._cluster.with_client(work))
        self._await_entries(_CHANGES, f":4c:{sequence:02x}:")

    # Heartbeats

    def _heartbeats(self, rounds: int) -> list[Figure]:
        asyncio.run(self._cluster.with_client(self._cluster.create_nodes))
        self._await_quiet()
        agent, waked, controller = [], [], []
        for _ in range(rounds):
            used = self._beyond_idle(
                lambda: asyncio.run(self._cluster.with_client(self._cluster.beat_hearts))
            )
            agent.append(used.agent * 1e6 / NODES)
            waked.append(used.agent_waits)
            controller.append(used.controller * 1e6 / NODES)
        what = "a Node's heartbeat (Lease and status)"
        return [
            Figure(
                "kube-heartbeat-agent",
                f"{what}: each agent (flannel: 1000)",
                "CPU us",
                agent,
                # What differs from one idle moment to the next; it watches neither, or the
                # measure fails.
                target=Target(50, of_ratio=False),
            ),
            Figure(
                "kube-heartbeat-wakes",
                f"... of {NODES}: woke the agent, beyond what does when idle",
                "objects",
                waked,
                target=Target(100, of_ratio=False),
            ),
            Figure(
                "kube-heartbeat-controller",
                "... the controller",
                "CPU us",
                controller,
                target=Target(500, of_ratio=False),
            ),
        ]

    # Processor time

    def _while(self, work: Callable[[], object]) -> _Used:
        """Of what each has used meanwhile."""
        before, waited, began_s = self._used_s(), waits(self._agent.agent_pid), time.monotonic()
        work()
        agent, controller, api_server = (
            now - then for now, then in zip(self._used_s(), before, strict=True)
        )
        took_s = time.monotonic() - began_s
        return _Used(agent, controller, api_server, took_s, waits(self._agent.agent_pid) - waited)

    def _used_s(self) -> list[float]:
        api_server = self._cluster.plane.processes["kube-apiserver"].pid
        assert api_server is not None
        pids = self._agent.agent_pid, self._cluster.controller.pid, api_server
        return [cpu_s(pid) for pid in pids]

    def _beyond_idle(self, work: Callable[[], object]) -> _Used:
        """Without what they would have used in that time anyway, as they have just before."""
        idle = self._while(lambda: time.sleep(_REST_S))
        used = self._while(work)
        part = used.took_s / idle.took_s
        return _Used(
            used.agent - idle.agent * part,
            used.controller - idle.controller * part,
            used.api_server - idle.api_server * part,
            used.took_s,
            used.agent_waits - idle.agent_waits * part,
        )

    def _await_entries(self, many: int, part: str = "") -> None:
        """Until the agent has programmed as many peers, with this in their MACs."""
        end_s = time.monotonic() + _WITHIN_S
        while time.monotonic() < end_s:
            table = output_of(self._node.netns, ["bridge", "fdb", "show", "dev", _DEVICE])
            if sum(part in line for line in table.splitlines()) >= many:
                return
            time.sleep(0.1)
        raise RuntimeError(f"kubernetes: the agent has not programmed {many} nodes")


def _percent(used_s: float, used: _Used) -> float:
    return used_s / used.took_s * 100
