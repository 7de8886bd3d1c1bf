"""The controller is killed at random while nodes join, grow, publish, report and are removed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from limpet.base.errors import ControllerUnavailable, LimpetError
from limpet.cluster.api import Code, InterfaceAddresses
from limpet.cluster.kinds import GRANT
from limpet.cluster.kinds.grant import Grant
from tests.controller.machines import Controller, Node, Refusal, of_kind
from tests.effort import effort

NODES = effort(100, 200)
REMOVED_EACH = 10
"""One in so many is removed in the midst of it."""
KILLS = effort(5, 8)
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

    async def command(self, verb: str, **arguments: Any) -> dict[str, Any]:
        """As a person who asks again."""
        while True:
            try:
                return await asyncio.to_thread(self.controller.ask, verb, **arguments)
            except ControllerUnavailable:
                async with self.killing:
                    continue

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
    pods = [InterfaceAddresses("limpet", "default", node.name, "eth0", ("10.0.0.1",))]
    await world.insist(lambda: node.report(1, pods, None))
    await world.insist(lambda: publish(node, 2))
    await world.insist(lambda: node.request_segments(6))
    await node.close()


async def live_and_go(world: World, node: Node, token: str) -> None:
    await live(world, node, token)
    try:
        await world.command("node.remove", node=node.uid)
    except LimpetError as error:
        if "was removed" not in str(error):  # then the answer to it was lost
            raise


async def follow(world: World, node: Node, heard: dict[str, Grant]) -> None:
    """As an agent watches: goes on where it was, until it is labelled itself, last of all."""
    since = None
    while True:
        try:
            async with node.watch(since) as lines:
                async for line in lines:
                    if (sealed := of_kind(line, GRANT)) is not None:
                        grant = node.open(sealed)
                        # A presence is told below the newest grant, and that grant's earlier
                        # generations may follow when their turn comes: the newest counts.
                        known = heard.setdefault(grant.uid, grant)
                        if grant.generation >= known.generation:
                            heard[grant.uid] = grant
                        if grant.uid == node.uid and grant.labels:
                            return
                    since = line.version or since
        except (aiohttp.ClientError, OSError, TimeoutError):
            pass
        async with world.killing:
            continue


async def publish(node: Node, sequence: int) -> int:
    return await node.publish(sequence=sequence)


@pytest.mark.soak
def test_nothing_is_granted_twice_and_nothing_acknowledged_is_lost(
    make_controller: Callable[..., Controller],
) -> None:
    controller = make_controller(pod_cidrs=["10.0.0.0/12", "fd00::/48"], log_level="warning")
    controller.start()
    tokens = [controller.token() for _ in range(NODES)]
    nodes = [Node(controller.url, f"node-{number}") for number in range(NODES)]

    removed = set(nodes[::REMOVED_EACH])
    heard: dict[str, Grant] = {}

    async def run() -> None:
        world = World(controller, seed=7)
        watcher = Node(controller.url, "watcher")
        await watcher.join(controller.token())
        following = asyncio.create_task(follow(world, watcher, heard))
        some = asyncio.Semaphore(AT_ONCE)

        async def one(node: Node, token: str) -> None:
            async with some:
                await (live_and_go if node in removed else live)(world, node, token)

        await asyncio.gather(*map(one, nodes, tokens))
        await world.command("node.label", node="watcher", add={"the": "end"})
        await following
        await watcher.close()
        assert world.kills == KILLS
        assert world.answers >= ACKNOWLEDGED_AT_LEAST

    asyncio.run(run())
    controller.kill()
    controller.start()

    every = {each["uid"]: each for each in controller.ask("node.list")["nodes"]}
    assert {uid for uid, each in every.items() if each["state"] == "removed"} == {
        node.uid for node in removed
    }
    assert {uid: (each["generation"], each["segments"]) for uid, each in every.items()} == {
        uid: (grant.generation, list(map(str, grant.segments))) for uid, grant in heard.items()
    }
    known = {uid: each for uid, each in every.items() if each["state"] != "removed"}
    del known[next(uid for uid, each in known.items() if each["name"] == "watcher")]
    assert set(known) == {node.uid for node in nodes} - {node.uid for node in removed}
    for node in set(nodes) - removed:
        acknowledged = {
            str(segment) for sealed in node.grants for segment in node.open(sealed).segments
        }
        assert acknowledged <= set(known[node.uid]["segments"])
        assert known[node.uid]["presence_sequence"] == 2
        assert known[node.uid]["generation"] >= node.grant.generation
    held = [segment for each in known.values() for segment in each["segments"]]
    assert len(held) == len(set(held))
    segments = controller.ask("segment.list")["segments"]
    listed = {each["segment"]: each["uid"] for each in segments if each["node"] != "watcher"}
    resting = {each["segment"]: each["uid"] for each in segments if each["state"] == "resting"}
    assert listed == resting | {
        segment: each["uid"] for each in known.values() for segment in each["segments"]
    }
    assert resting == {
        str(segment): node.uid
        for node in removed
        for sealed in node.grants
        for segment in node.open(sealed).segments
    }
    assert len(controller.ask("pod.list")["pods"]) == NODES - len(removed)
    revisions = [each["revision"] for each in every.values()]
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
