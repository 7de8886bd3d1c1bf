"""Whom a kill hits, how, and when: chosen at random, the same for the same seed."""

from __future__ import annotations

import heapq
import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from tests.soak.programs import Hit, Kind, Program

_WEIGHTS = {Kind.AGENT: 5, Kind.RELAY: 2, Kind.CONTROLLER: 1.5, Kind.TUNNEL: 2.5}
_LONGEST_SLEEP_S = 2.0
"""Of one that is stopped, before it is woken, late."""


class Manner(StrEnum):
    KILL = "SIGKILL"
    TERM = "SIGTERM"
    SLEEP = "SIGSTOP, woken late"
    SLEEP_AND_KILL = "SIGSTOP, then SIGKILL"


_MANNERS = {Manner.KILL: 5, Manner.TERM: 2, Manner.SLEEP: 2, Manner.SLEEP_AND_KILL: 1}


@dataclass(slots=True)
class Killer:
    """Kills one program after the other, at random instants."""

    random: random.Random
    programs: Sequence[Program]
    gap_s: float
    """Between two kills, on average."""
    count: Counter[tuple[Kind, Manner]] = field(default_factory=Counter)
    _later: list[tuple[float, int, signal.Signals, Hit]] = field(default_factory=list)
    """What is due (monotonic s, number of the kill) for those that sleep, the earliest first."""

    def storm(self, kills: int) -> None:
        """Returns when so many have been made and nobody sleeps any more."""
        done = 0
        while done < kills:
            self._wait(time.monotonic() + self.random.expovariate(1 / self.gap_s))
            done += self._kill(self._choose())
        while self._later:
            self._wait(self._later[0][0])

    def _choose(self) -> tuple[Program, Manner, float]:
        kinds = sorted({each.kind for each in self.programs})
        (kind,) = self.random.choices(kinds, [_WEIGHTS[each] for each in kinds])
        program = self.random.choice([each for each in self.programs if each.kind is kind])
        (manner,) = self.random.choices(list(_MANNERS), list(_MANNERS.values()))
        return program, manner, self.random.uniform(0, _LONGEST_SLEEP_S)

    def _kill(self, chosen: tuple[Program, Manner, float]) -> bool:
        """False: it does not run now, or sleeps."""
        program, manner, sleep_s = chosen
        if any(hit.program is program for _, _, _, hit in self._later):
            return False
        hit = program.aim()
        if hit is None:
            return False
        first = {Manner.KILL: signal.SIGKILL, Manner.TERM: signal.SIGTERM}
        if not hit.send(first.get(manner, signal.SIGSTOP)):
            hit.close()
            return False
        if manner in first:
            hit.close()
        else:
            then = signal.SIGCONT if manner is Manner.SLEEP else signal.SIGKILL
            due_s = time.monotonic() + sleep_s
            heapq.heappush(self._later, (due_s, self.count.total(), then, hit))
        self.count[program.kind, manner] += 1
        return True

    def _wait(self, until_s: float) -> None:
        """Until then; wakes, and kills, sleepers that are due meanwhile."""
        while self._later and self._later[0][0] <= until_s:
            due_s, _, number, hit = heapq.heappop(self._later)
            time.sleep(max(0.0, due_s - time.monotonic()))
            hit.send(number)
            hit.close()
        time.sleep(max(0.0, until_s - time.monotonic()))
