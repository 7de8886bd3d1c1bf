"""Numbers that no disk, kernel or signature holds: refused where they come in, in words."""

from __future__ import annotations

import asyncio

import pytest

from tests.controller.machines import Controller, Node, Refusal, join_all

_LARGE = 1 << 63


@pytest.mark.parametrize("number", [_LARGE, 1 << 64, 1 << 200, -2, -_LARGE - 1])
def test_numbers_of_a_node_that_are_out_of_all_bounds_are_refused_in_words(
    controller: Controller, number: int
) -> None:
    asked = [
        ("POST", "/v1/hello", f'{{"revision":{number},"documents":[]}}'),
        ("POST", "/v1/segments", f'{{"generation":{number},"versions":[4]}}'),
        ("POST", "/v1/segments", f'{{"generation":1,"versions":[{number}]}}'),
        ("POST", "/v1/pods", f'{{"sequence":{number},"pods":[]}}'),
        ("POST", "/v1/pods", f'{{"sequence":1,"pods":[],"base":{number}}}'),
        ("GET", f"/v1/watch?since={number}", ""),
        ("GET", f"/v1/pods?page={number}", ""),
    ]

    async def body() -> None:
        (node,) = await join_all(controller, "a")
        async with node:
            for verb, path, said in asked:
                assert await refused_with(node, verb, path, said) in (400, 410), (path, said)
            await node.hello()
            assert await node.report((1 << 63) - 1, [], None) == (1 << 63) - 1
        log = controller.log.read_text()
        assert "level=error" not in log
        assert "Traceback" not in log

    asyncio.run(body())


async def refused_with(node: Node, verb: str, path: str, said: str) -> int:
    """The status; 200: it was not refused."""
    try:
        await node.fetch(verb, path, said.encode())
    except Refusal as refusal:
        return refusal.status
    return 200
