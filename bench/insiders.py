"""What a member that sends a controller all that it can costs the others: reports, presences,
documents and questions over four connections, in a process of its own, and four watches of which
it reads nothing."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event

from tests.controller.hostile_member import HostileMember
from tests.controller.machines import Controller, join_all

from bench.bed import Bed
from bench.controller import running_controller
from bench.figures import Figure, Target
from bench.resident import resident_kib

_LOADS, _WATCHES = 4, 4
_MOST = 1 << 40
"""Requests: more than can be sent."""
_HELLOS = 300
_EVERY_S = 0.02
_SOON_MS, _MOST_MB = 100, 100
_UP_S = 30.0


def insiders(bed: Bed, rounds: int) -> list[Figure]:
    """A node's hello and the controller's memory, with such a member and (reference) without."""
    if bed.reference_only:
        return []
    before, meanwhile, memory_mb = [], [], []
    for number in range(rounds):
        with running_controller(bed) as controller:
            before += asyncio.run(_hellos(controller, f"before{number}"))
            with _hostile(controller, f"bad{number}"):
                meanwhile += asyncio.run(_hellos(controller, f"while{number}"))
                memory_mb.append(resident_kib(controller.pid) / 1024)
    soon, small = (Target(most, of_ratio=False) for most in (_SOON_MS, _MOST_MB))
    what = "a member that sends all it can"
    return [
        Figure("insiders-hello", f"{what}: another's hello", "ms", meanwhile, before, soon),
        Figure("insiders-memory", f"{what}: controller, resident", "MB", memory_mb, target=small),
    ]


async def _hellos(controller: Controller, name: str) -> list[float]:
    """Milliseconds of each."""
    (node,) = await join_all(controller, name)
    await node.hello()
    took_ms = []
    for _ in range(_HELLOS):
        began_s = time.perf_counter()
        await node.hello()
        took_ms.append((time.perf_counter() - began_s) * 1e3)
        await asyncio.sleep(_EVERY_S)
    await node.close()
    return took_ms


@contextmanager
def _hostile(controller: Controller, name: str) -> Iterator[None]:
    """Has joined, and sends until the end of the block."""
    processes = multiprocessing.get_context("fork")
    is_up = processes.Event()
    bad = processes.Process(target=_send_for_ever, args=(controller, name, is_up), daemon=True)
    bad.start()
    try:
        if not is_up.wait(_UP_S):
            raise RuntimeError("the hostile member does not send")
        yield
        if not bad.is_alive():
            raise RuntimeError("the hostile member has ended")
    finally:
        bad.kill()
        bad.join()


def _send_for_ever(controller: Controller, name: str, is_up: Event) -> None:
    async def send() -> None:
        (node,) = await join_all(controller, name)
        hostile = HostileMember(node)
        context = hostile.context()
        watches = [
            hostile.watch_and_read_nothing(controller.port, context) for _ in range(_WATCHES)
        ]
        loads = [hostile.ask(range(each, _MOST, _LOADS), context) for each in range(_LOADS)]
        is_up.set()
        await asyncio.gather(*watches, *loads)

    asyncio.run(send())
