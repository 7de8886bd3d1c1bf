"""What it costs that pods are held to their addresses: two nodes side by side, one without.

Ours is the node with port security, the reference the one without; both are in every round.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench.bed import Bed
from bench.figures import Figure, Target, Unit
from bench.traffic.flows import Flows, Way, in_turns
from bench.traffic.single_flow import Turn
from limpet.lab.world.node import LabNode
from limpet.lab.world.pod import LabPod
from limpet.linux.namespaces import Namespace

_MODES = ("on", "off")
_OTHERS = 20
"""Pods beside the two that talk."""
_TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")


class _Asked(NamedTuple):
    """What two pods of one node do, and what is told of it."""

    title: str
    unit: Unit
    begin: Callable[[Flows, Way], Turn]
    target: Target = Target(0.95, at_least=True)


_ASKED = {
    "stream": _Asked("one stream of TCP", "Gbit/s", Flows.stream),
    "questions": _Asked("64 bytes of TCP there and back", "1/s", Flows.questions),
    "datagrams": _Asked("UDP", "Gbit/s", Flows.datagrams),
    "connections": _Asked("connects of TCP", "1/s", lambda flows, way: flows.connections(way, [])),
}


def port_security(bed: Bed, rounds: int) -> list[Figure]:
    """ADD and DEL of a pod beside others, and what two pods of the node carry."""
    if bed.reference_only:
        return []
    with ExitStack() as undo:
        nodes = {mode: _node(bed, mode, undo) for mode in _MODES}
        return [*_adds(nodes, rounds), *_flows(nodes, rounds, undo)]


def _node(bed: Bed, mode: str, undo: ExitStack) -> LabNode:
    node = LabNode(
        f"lbn-{os.getpid()}-{mode}",
        Path(bed.disk_folder) / f"lbn-{os.getpid()}-{mode}",
        segments=["10.244.7.0/24"],
        port_security=mode,
    )
    undo.callback(node.power_off)
    node.start_agent()
    for number in range(_OTHERS):
        node.pod(f"other{number}").add()
    return node


def _adds(nodes: dict[str, LabNode], rounds: int) -> list[Figure]:
    """Each round a pod of each node, whose namespace is there before."""
    pods = {mode: node.pod("comes") for mode, node in nodes.items()}
    add: dict[str, list[float]] = {mode: [] for mode in _MODES}
    delete: dict[str, list[float]] = {mode: [] for mode in _MODES}
    cpu: dict[str, list[float]] = {mode: [] for mode in _MODES}
    for number in range(rounds):
        for mode in _MODES if number % 2 else reversed(_MODES):
            before_ms = _cpu_ms(nodes[mode])
            add[mode].append(_took_ms(pods[mode].add))
            delete[mode].append(_took_ms(pods[mode].delete))
            cpu[mode].append(_cpu_ms(nodes[mode]) - before_ms)
    what = f"beside {_OTHERS}"
    mean = {mode: [sum(each) / len(each)] for mode, each in cpu.items()}
    return [
        _figure("add", f"ADD of a pod {what}", "ms", add, Target(1.10)),
        _figure("del", f"DEL of a pod {what}", "ms", delete, Target(1.10)),
        _figure("cpu", "... of the agent's time, both", "CPU ms each", mean),
    ]


def _took_ms(step: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    step()
    return (time.perf_counter() - began_s) * 1e3


def _cpu_ms(node: LabNode) -> float:
    """Of the agent, up to now; its threads' too."""
    fields = Path(f"/proc/{node.agent_pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_MS


def _flows(nodes: dict[str, LabNode], rounds: int, undo: ExitStack) -> list[Figure]:
    flows = Flows(undo)
    turns = {}
    for mode, node in nodes.items():
        client, server = node.pods["other0"], node.pods["other1"]
        way = Way(_inside(client), _inside(server), str(server.addresses[0].ip), 7000, 7000)
        for name, asked in _ASKED.items():
            turns[f"{name} {mode}"] = asked.begin(flows, way)
    seen: dict[str, list[float]] = {name: [] for name in turns}
    for rates in in_turns(turns, rounds):
        for name, rate in rates.items():
            seen[name].append(rate)
    return [
        _figure(
            name, its.title, its.unit, {mode: seen[f"{name} {mode}"] for mode in _MODES}, its.target
        )
        for name, its in _ASKED.items()
    ]


def _inside(pod: LabPod) -> Callable[[], AbstractContextManager[None]]:
    return partial(_entered, pod.netns_path)


def _entered(path: str) -> AbstractContextManager[None]:
    return Namespace(path).entered()


def _figure(
    name: str, title: str, unit: Unit, seen: dict[str, list[float]], target: Target | None = None
) -> Figure:
    return Figure(f"port-security-{name}", title, unit, seen["on"], seen["off"], target)
