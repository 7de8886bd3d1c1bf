"""What is thrown, for how long, and what is looked at afterwards."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import random
import time
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any, NoReturn

import structlog

from limpet.base import faults
from tests.effort import effort
from tests.fuzz.mutation import mutate
from tests.fuzz.samples import samples_of
from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS

THROWN_S = effort(2.0, 60.0)
"""Of CPU time of the thrower: a busy machine throws as much."""
MOST_GROWTH_BYTES = 48 << 20
"""Of a process's memory: interpreters keep some of what a moment took."""


_SLOWEST = 5
"""So many times that may pass, while what it is thrown at works."""


class Thrower:
    """Mutations of what targets take, as their parties would send it."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.count = 0

    def inputs(self, *names: str, most_s: float = THROWN_S) -> Iterator[bytes]:
        """Of these targets by turns, until the time is over."""
        targets = [TARGETS[name] for name in names]
        samples = {each.name: samples_of(each) for each in targets}
        end_s, late_s = time.process_time() + most_s, time.monotonic() + _SLOWEST * most_s
        while time.process_time() < end_s and time.monotonic() < late_s:
            for each in targets:
                self.count += 1
                yield self.one_of(each, samples[each.name])

    def one_of(self, target: Target, samples: list[bytes]) -> bytes:
        """Now and then what is not changed at all."""
        data = self.chance.choice(samples)
        if self.chance.random() < 0.1:
            return data
        return mutate(data, target.shape, self.chance, target.most_bytes)


def memory_bytes(pid: int) -> int:
    """What the process holds that is its own."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise AssertionError(f"process {pid} has no memory")


@contextlib.contextmanager
def no_fault() -> Iterator[None]:
    """Nothing goes wrong in this process that nobody has foreseen, also where it is got over: no
    traceback in its log, nothing that `faults` counts, and nothing in a task or callback."""
    before = faults.counts.copy()
    unheard: list[str] = []
    log = structlog.get_config()

    def note(logger: object, method: str, event: MutableMapping[str, Any]) -> NoReturn:
        if event.get("exc_info") or "exception" in event or "Traceback" in str(event):
            unheard.append(str(event))
        raise structlog.DropEvent

    class Heard(logging.Handler):
        """Also of asyncio: what a task or a callback has raised that nobody waits for."""

        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info:
                unheard.append(self.format(record))

    heard = Heard()
    logging.getLogger("asyncio").addHandler(heard)
    structlog.configure(**{**log, "processors": [note], "cache_logger_on_first_use": False})
    try:
        yield
        gc.collect()
    finally:
        structlog.configure(**log)
        logging.getLogger("asyncio").removeHandler(heard)
    assert faults.counts == before, faults.counts - before
    assert unheard == []


@contextlib.contextmanager
def lives_on(find_pid: Callable[[], int] = os.getpid) -> Iterator[None]:
    """The process is the same afterwards, and has not grown."""
    pid = find_pid()
    before = memory_bytes(pid)
    yield
    assert find_pid() == pid, "another process is there"
    grown = memory_bytes(pid) - before
    assert grown < MOST_GROWTH_BYTES, f"{grown >> 20} MiB more"
