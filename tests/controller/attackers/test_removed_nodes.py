"""What a node still gets of the controller, and can tell it, once it was removed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection

import pytest

from limpet.cluster.api import Code
from limpet.controller.api.feed import Chunk
from tests.controller.machines import Controller, Refusal, join_all, served_here, until_bookmark

MakeController = Callable[..., Controller]
POLICY = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "web", "namespace": "shop"},
    "spec": {"podSelector": {}},
}


def test_a_watch_that_was_opened_while_its_node_was_removed_ends(
    make_controller: MakeController, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        controller = make_controller()
        async with served_here(controller) as cluster:
            (node,) = await join_all(controller, "a")
            follow = cluster.feed.follow

            async def follow_of_a_removed_node(
                since: str | None, kinds: Collection[str]
            ) -> AsyncIterator[Chunk]:
                await cluster.remove(node.uid)
                async for chunk in follow(since, kinds):
                    yield chunk

            monkeypatch.setattr(cluster.feed, "follow", follow_of_a_removed_node)
            async with node, asyncio.timeout(20), node.watch() as lines:
                seen = [line async for line in lines]
            assert seen[-1].refused is not None
            assert seen[-1].refused.code is Code.REMOVED

    asyncio.run(body())


def test_a_removed_node_shows_nothing(make_controller: MakeController) -> None:
    async def body() -> None:
        controller = make_controller()
        async with served_here(controller) as cluster:
            (node,) = await join_all(controller, "a")
            async with node:
                assert await node.show([node.sealed]) == 0
                await cluster.remove(node.uid)
                with pytest.raises(Refusal) as caught:
                    await node.show([node.sealed])
                assert caught.value.code is Code.REMOVED

    asyncio.run(body())


def test_a_removed_node_hears_no_policy_by_a_watch_of_policies_alone(
    make_controller: MakeController,
) -> None:
    async def body() -> None:
        controller = make_controller()
        async with served_here(controller) as cluster:
            (node,) = await join_all(controller, "a")
            async with node, asyncio.timeout(20), node.watch(kinds="policy") as lines:
                await until_bookmark(lines)
                await cluster.remove(node.uid)
                await asyncio.to_thread(controller.ask, "policy.apply", documents=[POLICY])
                (line,) = [line async for line in lines]
            assert line.refused is not None
            assert line.refused.code is Code.REMOVED

    asyncio.run(body())
