"""Pods that come and go on a node, and what its agent has acknowledged of them."""

from __future__ import annotations

import random
from dataclasses import dataclass

from limpet.lab.command import LabError
from limpet.lab.world.machine import Machine
from limpet.lab.world.pod import LabPod
from tests.soak.load import Load

_REST_S = 0.15
_WAIT_S = 120
"""That the CNI binary waits for an agent that is away."""


@dataclass(slots=True)
class Slot:
    """A pod that comes and goes, each time as another container in the same network namespace."""

    pod: LabPod
    attached: bool = False
    addresses: frozenset[str] = frozenset()
    """That it got first, and gets each time."""


class Pods(Load):
    def __init__(self, machine: Machine, slots: int, chance: random.Random) -> None:
        super().__init__(f"pods of {machine.label}", _REST_S, chance)
        self.machine = machine
        machine.environment["LIMPET_WAIT_S"] = str(_WAIT_S)
        self.slots = [
            Slot(LabPod(machine, f"{machine.label}-soak-{n}", f"soak-{n}", "default"))
            for n in range(slots)
        ]

    @property
    def attached(self) -> list[Slot]:
        return [each for each in self.slots if each.attached]

    def work(self) -> None:
        slot = self.chance.choice(self.slots)
        if slot.attached:
            slot.pod.delete()
            del self.machine.pods[slot.pod.container_id]
        else:
            slot.pod.container_id = f"{slot.pod.name}-{self.acknowledged}"
            slot.pod.add()
            self.machine.pods[slot.pod.container_id] = slot.pod
            self._compare(slot)
        slot.attached = not slot.attached
        self.acknowledged += 1

    def _compare(self, slot: Slot) -> None:
        given = frozenset(str(each.ip) for each in slot.pod.addresses)
        if slot.addresses not in (frozenset(), given):
            raise LabError(f"{slot.pod.name} was given {given}, and had {slot.addresses} before")
        slot.addresses = given
