"""What nodes have reported of their pods, in the controller that leads."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from limpet.base.errors import StorageError
from limpet.cluster.api import InterfaceAddresses, PodReport
from limpet.cluster.kinds.grant import Grant
from limpet.controller.orchestrator.events import Events
from limpet.controller.orchestrator.pods import Pods
from limpet.controller.registry.records import REPORT
from limpet.controller.settings import ControllerSettings
from limpet.controller.state.cluster import Cluster
from limpet.controller.store.interface import Item
from limpet.controller.store.sqlite import SqliteStore
from limpet.kubernetes.access.access import plain_access
from limpet.kubernetes.client import Client
from tests.unit.controller.state.cluster_tables import join


async def with_nodes(store: SqliteStore, count: int) -> tuple[Cluster, Pods, list[Grant]]:
    """A controller that has begun, with nodes n1, n2 ... of the cluster."""
    cluster = Cluster(store, ControllerSettings())
    await cluster.start()
    client = Client(plain_access("http://127.0.0.1:1"))
    numbers = range(1, count + 1)
    grants = [await cluster.change(partial(join, number=n, name=f"n{n}")) for n in numbers]
    return cluster, Pods(client, cluster, Events(client)), grants


def test_what_a_node_has_reported_is_forgotten_when_it_is_removed(tmp_path: Path) -> None:
    async def body() -> None:
        store = SqliteStore(tmp_path / "controller.db")
        cluster, pods, grants = await with_nodes(store, 2)
        for grant in grants:
            address = str(grant.segments[0].network_address + 9)
            reported = InterfaceAddresses("", "shop", f"web-{grant.name}", "eth0", (address,))
            report = PodReport(1, (reported,), None)
            await cluster.reports.put(grant.uid, report, 1.0, lambda _: None)
        await pods._take_reports()
        assert set(pods._book._reported) == {"n1", "n2"}

        await cluster.remove("n1")
        await pods._take_reports()

        assert set(pods._book._reported) == {"n2"}
        assert set(pods._names.values()) == {"n2"}
        await cluster.stop()
        await store.close()

    asyncio.run(body())


def test_a_report_that_cannot_be_read_does_not_keep_others_from_being_taken_up(
    tmp_path: Path,
) -> None:
    async def body() -> None:
        store = Refusing(tmp_path / "controller.db")
        cluster, pods, grants = await with_nodes(store, 3)
        for grant in grants:
            await cluster.reports.put(grant.uid, PodReport(1, (), None), 1.0, lambda _: None)
        first, *others = sorted(grants, key=lambda grant: grant.uid)
        store.refused = frozenset({first.uid, others[0].uid})
        await pods._take_reports()
        await pods._take_reports()
        store.refused = frozenset({first.uid})
        await pods._take_reports()
        await pods._take_reports()
        assert set(pods._names) == {grant.uid for grant in others}
        assert pods._reported == {first.uid}

        store.refused = frozenset()
        await pods._take_reports()
        assert set(pods._names) == {grant.uid for grant in grants}
        assert not pods._reported
        await cluster.stop()
        await store.close()

    asyncio.run(body())


class Refusing(SqliteStore):
    """Does not read some reports."""

    refused: frozenset[str] = frozenset()

    async def get(self, kind: str, name: str) -> Item | None:
        if kind == REPORT and name in self.refused:
            raise StorageError("read report", name, "data.record: it is missing")
        return await super().get(kind, name)
