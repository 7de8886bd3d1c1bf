"""The controller is killed at random while nodes join, grow, publish and report."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import aiohttp
import pytest

from limpet.wire.api import Code, PodAddress
from tests.controller.machines import Controller, Node, Refusal

NODES = 200
KILLS = 8
ACKNOWLEDGED_AT_LEAST = 5 * NODES
AT_ONCE = 40


class World:
    """Kills the controller when a random number of answers has come since it started."""

    def __init__(self, controller: Controller, seed: int) -> None:
        self.controller = controller
        self.random = random.Random(seed)
        self.answers = 0
        self.kills = 0
        self.killing = asyncio.Lock()
        self.next_kill = self.random.randrange(20, 150)

    async def insist(self, ask: Callable[[], Awaitable[object]]) -> None:
        """Asks until there is an answer, as an agent does."""
        while True:
            try:
                await ask()
            except (aiohttp.ClientError, OSError, TimeoutError):
                async with self.killing:  # it is being started again
                    continue
            break
        self.answers += 1
        if self.answers >= self.next_kill and self.kills < KILLS:
            self.kills += 1
            self.next_kill = self.answers + self.random.randrange(20, 150)
            async with self.killing:
                await asyncio.to_thread(self.controller.kill)
                await asyncio.to_thread(self.controller.start)


async def live(world: World, node: Node, token: str) -> None:
    await world.insist(lambda: node.join(token))
    await world.insist(lambda: publish(node, 1))
    await world.insist(lambda: node.request_segments(4, 6))
    pods = [PodAddress("limpet", "default", node.name, "eth0", ("10.0.0.1",))]
    await world.insist(lambda: node.report(1, pods, None))
    await world.insist(lambda: publish(node, 2))
    await world.insist(lambda: node.request_segments(6))
    await node.close()


async def publish(node: Node, sequence: int) -> int:
    return await node.publish(sequence=sequence)


def test_nothing_is_granted_twice_and_nothing_acknowledged_is_lost(
    make_controller: Callable[..., Controller],
) -> None:
    controller = make_controller(pod_cidrs=["10.0.0.0/12", "fd00::/48"], log_level="warning")
    controller.start()
    tokens = [controller.token() for _ in range(NODES)]
    nodes = [Node(controller.url, f"node-{number}") for number in range(NODES)]

    async def run() -> None:
        world = World(controller, seed=7)
        some = asyncio.Semaphore(AT_ONCE)

        async def one(node: Node, token: str) -> None:
            async with some:
                await live(world, node, token)

        await asyncio.gather(*map(one, nodes, tokens))
        assert world.kills == KILLS
        assert world.answers >= ACKNOWLEDGED_AT_LEAST

    asyncio.run(run())
    controller.kill()
    controller.start()

    known = {each["uid"]: each for each in controller.ask("node.list")["nodes"]}
    assert set(known) == {node.uid for node in nodes}
    for node in nodes:
        acknowledged = {
            str(segment) for sealed in node.grants for segment in node.open(sealed).segments
        }
        assert acknowledged <= set(known[node.uid]["segments"])
        assert known[node.uid]["presence_sequence"] == 2
        assert known[node.uid]["generation"] >= node.grant.generation
    held = [segment for each in known.values() for segment in each["segments"]]
    assert len(held) == len(set(held))
    listed = {each["segment"]: each["uid"] for each in controller.ask("segment.list")["segments"]}
    assert listed == {
        segment: each["uid"] for each in known.values() for segment in each["segments"]
    }
    assert len(controller.ask("pod.list")["pods"]) == NODES
    revisions = [each["revision"] for each in known.values()]
    assert len(revisions) == len(set(revisions))


def test_a_controller_that_was_killed_refuses_no_one_it_knew(controller: Controller) -> None:
    async def run() -> None:
        token = controller.token()
        async with Node(controller.url, "a") as node:
            await node.join(token)
            await asyncio.to_thread(controller.kill)
            await asyncio.to_thread(controller.start)
            await node.close()
            await node.hello()
            with pytest.raises(Refusal) as caught:
                await Node(controller.url, "b").join(token)
            assert caught.value.code is Code.BAD_TOKEN

    asyncio.run(run())
