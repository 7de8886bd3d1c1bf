"""What ten thousand hostile connections cost a controller and its nodes: half of them say nothing,
a quarter sends the first byte of a handshake, the others a half of a request, from 500 addresses;
those that are ended come again after a second."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack

from tests.beds.traffic.hostile_connections import hostile_connections
from tests.controller.machines import Controller, join_all

from bench.bed import Bed
from bench.controller.hellos import Hellos
from bench.controller.load import running_controller
from bench.figures import Figure, Target
from bench.nodes.resident import cpu_s, peak_resident_mb

_HELD = {"silent": 5000, "hello": 2500, "head": 1250, "body": 1250}
_SOURCES = 500
_HELLOS = 200
_SITE = 250
_MOST_MB = 100


class _Found:
    def __init__(self) -> None:
        self.hellos = Hellos()
        self.reconnecting = Hellos()
        self.join_s: list[float] = []
        self.memory_mb: list[float] = []
        self.cpu_percent: list[float] = []


def strangers(bed: Bed, rounds: int) -> list[Figure]:
    """A node's hello, a node that connects anew, a site's joins, and the most memory that the
    controller has had, with them and (reference) without."""
    if bed.reference_only:
        return []
    before, meanwhile = _Found(), _Found()
    for number in range(rounds):
        with running_controller(bed) as controller, ExitStack() as undo:
            asyncio.run(_measure(controller, before, f"before{number}"))
            undo.enter_context(hostile_connections(controller.port, sources=_SOURCES, **_HELD))
            asyncio.run(_measure(controller, meanwhile, f"while{number}"))
    what = f"{sum(_HELD.values()):,} hostile connections (reference: none)"
    return [
        *meanwhile.hellos.figures("strangers-hello", f"{what}: a hello", before.hellos),
        *meanwhile.reconnecting.figures(
            "strangers-anew", "... a hello on a new connection", before.reconnecting
        ),
        Figure(
            "strangers-joins",
            f"... {_SITE} nodes of one address join at once",
            "s",
            meanwhile.join_s,
            before.join_s,
        ),
        Figure(
            "strangers-memory",
            "... the most resident memory that the controller has had",
            "MB",
            meanwhile.memory_mb,
            before.memory_mb,
            Target(_MOST_MB, of_ratio=False),
        ),
        Figure(
            "strangers-cpu",
            "... its processor time, with those hellos",
            "CPU %",
            meanwhile.cpu_percent,
            before.cpu_percent,
        ),
    ]


async def _measure(controller: Controller, found: _Found, name: str) -> None:
    (node,) = await join_all(controller, name)
    await node.hello()
    began_s, used_s = time.perf_counter(), cpu_s(controller.pid)
    for _ in range(_HELLOS):
        await found.hellos.say(controller, node)
        await asyncio.sleep(0.02)
    used_s = cpu_s(controller.pid) - used_s
    found.cpu_percent.append(100 * used_s / (time.perf_counter() - began_s))
    for _ in range(_HELLOS // 10):
        await node.close()
        await found.reconnecting.say(controller, node)
    await node.close()
    began_s = time.perf_counter()
    joined = await join_all(controller, *(f"{name}-{number}" for number in range(_SITE)))
    found.join_s.append(time.perf_counter() - began_s)
    await asyncio.gather(*(each.close() for each in joined))
    found.memory_mb.append(peak_resident_mb(controller.pid))
