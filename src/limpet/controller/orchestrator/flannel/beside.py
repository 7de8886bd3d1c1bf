"""flannel beside Limpet: its nodes are told to ours, ours to its. Of the controller that leads."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping

import structlog

from limpet.base import faults
from limpet.base.errors import LimpetError
from limpet.controller.node_objects.node import FLANNEL_PREFIX, NODES
from limpet.controller.orchestrator.event_backlog import node
from limpet.controller.orchestrator.events import Events
from limpet.controller.orchestrator.flannel.nodes import FlannelOutcome, take_flannel
from limpet.controller.orchestrator.nodes import Nodes
from limpet.controller.registry.tables import Tables
from limpet.controller.state.cluster import Cluster
from limpet.kubernetes.client import Client

_log = structlog.get_logger("flannel")
_LOOK_S = 1.0
"""Between two looks at the tables, which cost no request: what a node of ours says of itself is
heard by no Node."""
_TYPE = "backend-type"


class FlannelBeside:
    """Keeps grants of flannel's nodes as their Nodes are, and the annotations of the others."""

    def __init__(self, client: Client, nodes: Nodes, cluster: Cluster, events: Events) -> None:
        self._client = client
        self._events = events
        self._nodes = nodes
        self._cluster = cluster
        self._problems: dict[str, str] = {}

    @property
    def problems(self) -> Mapping[str, str]:
        """By the name of a Node: why it and flannel's others do not reach each other."""
        return self._problems

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            with faults.noted("looking at nodes of flannel"):
                await self._look()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await asyncio.shield(self._nodes.changed)

    async def _look(self) -> None:
        problems: dict[str, str] = {}
        try:
            taken = await self._cluster.change(self._take)
        except LimpetError as error:
            problems[""] = str(error)
        else:
            problems |= taken.problems
            if taken.changed:
                _log.info("took nodes of flannel", nodes=",".join(taken.changed)[:500])
            for name, wanted in taken.annotations.items():
                try:
                    await self._write(name, wanted)
                except LimpetError as error:
                    problems[name] = str(error)
        for name, problem in problems.items():
            if self._problems.get(name) != problem:
                _log.warning("not beside flannel", node=name, error=problem)
                if name in self._nodes.objects:
                    about = node(name, self._nodes.objects[name].uid)
                    self._events.tell(about, "NotBesideFlannel", problem, "Warning")
        self._problems = problems

    def _take(self, tables: Tables) -> FlannelOutcome:
        return take_flannel(tables, self._nodes.objects, list(self._nodes.deleted), time.time())

    async def _write(self, name: str, wanted: Mapping[str, str | None]) -> None:
        """Raises: StatusError, LinkError."""
        found = self._nodes.objects.get(name)
        if found is None or all(found.flannel.get(key) == value for key, value in wanted.items()):
            return
        if found.flannel.get(_TYPE) == wanted[_TYPE]:
            # A dual-stack flannel passes over a change of one family alone; what both families
            # have in common is the type. Source: flannel 0.28.10, pkg/subnet/kube/kube.go,
            # handleUpdateLeaseEvent.
            await self._patch(name, {_TYPE: None})
        await self._patch(name, wanted)
        _log.info("told flannel's nodes of a node", node=name)

    async def _patch(self, name: str, values: Mapping[str, str | None]) -> None:
        """By the status, as flannel does: who may write that may not change what a Node is to be.

        Raises: StatusError, LinkError.
        """
        annotations = {FLANNEL_PREFIX + key: value for key, value in values.items()}
        changes = {"metadata": {"annotations": annotations}}
        await self._client.patch(NODES, name, changes, status=True)
