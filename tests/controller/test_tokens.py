"""Join tokens, shown to a real controller."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from limpet.cluster.api import Code
from tests.controller.machines import Controller, Node, Refusal


async def refused(work: Awaitable[Any]) -> Refusal:
    with pytest.raises(Refusal) as caught:
        await work
    return caught.value


def test_a_token_lets_one_node_in(controller: Controller) -> None:
    async def body() -> None:
        token = controller.token()
        await Node(controller.url, "a").join(token)
        refusal = await refused(Node(controller.url, "b").join(token))
        assert refusal.code is Code.BAD_TOKEN
        assert "limpet token create" in refusal.refused.error

    asyncio.run(body())


def test_of_many_nodes_with_one_token_one_gets_in(controller: Controller) -> None:
    async def body() -> None:
        token = controller.token()
        outcomes = await asyncio.gather(
            *(Node(controller.url, f"n{n}").join(token) for n in range(8)), return_exceptions=True
        )
        assert sum(not isinstance(each, Exception) for each in outcomes) == 1
        assert len(controller.ask("node.list")["nodes"]) == 1

    asyncio.run(body())


def test_an_expired_token_and_one_that_nobody_made_are_refused(controller: Controller) -> None:
    async def body() -> None:
        expired = controller.token(ttl_s=1e-6)
        assert "expired" in (await refused(Node(controller.url, "a").join(expired))).refused.error
        mark, number, secret, digest = controller.token().split("_")
        forged = "_".join((mark, number, secret[::-1], digest))
        assert (await refused(Node(controller.url, "a").join(forged))).code is Code.BAD_TOKEN
        assert controller.ask("node.list")["nodes"] == []

    asyncio.run(body())


def test_a_token_whose_node_has_confirmed_is_spent_and_before_that_it_is_held(
    controller: Controller,
) -> None:
    async def body() -> None:
        token = controller.token()
        async with Node(controller.url, "a") as first:
            await first.join(token)
            other = Node(controller.url, "a")
            assert (await refused(other.join(token))).code is Code.TRY_AGAIN
            await first.confirm()
            assert (await refused(other.join(token))).code is Code.BAD_TOKEN
        token = controller.token()
        async with Node(controller.url, "b") as second:
            await second.join(token)
            await second.hello()
            assert (await refused(Node(controller.url, "b").join(token))).code is Code.BAD_TOKEN

    asyncio.run(body())
