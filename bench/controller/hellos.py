"""A node's hellos to a controller: how long each took, and how much processor time the controller
had meanwhile, which is what a hello waits for on a machine that does nothing else."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from tests.controller.machines import Controller, Node

from bench.figures import Figure, Target
from bench.nodes.resident import cpu_s

SOON = Target(100, of_ratio=False)
"""Milliseconds."""


@dataclass
class Hellos:
    took_ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)

    async def say(self, controller: Controller, node: Node) -> None:
        began_s, used_s = time.perf_counter(), cpu_s(controller.pid)
        await node.hello()
        self.took_ms.append((time.perf_counter() - began_s) * 1e3)
        self.cpu_ms.append((cpu_s(controller.pid) - used_s) * 1e3)

    def figures(self, name: str, what: str, before: Hellos) -> list[Figure]:
        """`before`: without those who attack."""
        cpu = "... the controller's processor time meanwhile"
        return [
            Figure(name, what, "ms", self.took_ms, before.took_ms, SOON),
            Figure(f"{name}-cpu", cpu, "CPU ms", self.cpu_ms, before.cpu_ms, SOON),
        ]
