"""How often a node may ask for each thing, at a real controller: whatever it asks for is counted,
and what it has used up is its own alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from limpet.base.bounds import members
from limpet.base.bounds.bound import Bound
from limpet.cluster.api import Code, InterfaceAddresses
from limpet.controller.api.member_rates import MemberRate, MemberRates
from limpet.paths.report import NodeReport, PathReport, PathReportAnswer
from tests.controller.conftest import MakeController
from tests.controller.machines import Node, Refusal, join_all, served_here

_MOST = 3
"""At once, of each rate as it is tried; nothing comes back afterwards."""

Ask = Callable[[Node, int], Awaitable[object]]
"""With the number of the request, from 1."""


async def _paths(node: Node, number: int) -> None:
    await node.post("/v1/paths", PathReport(number, NodeReport()), PathReportAnswer)


async def _pods(node: Node, number: int) -> None:
    pod = InterfaceAddresses("limpet", "shop", f"web-{number}", "eth0", ("10.0.0.1",))
    await node.report(number, [pod], None)


async def _watch(node: Node, _number: int) -> None:
    async with node.watch():
        pass


_ASKED: dict[str, tuple[Ask, int]] = {
    "requests": (lambda node, _: node.fetch("GET", "/healthz", b""), _MOST),
    "documents": (lambda node, _: node.publish(), _MOST),
    "reports": (lambda node, number: node.report(number, [], None), _MOST),
    "paths": (_paths, _MOST),
    "report_bytes": (_pods, 1),  # of more than all that is taken at once, it takes as much
    "shown": (lambda node, _: node.show([node.sealed]), _MOST),
    "watches": (_watch, _MOST),
}
"""By the name of the rate: a request that it counts, and how many of it are taken."""


def _make_small(rate: MemberRate, patched: pytest.MonkeyPatch) -> None:
    rows = {id(row): name for name, row in vars(members).items() if isinstance(row, Bound)}
    for row, most in ((rate._at_once, _MOST), (rate._per_minute, 0)):
        patched.setattr(members, rows[id(row)], replace(row, most=most))


def _puts_off(refusal: Refusal) -> bool:
    refused = refusal.refused
    is_told = "come too often" in refused.error and refused.after_s is not None
    return refused.code is Code.TRY_AGAIN and is_told


async def _taken(node: Node, ask: Ask) -> int:
    """How many are taken until the node is put off; -1: it is refused for another reason."""
    for taken in range(100):
        try:
            await ask(node, taken + 1)
        except Refusal as refusal:
            return taken if _puts_off(refusal) else -1
    return 100


@pytest.mark.parametrize("name", sorted(vars(MemberRates())))
def test_what_a_node_asks_for_too_often_is_put_off_and_others_have_their_own(
    name: str, make_controller: MakeController, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert name in _ASKED, "a rate without a request that it counts"
    ask, most = _ASKED[name]
    _make_small(getattr(MemberRates(), name), monkeypatch)

    async def body() -> None:
        controller = make_controller()
        async with served_here(controller):
            one, other = await join_all(controller, "a", "b")
            async with one, other:
                assert await _taken(one, ask) == most
                assert await _taken(other, ask) == most

    asyncio.run(body())
