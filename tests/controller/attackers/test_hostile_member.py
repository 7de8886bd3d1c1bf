"""A member sends all that it can: the controller stays small, and has time for the others."""

from __future__ import annotations

import asyncio
from pathlib import Path

from limpet.cluster.api import InterfaceAddresses
from limpet.cluster.documents import Sealed
from limpet.cluster.kinds import GRANT, PRESENCE
from tests.controller.attackers.hostile_member import HostileMember
from tests.controller.machines import Controller, join_all, until_bookmark

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
        while helloes < 500 and not all(load.done() for load in loads):
            await good.hello()
            helloes += 1
        await asyncio.gather(*loads)
        # Every kind was asked for, and what is too much was refused.
        refused = {code for _, code in hostile.answers}
        assert {"too_large", "try_again"} <= refused
        assert hostile.answers["/v1/paths", "ok"]
        assert hostile.answers["/v1/paths", "bad_request"]
        assert hostile.answers["/v1/documents", "bad_request"]
        assert "Traceback" not in controller.log.read_text()
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


def test_a_report_that_names_anothers_pods_is_told_to_no_node_and_changes_nothing_of_the_other(
    controller: Controller,
) -> None:
    """So that it moves no packet: all that nodes go by comes by the watch."""

    async def body() -> None:
        nodes = await join_all(controller, "hostile", "other", "victim")
        hostile, other, victim = nodes
        pods = [InterfaceAddresses("limpet", "shop", "web-0", "eth0", ("10.244.0.2",))]
        await victim.report(1, pods, None)
        heard: list[Sealed] = []
        async with other.watch() as lines:
            await until_bookmark(lines)
            assert await hostile.report(1, pods, None) == 1
            await victim.publish()
            while not heard or heard[-1].kind != PRESENCE.name:
                heard += [each.document for each in await until_bookmark(lines) if each.document]
        assert [each.kind for each in heard] == [GRANT.name, PRESENCE.name]
        assert heard[0] == victim.sealed
        assert await victim.own_pods() == pods
        listed = controller.ask("pod.list")["pods"]
        assert [each["node"] for each in listed] == ["hostile", "victim"]
        await asyncio.gather(*(each.close() for each in nodes))

    asyncio.run(body())
