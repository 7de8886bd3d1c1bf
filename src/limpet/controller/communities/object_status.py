"""What a Community's object in Kubernetes says in `status`: how many nodes, and what is wrong."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import structlog

from limpet.base.errors import LimpetError
from limpet.controller.state.cluster import Cluster
from limpet.controller.state.records import COMMUNITY
from limpet.controller.state.tables import Tables
from limpet.controller.store.kubernetes.items import Kept, row_of
from limpet.kubernetes.client import Client
from limpet.kubernetes.objects import Resource
from limpet.kubernetes.reflector import Reflector
from limpet.kubernetes.reflector_state import Changes
from limpet.kubernetes.resources import COMMUNITY as CUSTOM
from limpet.kubernetes.resources import GROUP, VERSION, ResourceError

_log = structlog.get_logger("community")
_LOOK_S = 2.0
"""Between two looks at the tables, which cost no request."""


class CommunityObject(Kept, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    status: Any = None


COMMUNITIES = Resource(CUSTOM.object_kind, CUSTOM.plural, CommunityObject, GROUP, VERSION)


@dataclass(frozen=True, slots=True)
class Finding:
    """Of one community."""

    nodes: int
    reason: str
    message: str
    """In words, with what to do where it is not as it should be."""

    @property
    def is_ready(self) -> bool:
        return self.reason == "Granted"


def find(name: str, tables: Tables, problems: Mapping[str, str]) -> Finding:
    """How a community stands. `problems`: in words, by name."""
    nodes = sum(1 for grant in tables.grants.values() if name in grant.communities)
    if name in problems:
        return Finding(nodes, "Refused", problems[name])
    record = tables.communities.get(name)
    if record is None:
        return Finding(nodes, "NotRead", "the controller has not read it yet")
    absent = [each for each in record.members if not tables.uids_of(each)]
    more = f"; not joined yet: {', '.join(sorted(absent))[:500]}" if absent else ""
    return Finding(nodes, "Granted", f"{nodes} nodes have it in their grants{more}")


def status_of(finding: Finding, found: CommunityObject, moment: str) -> dict[str, Any]:
    """The object's status; `moment`: RFC 3339, when the condition becomes another."""
    generation = found.metadata.generation
    status = "True" if finding.is_ready else "False"
    before = _ready(found.status)
    unchanged = before.get("status") == status and isinstance(before.get("lastTransitionTime"), str)
    condition = {
        "type": "Ready",
        "status": status,
        "reason": finding.reason,
        "message": finding.message[:32768],
        "lastTransitionTime": before["lastTransitionTime"] if unchanged else moment,
        "observedGeneration": generation,
    }
    return {
        "observedGeneration": generation,
        "nodes": finding.nodes,
        "conditions": [condition],
    }


def _ready(status: Any) -> dict[str, Any]:
    conditions = status.get("conditions") if isinstance(status, dict) else None
    for each in conditions if isinstance(conditions, list) else ():
        if isinstance(each, dict) and each.get("type") == "Ready":
            return each
    return {}


class CommunityTeller:
    """Keeps the status of all of them as the grants are. Of the controller that leads."""

    def __init__(self, client: Client, cluster: Cluster) -> None:
        self._client = client
        self._cluster = cluster
        self._objects: dict[str, CommunityObject] = {}

    async def run(self) -> None:
        """Until it is cancelled."""
        reflector = Reflector(
            self._client, COMMUNITIES, self._hear, mirror=True, random=random.random
        )
        following = asyncio.create_task(reflector.run())
        try:
            while True:
                await asyncio.sleep(_LOOK_S)
                try:
                    await self._tell()
                except LimpetError as error:
                    _log.warning("status not written", error=str(error))
        finally:
            following.cancel()

    async def _hear(self, changes: Changes[CommunityObject]) -> None:
        for _, name in changes.gone:
            self._objects.pop(name, None)
        for each in changes.put:
            self._objects[each.metadata.name] = each

    async def _tell(self) -> None:
        row, problems = row_of(COMMUNITY), self._cluster.community_problems
        for found in list(self._objects.values()):
            try:
                name, _ = row.decode(found)
            except ResourceError as error:
                finding = Finding(0, "Unreadable", str(error))
            else:
                finding = await self._cluster.change(
                    lambda tables, name=name: find(name, tables, problems)  # type: ignore[misc]
                )
            moment = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            status = status_of(finding, found, moment)
            if status != found.status:
                written = await self._client.patch(
                    COMMUNITIES, found.metadata.name, {"status": status}, status=True
                )
                self._objects[found.metadata.name] = written
