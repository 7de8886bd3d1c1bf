"""What people do is in the controller's timeline."""

from __future__ import annotations

import asyncio
from pathlib import Path

from limpet.base.bounds.words import EVENTS, EVENTS_OF_ONE
from limpet.cluster.api import Code
from limpet.controller.admin.commands import Admin
from limpet.controller.figures.metrics import Metrics
from limpet.controller.picture.timeline import CHANGING, ClusterTimeline
from limpet.controller.registry.refusal import RefusedError
from limpet.controller.settings import ControllerSettings
from limpet.controller.state import happenings
from limpet.controller.state.cluster import Cluster
from limpet.controller.store.sqlite import SqliteStore
from limpet.picture.timeline import Happening
from limpet.timeline.file import read_all

LOOKING = {
    *("node.list", "node.show", "segment.list", "network.show", "pod.list", "policy.list"),
    *("community.list", "community.show", "token.list", "picture", "pair", "events"),
}


def test_every_verb_that_is_not_for_looking_is_told(tmp_path: Path) -> None:
    async def verbs() -> set[str]:
        store = SqliteStore(tmp_path / "controller.db")
        try:
            admin = Admin(Cluster(store, ControllerSettings()), Metrics(), 0)
            routes = admin.application().router.routes()
            found = {
                each.resource.canonical.strip("/")
                for each in routes
                if each.resource is not None and each.method == "POST"
            }
            return found - {"{verb}"}  # it refuses what no verb is
        finally:
            await store.close()

    assert asyncio.run(verbs()) - LOOKING == CHANGING


def test_strangers_who_ask_to_join_under_ever_new_names_crowd_out_nothing(tmp_path: Path) -> None:
    """Each of them is one of many: what people and nodes did is told all the same."""

    async def kept() -> list[Happening]:
        timeline = ClusterTimeline(tmp_path)
        timeline.start()
        error = RefusedError(Code.BAD_TOKEN, "join: no such token")
        for number in range(2 * EVENTS.most):
            claim = happenings.join_refused(f"node-{number}", error)
            assert claim is not None
            timeline.tell(claim)
        timeline.done("node.remove", {"node": "crane"}, "root", lambda _: "")
        timeline.tell(happenings.cidrs_refused("crane", "they overlap"))
        await timeline.stop()
        return [each.happening for each in read_all(tmp_path)]

    told = asyncio.run(kept())
    assert [each.became or each.words for each in told[-2:]] == [
        "node remove: node crane",
        "PodCIDRsRefused",
    ]
    claims = told[:-2]
    assert 1 <= len(claims) <= EVENTS_OF_ONE.most
    assert claims[0].words.startswith("node-0: somebody asked to join")
