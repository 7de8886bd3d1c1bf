"""Keeps the conditions of Limpet's objects as things are, and tells a person what turned."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import structlog

from limpet.base import faults
from limpet.base.errors import LimpetError
from limpet.base.text.shared import share
from limpet.cluster.kinds import NETWORK
from limpet.controller.orchestrator.conditions import (
    FOLLOWED,
    Condition,
    ConditionFacts,
    Shown,
    Written,
    conditions_of,
    nodes_in,
    read_written,
    status_of,
    turned,
    wanted,
)
from limpet.controller.orchestrator.event_backlog import About, node
from limpet.controller.orchestrator.events import Events
from limpet.controller.registry.records import COMMUNITY, NODE, PRESENCE
from limpet.controller.registry.tables import Tables
from limpet.controller.state.cluster import Cluster
from limpet.controller.store.kubernetes.items import ItemObject
from limpet.controller.store.kubernetes.rows import row_of
from limpet.kubernetes.client import Client
from limpet.kubernetes.errors import NotFoundError
from limpet.kubernetes.kinds.objects import Resource
from limpet.kubernetes.kinds.resources import (
    API_VERSION,
    GROUP,
    RESOURCES,
    VERSION,
    ResourceError,
    read_document,
    spec_problem,
)
from limpet.kubernetes.kinds.resources import COMMUNITY as COMMUNITY_RESOURCE
from limpet.kubernetes.reflector import Reflector
from limpet.kubernetes.reflector_state import ObjectChanges

_log = structlog.get_logger("status")
_LOOK_S = 2.0
"""Between two looks at what has changed, which cost no request."""
_SHARE, _LONGEST_REST_S = 20, 30.0
"""So many times as long as the processor was busy meanwhile it rests: of thousands of objects a
look takes half a second, and with thousands of nodes something is always another than before."""
_AT_ONCE = 200
"""Objects that are judged before others have their turn."""


class Carrying(ItemObject, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    status: Any = None


_CUSTOM = {**RESOURCES, COMMUNITY: COMMUNITY_RESOURCE}
OBJECTS = {
    kind: Resource(_CUSTOM[kind].object_kind, _CUSTOM[kind].plural, Carrying, GROUP, VERSION)
    for kind in (NETWORK.name, NODE, PRESENCE, COMMUNITY)
}


def read_shown(kind: str, found: Carrying) -> Shown:
    """What of an object its conditions need; of thousands, so equal words are one."""
    shown = Shown(kind, found.metadata.name, found.metadata.uid, found.metadata.generation)
    status = found.status if isinstance(found.status, dict) else {}
    observed, nodes = status.get("observedGeneration"), status.get("nodes")
    shown = replace(
        shown,
        written=tuple(map(_shared, read_written(status))),
        observed=observed if isinstance(observed, int) else 0,
        nodes=nodes if isinstance(nodes, int) else None,
    )
    try:
        if kind not in RESOURCES:
            return replace(shown, subject=row_of(kind).decode(found)[0])
        body = found.builtins
        document = read_document(kind, body)
        row_of(kind).decode(found)
    except ResourceError as error:
        return replace(shown, unreadable=str(error))
    node_name = row_of(kind).place(found).node
    return replace(
        shown,
        subject=document.name,
        signature=document.sealed.signature,
        differs=spec_problem(document, body, node_name),
    )


def _shared(each: Written) -> Written:
    return Written(*map(share, (each.type, each.status, each.reason, each.message, each.since)))


class ObjectStatus:
    """Keeps the status of all four resources; only in the controller that leads."""

    def __init__(
        self, client: Client, cluster: Cluster, events: Events, facts: Callable[[], ConditionFacts]
    ) -> None:
        """`facts`: what is known beside the tables, now."""
        self._client = client
        self._cluster = cluster
        self._events = events
        self._facts = facts
        self._objects: dict[tuple[str, str], Shown] = {}
        self._fresh: set[tuple[str, str]] = set()
        """Objects that are another look away from being judged: what a node has just written, the
        controller may not have taken yet."""
        self._mended: dict[tuple[str, str], int] = {}
        """Objects that were written again, as of which generation."""
        self._looked: tuple[int, ConditionFacts] | None = None
        self._said = ""

    async def run(self) -> None:
        """Until it is cancelled."""
        following = [
            asyncio.create_task(
                Reflector(
                    self._client,
                    resource,
                    partial(self._hear, kind),
                    mirror=True,
                    random=random.random,
                ).run()
            )
            for kind, resource in OBJECTS.items()
        ]
        try:
            rest_s = _LOOK_S
            while True:
                await asyncio.sleep(rest_s)
                began_s = time.process_time()
                with faults.noted("writing status of objects"):
                    await self._look()
                busy_s = time.process_time() - began_s
                rest_s = min(max(_LOOK_S, _SHARE * busy_s), _LONGEST_REST_S)
        finally:
            for each in following:
                each.cancel()

    async def _hear(self, kind: str, changes: ObjectChanges[Carrying]) -> None:
        for _, name in changes.gone:
            self._objects.pop((kind, name), None)
        for each in changes.put:
            key = (kind, each.metadata.name)
            shown = read_shown(kind, each)
            before = self._objects.get(key)
            self._objects[key] = shown
            if before is None or replace(before, written=shown.written) != shown:
                self._fresh.add(key)
                self._looked = None

    async def _look(self) -> None:
        facts = self._facts()
        now = (self._cluster.turn, facts)
        if self._looked == now:
            return
        fresh, self._fresh = self._fresh, set()
        self._looked = None if fresh else now
        objects = [each for key, each in self._objects.items() if key not in fresh]
        # Those of people are judged at once: nobody else writes them.
        objects += [
            self._objects[key] for key in fresh & self._objects.keys() if key[0] == COMMUNITY
        ]
        try:
            moment = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            for start in range(0, len(objects), _AT_ONCE):
                some = objects[start : start + _AT_ONCE]
                for shown, conditions, nodes, node_name in await self._cluster.change(
                    partial(_judge, some, facts)
                ):
                    await self._mend(shown)
                    await self._tell(shown, wanted(shown, conditions, moment), nodes, node_name)
                await asyncio.sleep(0)
            self._said = ""
        except Exception as error:
            self._looked = None
            if not isinstance(error, LimpetError):
                raise
            if str(error) != self._said:
                _log.warning("status not written", error=str(error))
            self._said = str(error)

    async def _mend(self, shown: Shown) -> None:
        """What only the controller writes says again what was signed, once for each edit."""
        key = (shown.kind, shown.name)
        if not shown.differs or shown.kind == PRESENCE:
            self._mended.pop(key, None)
        elif self._mended.get(key) != shown.generation:
            self._mended[key] = shown.generation
            await self._cluster.write_again(shown.kind, shown.subject)

    async def _tell(
        self, shown: Shown, written: tuple[Written, ...], nodes: int | None, node_name: str
    ) -> None:
        is_seen = shown.kind not in FOLLOWED or shown.observed == shown.generation
        if shown.written == written and shown.nodes == nodes and is_seen:
            return
        status = status_of(shown, written, nodes)
        try:
            await self._client.patch(
                OBJECTS[shown.kind], shown.name, {"status": status}, status=True
            )
        except NotFoundError:
            return
        key = (shown.kind, shown.name)
        if self._objects.get(key) == shown:
            self._objects[key] = replace(
                shown, written=written, nodes=nodes, observed=shown.generation
            )
        for each in turned(shown.written, written):
            kind = OBJECTS[shown.kind].kind
            about = About(kind, shown.name, shown.object_uid, API_VERSION)
            if node_name:
                about = node(node_name)
            reason = each.reason if each.status != "True" else f"{each.type}Again"
            self._events.tell(
                about, reason, each.message, "Normal" if each.status == "True" else "Warning"
            )


Judged = tuple[Shown, list[Condition], int | None, str]
"""The object, its conditions, how many nodes it says that it has, the name of the node it is of."""


def _judge(objects: list[Shown], facts: ConditionFacts, tables: Tables) -> list[Judged]:
    found: list[Judged] = []
    for shown in objects:
        nodes = nodes_in(shown.subject, tables) if shown.kind == COMMUNITY else None
        grant = tables.grants.get(shown.subject) if shown.kind in (NODE, PRESENCE) else None
        name = grant.name if grant is not None else ""
        found.append((shown, conditions_of(shown, tables, facts), nodes, name))
    return found
