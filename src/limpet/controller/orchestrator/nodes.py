"""The one watch of Kubernetes' Nodes: all that are there, for whoever looks, on the event loop."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping

from limpet.base.bounds.servers import DELETED_NODES
from limpet.base.process.wall_clock import passed_s
from limpet.controller.node_objects.node import (
    NODES,
    KubernetesNode,
    NodeObject,
    looked_at,
    read_node,
)
from limpet.kubernetes.client import Client
from limpet.kubernetes.reflector import Reflector
from limpet.kubernetes.reflector_state import ObjectChanges


class Nodes:
    """As the API server has told them. Runs as long as the controller does, also while it follows:
    what is deleted while nobody leads is heard too."""

    def __init__(self, client: Client) -> None:
        self._reflector = Reflector(client, NODES, self._hear, mirror=True, random=random.random)
        self._objects: dict[str, NodeObject] = {}
        self._looked_at: dict[str, tuple[object, ...]] = {}
        """What they were read from, by name."""
        self.turn = 0
        """Another number when something that is looked at is another."""
        self._deleted: dict[str, tuple[NodeObject, float]] = {}
        self._listed = False
        self._changed: asyncio.Future[None] | None = None

    @property
    def objects(self) -> Mapping[str, NodeObject]:
        """By name; always the same mapping."""
        return self._objects

    @property
    def listed(self) -> bool:
        """All that are there were told once; before that, one that is missing may be there."""
        return self._listed

    @property
    def deleted(self) -> Mapping[str, tuple[NodeObject, float]]:
        """Nodes that the API server said were deleted, and are not there again; with the time of
        day when, by the clock as it is now. One that a new list lacks is not among them: an API
        server that was put back from a copy lacks all that came since."""
        ahead_s = time.time() - passed_s()
        return {name: (node, at_s + ahead_s) for name, (node, at_s) in self._deleted.items()}

    @property
    def changed(self) -> asyncio.Future[None]:
        """Done when something that is looked at has changed after this was asked for."""
        if self._changed is None or self._changed.done():
            self._changed = asyncio.get_running_loop().create_future()
        return self._changed

    async def run(self) -> None:
        """Until it is cancelled."""
        await self._reflector.run()

    async def _hear(self, changes: ObjectChanges[KubernetesNode]) -> None:
        is_new = changes.listed and not self._listed
        self._listed = self._listed or changes.listed
        put = {each.metadata.name: each for each in changes.put}
        for _, name in changes.gone:
            before = self._objects.get(name)
            if before is None or name in put:
                continue
            del self._objects[name], self._looked_at[name]
            if not changes.listed:
                self._deleted[name] = (before, passed_s())
                if len(self._deleted) > DELETED_NODES.most:
                    del self._deleted[next(iter(self._deleted))]
            is_new = True
        for name, node in put.items():
            self._deleted.pop(name, None)
            found = looked_at(node)
            if self._looked_at.get(name) == found:
                continue  # a heartbeat
            self._looked_at[name] = found
            read = read_node(node)
            is_new = is_new or self._objects.get(name) != read
            self._objects[name] = read
        self.turn += is_new
        if is_new and self._changed is not None and not self._changed.done():
            self._changed.set_result(None)
