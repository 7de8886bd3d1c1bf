"""Labels of Kubernetes' Nodes that go into the grants: the zone, by which Services choose
endpoints, and those that communities choose by.

Of the latter only those that a selector names, and those that name a community themselves (as
FabEdge's do), so that a grant is signed anew for what matters. Who may label a Node decides; what
kubelets may not set themselves begins with `node-restriction.kubernetes.io/`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

import structlog

from limpet.base import faults
from limpet.base.errors import LimpetError
from limpet.cluster.api import name_problem
from limpet.cluster.kinds.grant import ZONE_LABEL
from limpet.controller.communities.communities import declare
from limpet.controller.communities.membership import communities_of
from limpet.controller.communities.selectors import parse_selector
from limpet.controller.orchestrator.nodes import Nodes
from limpet.controller.registry.records import COMMUNITY, CommunityRecord
from limpet.controller.registry.refusal import RefusedError
from limpet.controller.registry.tables import Tables
from limpet.controller.state.cluster import Cluster
from limpet.controller.state.grants import change_grant

_log = structlog.get_logger("community")
_LOOK_S = 2.0
"""Between two looks whether anything is another; they cost no request."""


@dataclass(frozen=True, slots=True)
class LabelsOutcome:
    """What came of a look at the labels."""

    changed: tuple[str, ...] = ()
    """Names of nodes that have other labels now."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Why nothing was done, by the name of the node, or of the community that a label names."""


def take_labels(tables: Tables, nodes: Mapping[str, Mapping[str, str]]) -> LabelsOutcome:
    """Puts labels into the grants; what is refused of one node holds up no other.

    `nodes`: all labels by the name of the Node; one that is not there keeps what it has.
    """
    refused = _make_named(tables, nodes)
    keys = {ZONE_LABEL, *tables.source.community_labels} | {
        each.key
        for record in tables.communities.values()
        if record.selector
        for each in parse_selector(record.selector).requirements
    }
    changed = []
    for name, found in nodes.items():
        uids = tables.uids_of(name)
        # Of two machines of one name nobody knows which is the Node.
        before = tables.position
        try:
            if len(uids) == 1 and _take(tables, uids[0], keys, found):
                changed.append(name)
        except RefusedError as error:
            tables.undo(before)
            refused[f"node {name}"] = str(error)
    return LabelsOutcome(tuple(changed), refused)


def _make_named(tables: Tables, nodes: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Communities that labels of nodes name and that nobody has made: they choose by that label.

    Returns why one could not be made.
    """
    refused = {}
    for key in tables.source.community_labels:
        for name, labels in nodes.items():
            community = labels.get(key, "")
            if (
                community not in tables.communities
                and not name_problem(community)
                and tables.uids_of(name)
            ):
                before = tables.position
                try:
                    tables.put(COMMUNITY, community, CommunityRecord(selector=f"{key}={community}"))
                    declare(tables, community)
                except RefusedError as error:
                    tables.undo(before)
                    refused[f"community {community}"] = str(error)
    return refused


def _take(tables: Tables, uid: str, keys: set[str], found: Mapping[str, str]) -> bool:
    grant, record = tables.grants[uid], tables.nodes[uid]
    taken = {key: found[key] for key in sorted(keys & found.keys()) if found[key]}
    own = {key: each for key, each in grant.labels.items() if key not in record.node_labels}
    labels = {**own, **taken}
    if labels == grant.labels and tuple(taken) == record.node_labels:
        return False
    tables.put_node(uid, node_labels=tuple(taken))
    if labels != grant.labels:
        communities = communities_of(tables, uid, grant.name, record.communities, labels)
        change_grant(tables, grant, labels=labels, communities=communities)
    return True


class NodeLabels:
    """Keeps the grants' labels as the Nodes have them. Of the controller that leads."""

    def __init__(self, nodes: Nodes, cluster: Cluster) -> None:
        self._nodes = nodes
        self._cluster = cluster
        self._said = ""
        self._refused: Mapping[str, str] = {}
        self._taken: tuple[int, int] | None = None
        """Turns of the Nodes and of the records when all labels had been taken."""

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            if (self._nodes.turn, self._cluster.turn) != self._taken:
                with faults.noted("taking labels of Nodes"):
                    await self._take()

    async def _take(self) -> None:
        error = ""
        turns = (self._nodes.turn, self._cluster.turn)
        try:
            labels = {name: node.labels for name, node in self._nodes.objects.items()}
            taken = await self._cluster.change(lambda tables: take_labels(tables, labels))
            if taken.changed:
                _log.info("took labels of Nodes", nodes=",".join(taken.changed)[:500])
            for name, why in taken.refused.items():
                if self._refused.get(name) != why:
                    _log.warning("labels not taken", of=name, error=why)
            self._refused = taken.refused
            self._taken = turns
        except LimpetError as failure:
            error = str(failure)
            if error != self._said:
                _log.warning("labels of Nodes not taken", error=error)
        self._said = error
