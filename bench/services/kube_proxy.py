"""Services beside the real kube-proxy in its nftables and iptables modes: what connections cost at
several numbers of Services (iptables up to 1,000), how soon a change is served, and what memory
that takes.

`services_cluster` says who stands for whom. What connections cost is told with both ends in one
thread (`flows`), and by clients and servers in processes of their own, which wait for each other.
Ends are in Python, so a connection costs more than the part of it that is compared.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack

from bench.bed import Bed
from bench.figures import Figure, Target, Unit
from bench.nodes.resident import resident_mb
from bench.services.cluster import DIRECT, MODES, OURS, Cluster
from bench.services.part import NAME_PORTS
from bench.traffic.flows import Flows, connected, in_turns

SIZES = (10, 1_000, 10_000)
_STARTS = 3
"""In each of which all Services are served from nothing, at each number of them."""
_CHANGES = 2
"""Of an endpoint, in each round."""
_TURNS = 20
"""Of some milliseconds, in each round, where both ends are in one thread."""
Found = dict[str, dict[str, list[float]]]
"""Samples by what is measured, then by side."""


def services(bed: Bed, rounds: int) -> list[Figure]:
    """Connections at several numbers of Services, what one carries, changes, memory."""
    if bed.reference_only:
        return []
    found: Found = {}
    with ExitStack() as undo:
        cluster = Cluster(bed, undo)
        for size in SIZES:
            cluster.grow(size)
            for measure in (_starts, _connections, _changes, _memory):
                for name, values in measure(cluster, rounds):
                    for side, value in values.items():
                        found.setdefault(f"{name}-{size}", {}).setdefault(side, []).append(value)
        for name, values in _carried(cluster, rounds):
            for side, value in values.items():
                found.setdefault(name, {}).setdefault(side, []).append(value)
    return list(_figures(found))


Samples = Iterator[tuple[str, dict[str, float]]]


def _starts(cluster: Cluster, _rounds: int) -> Samples:
    """One side after the other, the rest of them ended."""
    for _ in range(_STARTS):
        told = {}
        for side in cluster.sides:
            for each in cluster.sides:
                each.stop()
            told[side.name] = side.restart()
        yield "start", told
    for side in cluster.sides:
        side.restart()
    ours = cluster.sides[0]
    ours.await_kept(cluster.objects.count)
    for _ in range(_STARTS):
        yield "boot", {OURS: ours.restart(keep=True)}


def _connections(cluster: Cluster, rounds: int) -> Samples:
    cluster.rest()
    with ExitStack() as undo:
        yield from connected(Flows(undo), cluster.ways(), rounds, _TURNS)
    for number in range(rounds):
        yield "rate", cluster.connect(number)


def _changes(cluster: Cluster, rounds: int) -> Samples:
    ports = itertools.cycle(reversed(NAME_PORTS))
    for _ in range(rounds * _CHANGES):
        for side in cluster.sides:
            port = next(ports)
            with cluster.turn_of(side):
                moved = side.move(port)
            yield "told", {side.name: moved.told_ms}
            yield "kernel", {side.name: moved.kernel_ms - moved.told_ms}
            yield "change", {side.name: moved.asked_ms}
            cluster.settle(port)


def _memory(cluster: Cluster, _rounds: int) -> Samples:
    yield "memory", {side.name: resident_mb(side.pid) for side in cluster.sides}


def _carried(cluster: Cluster, rounds: int) -> Samples:
    with ExitStack() as undo:
        flows = Flows(undo)
        for what, opened in (("ask", flows.questions), ("send", flows.stream)):
            turns = {name: opened(way) for name, way in cluster.ways().items()}
            for rates in in_turns(turns, rounds * _TURNS):
                yield what, rates


# Figures

_AT_LEAST_AS_MANY = Target(1.0, at_least=True)
_NO_SLOWER = Target(1.0)
_BESIDE: tuple[tuple[str, str, Unit, Target | None], ...] = (
    ("new", "new connections", "1/s", _AT_LEAST_AS_MANY),
    ("p50", "connect, p50", "ms", _NO_SLOWER),
    ("p99", "connect, p99", "ms", _NO_SLOWER),
    ("rate", "new connections, ends in processes", "1/s", None),
    ("change", "a changed endpoint, from the request until it is asked", "ms", None),
    ("kernel", "... from the API server's word to the kernel", "ms", None),
    ("start", "from nothing", "s", None),
    ("memory", "resident", "MB", None),
)
"""Beside kube-proxy."""
_OURS: tuple[tuple[str, str, Unit, float | None], ...] = (
    ("kernel", "a changed endpoint, from the API server's word to the kernel", "ms", 20.0),
    ("told", "... from the request to the API server's word", "ms", None),
    ("start", "from nothing", "s", 3.0),
    ("boot", "... with what is on the disk", "s", None),
    ("memory", "resident", "MB", 150.0),
)


def _figures(found: Found) -> Iterator[Figure]:
    """Limpet beside kube-proxy in each mode; what is carried beside pod to pod, too."""
    for size in SIZES:
        for kind, words, unit, target in _BESIDE:
            values = found[f"{kind}-{size}"]
            for mode in (each for each in MODES if each in values):
                yield Figure(
                    f"services-{size}-{kind}-{mode}",
                    f"Services: {size:,}: {words} (reference: kube-proxy {mode})",
                    unit,
                    values[OURS],
                    values[mode],
                    target=target if mode == "nftables" else None,
                )
        for kind, words, unit, bound in _OURS:
            yield Figure(
                f"services-{size}-{kind}",
                f"Services: {size:,}: {words}",
                unit,
                found[f"{kind}-{size}"][OURS],
                target=None if bound is None else Target(bound, of_ratio=False),
            )
        yield Figure(
            f"services-{size}-new-direct",
            f"Services: {size:,}: new connections (reference: pod to pod)",
            "1/s",
            found[f"new-{size}"][OURS],
            found[f"new-{size}"][DIRECT],
        )
    for what, words, unit in (("ask", "64 bytes and an answer", "1/s"), ("send", "TCP", "Gbit/s")):
        for reference in (each for each in (*MODES, DIRECT) if each in found[what]):
            beside = "pod to pod" if reference == DIRECT else f"kube-proxy {reference}"
            yield Figure(
                f"services-{what}-{reference}",
                f"Services: one connection: {words} (reference: {beside})",
                "1/s" if unit == "1/s" else "Gbit/s",
                found[what][OURS],
                found[what][reference],
                target=_AT_LEAST_AS_MANY if reference == "nftables" else None,
            )
