"""The keeper with a cluster and the Nodes that it was told of."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from limpet.controller.node_objects.node import KubernetesNode
from limpet.controller.orchestrator.node_keeper.keeper import NodeKeeper
from limpet.controller.orchestrator.nodes import Nodes
from limpet.controller.settings import ControllerSettings
from limpet.controller.state.cluster import Cluster
from limpet.controller.state.happenings import Happening
from limpet.controller.store.sqlite import SqliteStore
from limpet.kubernetes.access.access import plain_access
from limpet.kubernetes.client import Client
from limpet.kubernetes.kinds.objects import Metadata
from limpet.kubernetes.reflector_state import ObjectChanges
from tests.unit.controller.state.cluster_tables import join
from tests.waiting import until


def test_a_node_whose_node_is_back_while_another_is_removed_stays(tmp_path: Path) -> None:
    async def body() -> None:
        nodes = Nodes(Client(plain_access("http://127.0.0.1:1")))
        objects = [
            KubernetesNode(metadata=Metadata(name=name, uid=f"uid-{name}")) for name in ("n1", "n2")
        ]
        told: list[asyncio.Task[None]] = []

        def hear(_happening: Happening) -> None:
            told.append(asyncio.create_task(nodes._hear(ObjectChanges(put=objects))))

        store = SqliteStore(tmp_path / "controller.db")
        cluster = Cluster(store, ControllerSettings(), hear, nodes=nodes)
        await cluster.start()
        for number in (1, 2):
            await cluster.change(partial(join, number=number, name=f"n{number}"))
        keeper = NodeKeeper(nodes, cluster, lambda _: None, 0.0)
        await nodes._hear(ObjectChanges(put=objects, listed=True))
        await keeper._settle_fates()
        await nodes._hear(ObjectChanges(gone=[("", "n1"), ("", "n2")]))

        await keeper._settle_fates()
        await asyncio.gather(*told)

        removed = await cluster.change(
            lambda tables: [each.name for each in tables.grants.values() if each.tombstone]
        )
        assert len(removed) == 1
        await cluster.stop()
        await store.close()

    asyncio.run(body())


def test_after_an_error_that_nobody_has_foreseen_nodes_are_kept_as_before(tmp_path: Path) -> None:
    told: list[str] = []

    def tell(happening: Happening) -> None:
        told.append(happening.node)
        if len(told) == 1:
            raise RuntimeError("no new thread")

    async def body() -> None:
        nodes = Nodes(Client(plain_access("http://127.0.0.1:1")))
        objects = [
            KubernetesNode(metadata=Metadata(name=name, uid=f"uid-{name}")) for name in ("n1", "n2")
        ]
        store = SqliteStore(tmp_path / "controller.db")
        cluster = Cluster(store, ControllerSettings(), nodes=nodes)
        await cluster.start()
        for number in (1, 2):
            await cluster.change(partial(join, number=number, name=f"n{number}"))
        await nodes._hear(ObjectChanges(put=objects, listed=True))
        keeper = NodeKeeper(nodes, cluster, tell, 3600.0)
        await keeper._settle_fates()  # it has seen them
        keeping = asyncio.create_task(keeper.run())

        for name in ("n1", "n2"):
            await nodes._hear(ObjectChanges(gone=[("", name)]))
            await until(lambda name=name: name in told)  # type: ignore[misc]
        keeping.cancel()
        await asyncio.wait((keeping,))
        await cluster.stop()
        await store.close()

    asyncio.run(body())
