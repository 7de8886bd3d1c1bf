"""A member sends all that it can: the controller stays small, and has time for the others."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.controller.hostile_member import HostileMember
from tests.controller.machines import Controller, join_all

_MEBIBYTE = 1 << 20


def resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no such process")


def test_a_member_that_sends_all_it_can_leaves_memory_disk_and_room_for_others(
    controller: Controller,
) -> None:
    async def body() -> None:
        bad, good = await join_all(controller, "bad", "good")
        hostile = HostileMember(bad)
        context = hostile.context()
        before = resident_bytes(controller.pid)
        watching = [
            asyncio.create_task(hostile.watch_and_read_nothing(controller.port, context))
            for _ in range(4)
        ]
        loads = [
            asyncio.create_task(hostile.ask(range(start, start + 100), context))
            for start in (0, 1_000, 2_000, 3_000)
        ]
        helloes = 0
        while not all(load.done() for load in loads):
            await good.hello()
            helloes += 1
        await asyncio.gather(*loads)
        # Every kind was asked for, and what is too much was refused.
        refused = {code for _, code in hostile.answers}
        assert {"too_large", "try_again"} <= refused
        # Others were served meanwhile, in turns: no request of the hostile one is as long as many.
        assert helloes > 30
        assert await good.publish() == good.sequence
        assert await good.report(1, [], None) == 1
        grown = resident_bytes(controller.pid) - before
        assert grown < 100 * _MEBIBYTE
        state = Path(controller.database).parent
        assert sum(path.stat().st_size for path in state.iterdir()) < 32 * _MEBIBYTE
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, bad.close(), good.close(), return_exceptions=True)

    asyncio.run(body())
