"""What is measured. Each function takes the two sides in interleaved rounds and gives figures."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench.bed import Bed, Samples
from bench.controller.insiders import insiders
from bench.controller.load import controller_https, controller_store, controller_watchers
from bench.controller.picture import picture
from bench.controller.strangers import strangers
from bench.dns.names import dns
from bench.figures import Figure, Target, Unit
from bench.kube.nodes import kubernetes
from bench.kube.suite import suite
from bench.nodes.launch import launcher_floor, run
from bench.nodes.member import member
from bench.nodes.node import Pod
from bench.nodes.plugins import Limpet, Plugin, Reference
from bench.nodes.resident import peak_resident_kib
from bench.paths.idle import tunnel_idle
from bench.paths.nats import nats_first, nats_silence
from bench.paths.node_pairs import across_route, across_route_masq, across_vxlan, across_vxlan_masq
from bench.paths.overlay import overlay
from bench.paths.relay import relay_udp
from bench.paths.relay_tls import relay_tls
from bench.paths.tunnel import across_tunnel, tunnel_peers
from bench.policies.filtering import policies
from bench.policies.port_security import port_security
from bench.services.kube_proxy import services
from bench.services.node_death import node_death
from bench.services.recovery import recovery
from bench.services.sockets import sockets
from bench.services.whole_agent import whole_agent
from bench.traffic.throughput import differences, link_settings, transfer

AT_ONCE = 16
PODS = 100
PODS_FOR_MEMORY = 200
PODS_THERE = (1, 30, 200)
_MEGABYTE = 1e6
_SETTLE_S = 0.2
"""Between turns: what the agent does behind its answers must not slow the reference's turn down.

Seen without: the reference's ADD 18 ms slower after a turn of ours.
"""


def _in_turns(
    sides: Sequence[Plugin], rounds: int, *, settle_s: float = _SETTLE_S
) -> Iterator[Plugin]:
    """Each side once a round, the other one first in every second round."""
    for number in range(rounds):
        for side in sides if number % 2 == 0 else reversed(sides):
            time.sleep(settle_s)
            yield side


def _samples() -> Samples:
    return {Limpet.label: [], Reference.label: []}


def _figure(
    name: str, title: str, unit: Unit, samples: Samples, target: Target | None = None
) -> Figure:
    return Figure(name, title, unit, samples[Limpet.label], samples[Reference.label], target)


def one_pod(bed: Bed, rounds: int) -> list[Figure]:
    """ADD and DEL of one pod on a node that has one more, whole invocations from outside."""
    add, delete, gone = _samples(), _samples(), _samples()
    with bed.sides() as sides:
        pods: dict[str, Pod] = {}
        for side in sides:
            # A bridge without any port has no carrier, which a node with pods never sees.
            resident, pods[side.label] = side.node.new_pods(2)
            side.add(resident)
        for side in _in_turns(sides, rounds):
            pod = pods[side.label]
            add[side.label].append(side.add(pod).took_ms)
            outcome, gone_ms = side.delete(pod)
            delete[side.label].append(outcome.took_ms)
            gone[side.label].append(gone_ms)
    return [
        _figure("add", "ADD of one pod", "ms", add, Target(0.10)),
        _figure("del", "DEL of one pod, until answered", "ms", delete, Target(0.06)),
        _figure("gone", "... from the answer until the interface is gone", "ms", gone),
    ]


def pods_there(bed: Bed, rounds: int) -> list[Figure]:
    """ADD of one pod where others are; of its processor time also what is done behind the answer.

    The reference does all in the processes that it starts, we most of it in the agent.
    """
    figures = []
    with bed.sides() as sides:
        pods = {side.label: side.node.new_pods(1)[0] for side in sides}
        there = 0
        for count in PODS_THERE:
            for side in sides:
                side.add_many(side.node.new_pods(count - there), AT_ONCE)
            there = count
            took, used = _samples(), _samples()
            for side in _in_turns(sides, rounds):
                pod, before_s = pods[side.label], side.cpu_s()
                took[side.label].append(side.add(pod).took_ms)
                time.sleep(_SETTLE_S)
                used[side.label].append((side.cpu_s() - before_s) * 1e3)
                side.delete(pod)
            what = f"ADD of a pod beside {count}"
            figures += [
                _figure(f"add-{count}", what, "ms", took, Target(0.10)),
                _figure(f"add-{count}-cpu", f"{what}, all in all", "CPU ms", used, Target(0.12)),
            ]
    return figures


def many_pods(bed: Bed, rounds: int) -> list[Figure]:
    """100 pods, 16 at a time."""
    start, stop, answered = _samples(), _samples(), _samples()
    with bed.sides() as sides:
        pods = {side.label: side.node.new_pods(PODS) for side in sides}
        for side in _in_turns(sides, rounds):
            added = side.add_many(pods[side.label], AT_ONCE)
            begin_ns = min(outcome.started_ns for outcome in added)
            end_ns = max(outcome.ended_ns for outcome in added)
            start[side.label].append((end_ns - begin_ns) / 1e6)
            deleted, gone_ns = side.delete_many(pods[side.label], AT_ONCE)
            begin_ns = min(outcome.started_ns for outcome in deleted)
            end_ns = max(outcome.ended_ns for outcome in deleted)
            answered[side.label].append((end_ns - begin_ns) / 1e6)
            stop[side.label].append((max(gone_ns, end_ns) - begin_ns) / 1e6)
    what = f"{PODS} pods, {AT_ONCE} at a time"
    return [
        _figure("start-100", f"{what}: started", "ms", start, Target(0.12)),
        _figure("stop-100-answered", f"{what}: stopped, all answered", "ms", answered),
        _figure("stop-100", f"{what}: stopped, all gone", "ms", stop, Target(0.10)),
    ]


def tcp(bed: Bed, rounds: int) -> list[Figure]:
    """One TCP stream between two pods of a node."""
    rates, costs = _samples(), _samples()
    with bed.sides() as sides:
        paths: dict[str, tuple[Pod, Pod]] = {}
        settings = []
        for side in sides:
            client, server = side.node.new_pods(2)
            side.add(client)
            side.add(server)
            paths[side.label] = client, server
            settings.append(link_settings(side.node, client))
            transfer(client, server)
        if len(settings) == 2:
            unlike = differences(*settings)
            bed.notes += [f"tcp: not equal: {difference}" for difference in unlike]
            if not unlike:
                bed.notes.append(f"tcp: {len(settings[0])} link settings and offloads are equal")
        for side in _in_turns(sides, rounds):
            seen = transfer(*paths[side.label])
            rates[side.label].append(seen.gbit_per_s)
            costs[side.label].append(seen.cpu_s_per_gb)
    target = Target(0.95, at_least=True)
    return [
        _figure("tcp", "TCP from pod to pod on the node", "Gbit/s", rates, target),
        _figure("tcp-cpu", "... what it costs, both ends", "CPU s/GB", costs),
    ]


def agent(bed: Bed, rounds: int) -> list[Figure]:
    """How soon the agent serves, and what it keeps in memory."""
    fresh: list[float] = []
    restarted: list[float] = []
    if bed.reference_only:
        return []
    with bed.limpet() as side:
        fresh.append(side.ready_ms)
        for _ in range(rounds - 1):
            side.stop()
            fresh.append(side.start())
        idle = side.resident_mb()
        pods = side.node.new_pods(PODS_FOR_MEMORY)
        side.add_many(pods, AT_ONCE)
        loaded = side.resident_mb()
        for _ in range(rounds):
            side.stop()
            restarted.append(side.start())
        side.delete_many(pods, AT_ONCE)
    soon = Target(700, of_ratio=False)
    small = Target(45, of_ratio=False)
    what = f"{PODS_FOR_MEMORY} pods"
    return [
        Figure("agent-ready", "agent: start to ready", "ms", fresh, target=soon),
        Figure(
            f"agent-ready-{PODS_FOR_MEMORY}", f"... with {what} there", "ms", restarted, target=soon
        ),
        Figure("agent-memory-idle", "agent: resident at its start", "MB", [idle]),
        Figure("agent-memory", f"agent: resident after {what}", "MB", [loaded], target=small),
    ]


def shim(bed: Bed, rounds: int) -> list[Figure]:
    """The program that a runtime starts, apart from what it asks for."""
    version, memory = _samples(), _samples()
    with bed.sides() as sides:
        pods = {side.label: side.node.new_pods(1)[0] for side in sides}
        for side in _in_turns(sides, rounds, settle_s=0):
            with side.node.netns.inside():
                version[side.label].append(run(side.command("VERSION")).check().took_ms)
        for side in _in_turns(sides, 5):
            pod = pods[side.label]
            pod.renew()
            with side.node.netns.inside():
                peak, said = peak_resident_kib(side.command("ADD", pod))
            memory[side.label].append(peak * 1024 / _MEGABYTE)
            if b'"ips"' not in said:
                raise RuntimeError(f"{side.label}: ADD while watched failed: {said.decode()}")
            side.delete(pod)
    two = Target(2, of_ratio=False)
    return [
        _figure("version", "VERSION", "ms", version),
        _figure("shim-memory", "peak resident memory of the plugin in ADD", "MB", memory, two),
    ]


def floors(bed: Bed, rounds: int) -> list[Figure]:
    """What no plugin can go below here: an empty program, a durable write."""
    folder = Path(tempfile.mkdtemp(dir=bed.disk_folder, prefix=f"lbn-{os.getpid()}-"))
    try:
        launched = launcher_floor(folder, rounds)
        synced = _durable_writes(folder / "synced", rounds)
    finally:
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
    return [
        Figure("floor-launch", "floor: a static program that does nothing", "ms", launched),
        Figure("floor-sync", "floor: 4 KiB written and fdatasynced", "ms", synced),
    ]


def _durable_writes(path: Path, rounds: int) -> list[float]:
    took = []
    block = os.urandom(4096)
    with path.open("wb", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, 4096)
        for _ in range(rounds):
            started = time.monotonic_ns()
            os.pwrite(file.fileno(), block, 0)
            os.fdatasync(file.fileno())
            took.append((time.monotonic_ns() - started) / 1e6)
    return took


Measure = Callable[[Bed, int], list[Figure]]

MEASURES: dict[str, tuple[Measure, int, int]] = {
    "floors": (floors, 60, 0),
    "one-pod": (one_pod, 60, 30),
    "pods-there": (pods_there, 40, 0),
    "many-pods": (many_pods, 5, 0),
    "tcp": (tcp, 24, 0),
    "agent": (agent, 7, 3),
    "shim": (shim, 60, 0),
    "across-route": (across_route, 100, 50),
    "across-vxlan": (across_vxlan, 100, 50),
    "across-route-masq": (across_route_masq, 100, 0),
    "across-vxlan-masq": (across_vxlan_masq, 100, 0),
    "across-tunnel": (across_tunnel, 45, 0),
    "tunnel-peers": (tunnel_peers, 5, 0),
    "tunnel-idle": (tunnel_idle, 10, 0),
    "overlay": (overlay, 5, 1),
    "nats-first": (nats_first, 3, 0),
    "nats-silence": (nats_silence, 5, 0),
    "relay-udp": (relay_udp, 24, 0),
    "relay-tls": (relay_tls, 9, 0),
    "member": (member, 3, 0),
    "controller-store": (controller_store, 5, 0),
    "controller-https": (controller_https, 5, 0),
    "controller-watchers": (controller_watchers, 15, 0),
    "kubernetes": (kubernetes, 3, 0),
    "dns": (dns, 5, 0),
    "services": (services, 5, 0),
    "whole-agent": (whole_agent, 2, 0),
    "sockets": (sockets, 24, 0),
    "node-death": (node_death, 1, 0),
    "recovery": (recovery, 5, 0),
    "suite": (suite, 3, 0),
    "policies": (policies, 9, 0),
    "port-security": (port_security, 60, 0),
    "strangers": (strangers, 3, 0),
    "insiders": (insiders, 3, 0),
    "picture": (picture, 7, 0),
}
"""By name: the function, its rounds, its rounds in a quick run; 0: the quick run leaves it out."""
