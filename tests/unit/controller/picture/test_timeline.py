"""What people do is in the controller's timeline."""

from __future__ import annotations

import asyncio
from pathlib import Path

from limpet.controller.admin.commands import Admin
from limpet.controller.figures.metrics import Metrics
from limpet.controller.picture.timeline import CHANGING
from limpet.controller.settings import ControllerSettings
from limpet.controller.state.cluster import Cluster
from limpet.controller.store.sqlite import SqliteStore

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
