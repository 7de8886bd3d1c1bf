"""A real controller tells who fell silent and who is back, and what relays carry."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

from limpet.paths.report import NodeReport, PairReport, PathReport, PathReportAnswer
from limpet.picture.nodes import RelayLoad
from limpet.picture.pair import Direction, Reach, Way
from tests.controller.conftest import MakeController
from tests.controller.machines import Controller, Node
from tests.waiting import PATIENCE_S

SILENT_AFTER_S = 15.0
TELLS_EVERY_S = 3.0
"""A report is no news for longer than after what a node is silent, and nodes may not tell often."""
SILENT, BACK = "crane: silent, it answers no node", "crane: answers again"


async def tell(node: Node, number: int, *pairs: tuple[Node, Reach], **said: Any) -> None:
    reported = tuple(PairReport(to.uid, Direction(way=Way(reach=reach))) for to, reach in pairs)
    report = PathReport(number, NodeReport(**said), None, reported)
    await node.post("/v1/paths", report, PathReportAnswer)


def happened(controller: Controller) -> list[str]:
    """To the crane, the oldest first; without what it told last."""
    entries = controller.ask("events", node="crane").get("entries", ())
    return [each["words"] for each in reversed(entries) if each["kind"] == "node"]


def test_who_falls_silent_and_comes_back_is_in_the_timeline_once_each(
    make_controller: MakeController,
) -> None:
    controller = make_controller(silent_after_s=SILENT_AFTER_S).start()
    numbers = itertools.count(1)

    async def becomes(hub: Node, crane: Node, reach: Reach, *words: str) -> None:
        """The hub tells that it reaches the crane so, until the timeline has just these."""
        async with asyncio.timeout(PATIENCE_S):
            while len(found := happened(controller)) < len(words):
                await tell(hub, next(numbers), (crane, reach))
                await asyncio.sleep(TELLS_EVERY_S)
        assert [each[: len(said)] for each, said in zip(found, words, strict=True)] == [*words]

    async def scenario() -> None:
        async with Node(controller.url, "crane") as crane, Node(controller.url, "hub") as hub:
            for node in (crane, hub):
                await node.join(controller.token())
            await becomes(hub, crane, Reach.LOST, SILENT)
            controller.stop()
            controller.start()
            await hub.close()  # its connection, which was to the one before
            await becomes(hub, crane, Reach.REACHED, SILENT, BACK)

    asyncio.run(scenario())
    shown = controller.command("events", "crane", "--cluster", "-o", "json")
    words = [each["words"] for each in json.loads(shown.stdout)["entries"]]
    assert any(each.startswith(SILENT) for each in words)


def test_what_a_relay_carries_is_known_of_its_node(controller: Controller) -> None:
    load = RelayLoad(pairs=7, most_pairs=1000, connections=2, bytes_per_s=2_400_000.0)

    async def scenario() -> None:
        async with Node(controller.url, "hub") as hub:
            await hub.join(controller.token(roles=["relay"]))
            await tell(hub, 1, relay=load)

    asyncio.run(scenario())
    said = controller.ask("node.show", node="hub")["relay"]
    assert (said["pairs"], said["most_pairs"], said["bytes_per_s"]) == (7, 1000, 2.4e6)
    (shown,) = controller.ask("picture")["relays"]
    assert shown["load"]["bytes_per_s"] == 2.4e6
    assert "7 of 1000 pairs, 2.4 MB/s" in controller.command("node", "list", "-o", "wide").stdout
