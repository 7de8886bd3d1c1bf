"""Makes the picture of the whole cluster, whenever somebody looks."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from limpet import __version__
from limpet.base.looked_at import LookedAt, Versions
from limpet.cluster.api import Code
from limpet.cluster.kinds import POLICY
from limpet.cluster.kinds.network import Network
from limpet.cluster.nodes import NodeEntry
from limpet.cluster.topology.shown import communities_of, network_of, site_values
from limpet.cluster.topology.sites import sites_of
from limpet.controller.picture.listed import ListedServices
from limpet.controller.picture.nodes import (
    NodeRecordFacts,
    findings_of,
    heard_of,
    node_of,
    present,
    relays_of,
)
from limpet.controller.picture.pairs import detail_of, in_clear, pairs_of
from limpet.controller.picture.policies import (
    MOST_POLICIES,
    NO_POLICIES,
    PolicyPage,
    policies_on_pair,
)
from limpet.controller.picture.reported import NodePaths
from limpet.controller.picture.services import MOST_SERVICES, services_of
from limpet.controller.registry.refusal import RefusedError
from limpet.controller.registry.tables import Tables
from limpet.controller.state.cluster import Cluster
from limpet.controller.state.problems import problems_of
from limpet.picture.nodes import NodeState
from limpet.picture.pair import PairDetail
from limpet.picture.picture import Also, Community, LeftOut, Picture, Unchanged, Viewer
from limpet.picture.workloads import Policy, Workloads
from limpet.services.catalog import Catalog

_NO_SERVICES = Catalog()
_NO_SERVICES_HERE = (
    "nothing tells this controller of Services, which are Kubernetes'; each node knows those that "
    "it serves: `limpet ui` there shows them"
)


@dataclass(frozen=True, slots=True)
class PictureRecords:
    """What was read of the tables."""

    nodes: dict[str, NodeEntry]
    facts: dict[str, NodeRecordFacts]
    network: Network
    revision: int
    selectors: Mapping[str, str]
    policies: tuple[Policy, ...]
    services: Catalog = _NO_SERVICES
    services_why: str = _NO_SERVICES_HERE


class PictureMaker:
    """For one event loop."""

    def __init__(self, cluster: Cluster, services: ListedServices | None) -> None:
        """`services`: None: nothing tells the controller of any."""
        self._cluster = cluster
        self._services = services
        self._versions = Versions()
        self._policies = PolicyPage()
        self._looked_at = LookedAt(self._make, lambda: cluster.paths.changed)

    async def picture(self, known: str, wait_s: float) -> Picture | Unchanged:
        """Raises: LimpetError."""
        found = await self._looked_at.other_than(known, wait_s)
        if found.version != known:
            return found
        return Unchanged(unchanged=True, as_of_s=found.as_of_s, version=found.version)

    async def pair(self, one: str, other: str) -> PairDetail:
        """Raises: RefusedError."""
        first, second = sorted((one, other))
        records = await self._cluster.change(self._read)
        for uid in (first, second):
            if uid not in records.nodes:
                words = f"show pair: no node of the cluster has the uid {uid[:80]!r}"
                raise RefusedError(Code.NOT_FOUND, words)
        detail = detail_of(
            first,
            second,
            records.nodes,
            records.network,
            self._cluster.paths.known,
            as_of_s=time.time(),
        )
        if detail.why_not_allowed:
            return detail
        policies, say = policies_on_pair(records.policies)
        return replace(detail, policies=policies, policies_say=say)

    def _read(self, tables: Tables) -> PictureRecords:
        nodes: dict[str, NodeEntry] = {}
        facts: dict[str, NodeRecordFacts] = {}
        now_s, watching = time.time(), self._cluster.paths.watching
        for uid, grant in tables.grants.items():
            if grant.tombstone:
                continue
            nodes[uid] = NodeEntry(grant, tables.presence(uid))
            facts[uid] = NodeRecordFacts(
                tables.nodes[uid].joined_at_s,
                tuple(problems_of(tables, grant, now_s)),
                uid in watching,
            )
        signed = (tables.value(POLICY.name, name) for name in tables.records(POLICY.name))
        return PictureRecords(
            nodes,
            facts,
            tables.network,
            tables.state.revision,
            {name: record.selector for name, record in tables.communities.items()},
            self._policies.of(each for each in signed if each is not None),
        )

    async def _make(self, before: Picture | None) -> Picture:
        records = await self._cluster.change(self._read)
        reported = dict(self._cluster.paths.known)
        listed = self._services
        if listed is not None:
            listed.look()
            records = dataclasses.replace(records, services=listed.catalog, services_why=listed.why)
        return await asyncio.to_thread(self._put_together, records, reported, before)

    def _put_together(
        self, records: PictureRecords, reported: Mapping[str, NodePaths], before: Picture | None
    ) -> Picture:
        now_s = time.time()
        silent_after_s = self._cluster.settings.looks.silent_after_s
        made = make_picture(records, reported, now_s - silent_after_s)
        if before is not None and made == replace(before, as_of_s=0.0, version=""):
            return replace(before, as_of_s=now_s)
        return replace(made, as_of_s=now_s, version=self._versions.next())


def make_picture(
    records: PictureRecords, reported: Mapping[str, NodePaths], since_s: float
) -> Picture:
    """Without its time and version. `since_s`: who was heard of before that alone is silent."""
    nodes = records.nodes
    watching = [uid for uid, each in records.facts.items() if each.watches]
    there = present(reported, watching, since_s)
    pairs, left_out = pairs_of(there, nodes)
    grants = {uid: each.grant for uid, each in nodes.items()}
    heard = heard_of(there, grants, records.network)
    sites = sites_of(nodes, in_clear(reported, grants, records.network))
    nat = {
        uid: kind
        for uid, paths in reported.items()
        if (kind := paths.node.nat.get("ipv4", "unknown")) != "unknown"
    }
    shown = tuple(
        node_of(
            nodes[uid],
            sites[uid].name if uid in sites else "",
            records.facts[uid],
            reported.get(uid),
            heard,
            since_s,
        )
        for uid in sorted(nodes)
    )
    services = sorted(records.services, key=lambda each: each.key)
    return Picture(
        as_of_s=0.0,
        revision=records.revision,
        viewer=Viewer(kind="controller", name="controller", version=__version__),
        network=network_of(records.network),
        sites=site_values(sites, nat),
        nodes=shown,
        pairs=pairs,
        relays=relays_of(nodes, reported),
        communities=_communities(records),
        workloads=Workloads(
            services=services_of(
                services[:MOST_SERVICES],
                records.services,
                {each.name: each.uid for each in shown},
                {each.name for each in shown if each.state is NodeState.SILENT},
            ),
            services_why=records.services_why,
            policies=records.policies[:MOST_POLICIES],
            policies_why=NO_POLICIES,
        ),
        also=Also(
            findings=findings_of(records.facts),
            left_out=LeftOut(
                pairs=left_out,
                services=max(0, len(services) - MOST_SERVICES),
                policies=max(0, len(records.policies) - MOST_POLICIES),
            ),
        ),
    )


def _communities(records: PictureRecords) -> tuple[Community, ...]:
    found = {each.name: each for each in communities_of(records.nodes, records.network)}
    for name in records.selectors:
        found.setdefault(name, Community(name=name))
    return tuple(
        replace(found[name], selector=records.selectors.get(name, "")) for name in sorted(found)
    )
