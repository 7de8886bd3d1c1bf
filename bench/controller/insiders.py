"""What a member that sends a controller all that it can costs the others: reports, presences,
documents and questions over four connections, in a process of its own, and four watches of which
it reads nothing."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event

from tests.controller.attackers.hostile_member import HostileMember
from tests.controller.machines import Controller, join_all

from bench.bed import Bed
from bench.controller.hellos import Hellos
from bench.controller.load import running_controller
from bench.figures import Figure, Target
from bench.nodes.resident import resident_mb

_LOADS, _WATCHES = 4, 4
_MOST = 1 << 40
"""Requests: more than can be sent."""
_HELLOS = 300
_EVERY_S = 0.02
_MOST_MB = 100
_UP_S = 30.0


def insiders(bed: Bed, rounds: int) -> list[Figure]:
    """A node's hello and the controller's memory, with such a member and (reference) without."""
    if bed.reference_only:
        return []
    before, meanwhile, memory_mb = Hellos(), Hellos(), list[float]()
    for number in range(rounds):
        with running_controller(bed) as controller:
            asyncio.run(_say_hellos(controller, before, f"before{number}"))
            with _hostile(controller, f"bad{number}"):
                asyncio.run(_say_hellos(controller, meanwhile, f"while{number}"))
                memory_mb.append(resident_mb(controller.pid))
    what, small = "a member that sends all it can", Target(_MOST_MB, of_ratio=False)
    return [
        *meanwhile.figures("insiders-hello", f"{what}: another's hello", before),
        Figure("insiders-memory", f"{what}: controller, resident", "MB", memory_mb, target=small),
    ]


async def _say_hellos(controller: Controller, found: Hellos, name: str) -> None:
    (node,) = await join_all(controller, name)
    await node.hello()
    for _ in range(_HELLOS):
        await found.say(controller, node)
        await asyncio.sleep(_EVERY_S)
    await node.close()


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
