"""What a member reports of its paths to the controller, and of whom a person believes it: that
others are lost or there, what it stands beside, whose segments it has, and what it carries."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from limpet.base.decoding import convert
from limpet.paths.report import NodeReport, PairReport, PathReport, PathReportAnswer
from limpet.picture import nodes as picture
from limpet.picture.nodes import NodeState, RelayLoad, Segment
from limpet.picture.pair import Direction, Reach, Way
from limpet.picture.picture import Picture
from tests.controller.machines import Controller, Node, join_all, until_bookmark
from tests.waiting import until

CLEAR = Way(reach=Reach.REACHED, rung="vxlan")
TUNNEL = Way(reach=Reach.REACHED, rung="tunnel")
LOST = Way(reach=Reach.LOST, rung="vxlan")


@pytest.fixture(name="controller")
def _controller(tmp_path: Path) -> Iterator[Controller]:
    controller = Controller(tmp_path / "controller").start()
    try:
        yield controller
    finally:
        controller.stop()


class Reporting:
    """Nodes of a cluster, each of which reports what a test has it say."""

    def __init__(self, controller: Controller, nodes: dict[str, Node]) -> None:
        self._controller = controller
        self.nodes = nodes
        self._counts = itertools.count(1)
        """Of pods, as told: once one is shown, all that was told with it has been looked at."""

    async def report(
        self,
        teller: str,
        ways: dict[str, Way] | None = None,
        *,
        gone: tuple[str, ...] = (),
        base: int | None = None,
        **said: Any,
    ) -> None:
        pairs = tuple(
            PairReport(self.nodes[peer].uid, Direction(way=way))
            for peer, way in (ways or {}).items()
        )
        told = PathReport(
            1 if base is None else base + 1,
            NodeReport(pods=next(self._counts), **said),
            base,
            pairs,
            gone,
        )
        await self.nodes[teller].post("/v1/paths", told, PathReportAnswer)
        await until(lambda: self.node(teller).pods == told.node.pods)

    def seen(self) -> Picture:
        return convert(self._controller.ask("picture"), Picture)

    def node(self, name: str) -> picture.Node:
        return next(each for each in self.seen().nodes if each.name == name)

    def state(self, name: str) -> NodeState:
        return self.node(name).state


def run(controller: Controller, body: Callable[[Reporting], Awaitable[None]], *names: str) -> None:
    async def running() -> None:
        nodes = await join_all(controller, "hostile", "victim", *names)
        try:
            await body(Reporting(controller, {node.name: node for node in nodes}))
        finally:
            await asyncio.gather(*(node.close() for node in nodes))

    asyncio.run(running())


def test_a_connected_node_is_not_silent_because_one_member_says_so(controller: Controller) -> None:
    """Two who lost it are believed: its connection may be dead without the controller's knowing."""

    async def body(world: Reporting) -> None:
        async with world.nodes["victim"].watch() as lines:
            await until_bookmark(lines)
            await world.report("hostile", {"victim": LOST})
            assert world.state("victim") is NodeState.ANSWERS

            await world.report("other", {"victim": LOST})
            assert world.state("victim") is NodeState.SILENT
            await world.report("other", {"victim": CLEAR})
            assert world.state("victim") is NodeState.ANSWERS

    run(controller, body, "other")


def test_of_a_node_that_a_member_may_not_reach_its_word_counts_for_nothing(
    controller: Controller,
) -> None:
    controller.ask("network.set", default_community="none")

    async def body(world: Reporting) -> None:
        for way in (LOST, CLEAR):
            await world.report("hostile", {"victim": way})
            assert world.state("victim") is NodeState.UNKNOWN

    run(controller, body)


def test_whom_one_member_alone_reaches_is_said_to_answer_by_its_word(
    controller: Controller,
) -> None:
    """It may be so, where a site has lost the cloud; a person reads who is believed."""

    async def body(world: Reporting) -> None:
        await world.report("hostile", {"victim": CLEAR})
        seen = world.node("victim")
        assert (seen.state, "one node says" in seen.why) == (NodeState.ANSWERS, True)

        await world.report("victim")
        assert world.node("victim").why == ""

    run(controller, body)


def test_two_sites_are_not_one_because_a_member_of_one_names_a_node_of_the_other(
    controller: Controller,
) -> None:
    """Else the victim's would bear the other's name, and nobody could tell them apart."""

    async def body(world: Reporting) -> None:
        uids = {name: node.uid for name, node in world.nodes.items()}
        await world.report("victim", {"mate": CLEAR, "hostile": TUNNEL}, near=uids["victim"])
        await world.report("mate", near=uids["victim"])
        await world.report("fellow", near=uids["hostile"])
        for ways in ({}, {"victim": CLEAR}):
            await world.report("hostile", ways, near=uids["victim"])
            sites = {each.name: each.site for each in world.seen().nodes}
            assert sites["victim"] == sites["mate"] != ""
            assert sites["hostile"] != sites["victim"] != sites["fellow"]

        # And where the victim, too, has a way without a tunnel, they stand together.
        await world.report("victim", {"hostile": CLEAR}, near=uids["victim"])
        assert world.node("hostile").site == world.node("victim").site

    run(controller, body, "mate", "fellow")


def test_segments_of_another_are_not_shown_as_those_of_a_member_that_names_them(
    controller: Controller,
) -> None:
    async def body(world: Reporting) -> None:
        shown = {name: world.node(name).segments for name in world.nodes}
        (own, others) = (shown[name][0] for name in ("hostile", "victim"))
        claimed = Segment(prefix=others.prefix, size=1, free=0, live=1)
        told = Segment(prefix=own.prefix, size=own.size, free=7)

        await world.report("hostile", segments=(claimed, told))

        assert world.node("hostile").segments[0] == told
        assert {each.prefix for each in world.node("hostile").segments} == {
            each.prefix for each in shown["hostile"]
        }
        assert world.node("victim").segments == shown["victim"]

    run(controller, body)


def test_a_member_changes_no_way_that_another_tells_and_is_no_relay_by_its_load(
    controller: Controller,
) -> None:
    async def body(world: Reporting) -> None:
        victim, other = (world.nodes[name].uid for name in ("victim", "other"))
        one, two = sorted((victim, other))
        await world.report("victim", {"other": CLEAR})
        await world.report("other", {"victim": CLEAR})

        await world.report("hostile", {"victim": LOST, "other": LOST}, relay=RelayLoad(pairs=9))
        await world.report("hostile", base=1, gone=(victim, other))

        seen = world.seen()
        (pair,) = [each for each in seen.pairs if (each.one, each.other) == (one, two)]
        assert (pair.there, pair.back) == (CLEAR, CLEAR)
        assert seen.relays == ()
        assert {world.state(name) for name in ("victim", "other")} == {NodeState.ANSWERS}

    run(controller, body, "other")
