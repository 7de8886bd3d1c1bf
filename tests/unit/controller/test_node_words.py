"""What the controller says to nodes."""

from __future__ import annotations

import asyncio

from limpet.controller.api.node_words import NodeWords


def test_a_node_hears_what_is_said_of_it_and_when_that_is_over_and_nothing_of_others() -> None:
    async def work() -> None:
        words = NodeWords()
        heard: list[tuple[str, ...]] = []

        async def follow() -> None:
            async for each in words.follow("n1"):
                heard.append(each)

        async def settled() -> None:
            for _ in range(5):
                await asyncio.sleep(0)

        task = asyncio.create_task(follow())
        await settled()
        assert heard == []  # nothing is said where there is nothing to say
        words.put({"n2": ["b"]})
        await settled()
        assert heard == []
        words.put({"n1": ["a"], "n2": ["b"]})
        words.put({"n1": ["a"]})
        await settled()
        assert heard == [("a",)]
        words.put({})
        await settled()
        assert heard == [("a",), ()]

        words.put({"n1": [f"{number}" for number in range(99)]})
        assert len(await anext(words.follow("n1"))) == 10
        task.cancel()

    asyncio.run(work())
