"""Makes the picture of what this node knows, whenever somebody looks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from limpet import __version__
from limpet.agent.answers.cluster import session_status
from limpet.agent.answers.picture.detail import pair_detail
from limpet.agent.answers.picture.looking import Looking, OfPods
from limpet.agent.answers.picture.nodes import (
    PeerFacts,
    node_of,
    own_segments,
    relays_of,
)
from limpet.agent.answers.picture.ways import WaySeen, pair_of
from limpet.agent.answers.picture.workloads import (
    MOST_POLICIES,
    MOST_SERVICES,
    Named,
    named_nodes,
    policies_of,
    policies_on_pair,
    service_of,
    why_no_policies,
)
from limpet.agent.policies.said import Policies as SaidPolicies
from limpet.agent.status.cluster import NatTraversalStatus
from limpet.base.errors import LimpetError
from limpet.base.looked_at import LookedAt, Versions
from limpet.cluster.nodes import NodeEntry
from limpet.cluster.topology.shown import (
    communities_of,
    machine_of,
    network_of,
    roles_of,
    site_values,
)
from limpet.cluster.topology.sites import sites_of
from limpet.cni.ledgers import Ledgers
from limpet.picture.nodes import Node, NodeState
from limpet.picture.pair import PairDetail
from limpet.picture.picture import Also, LeftOut, Picture, Unchanged, Viewer
from limpet.picture.workloads import Policy, Service, Workloads

if TYPE_CHECKING:  # in memory only where they are meant
    from limpet.agent.answers.services import ServiceAdmin
    from limpet.agent.policies.slot import PolicySlot
    from limpet.agent.wiring import ClusterSide

_CHUNK = 200
"""Peers that are looked at in one go: the loop serves pods as well."""
_HEARD_STEP_S = 10.0


@dataclass(frozen=True, slots=True)
class _Gathered:
    """What was looked at on the event loop; the rest of the work is done elsewhere."""

    as_of_s: float
    seen: dict[str, WaySeen]
    facts: dict[str, PeerFacts]
    viewer: Viewer
    nat: Mapping[str, str]
    backend: str
    of_pods: OfPods
    workloads: Workloads
    left_out: LeftOut
    nat_traversal: NatTraversalStatus


class PictureAnswers:
    """For the event loop's thread."""

    def __init__(
        self, cluster: ClusterSide, services: ServiceAdmin, policies: PolicySlot, ledgers: Ledgers
    ) -> None:
        self._cluster = cluster
        self._looking = Looking(
            cluster.peer_parts,
            cluster.probing,
            cluster.nat_traversal,
            since_at_s=cluster.happenings.changed_at.get,
            ledgers=ledgers,
        )
        self._services = services
        self._policies = policies
        self._versions = Versions()
        self._looked_at = LookedAt(self._present, lambda: cluster.happenings.stirred)

    async def picture(self, arguments: Mapping[str, Any]) -> Picture | Unchanged:
        """`known`: version that whoever asks has; `wait_s`: how long another one is waited for.

        Raises: LimpetError.
        """
        known, wait_s = str(arguments.get("known", "")), arguments.get("wait_s", 0)
        if not isinstance(wait_s, int | float):
            raise LimpetError(f"picture: wait_s {str(wait_s)[:40]}: it is no number")
        found = await self._looked_at.other_than(known, wait_s)
        if found.version != known:
            return found
        return Unchanged(unchanged=True, as_of_s=found.as_of_s, version=found.version)

    async def _present(self, before: Picture | None) -> Picture:
        gathered = await self._gather()
        return await asyncio.to_thread(self._make, gathered, before)

    # Gathering

    async def _gather(self) -> _Gathered:
        cluster = self._cluster
        view = cluster.peer_parts.peers.view
        lacking = self._looking.lacking()
        seen: dict[str, WaySeen] = {}
        facts: dict[str, PeerFacts] = {}
        as_of_s, now_s = time.time(), time.monotonic()
        for count, (uid, entry) in enumerate(list(view.snapshot.nodes.items()), 1):
            if uid != view.uid and not entry.grant.tombstone:
                seen[uid] = self._looking.seen(uid, entry, lacking)
                facts[uid] = self._facts(uid, seen[uid], lacking, as_of_s - now_s)
            if count % _CHUNK == 0:
                await asyncio.sleep(0)
        workloads, left_out = await self._workloads()
        return _Gathered(
            as_of_s=as_of_s,
            seen=seen,
            facts=facts,
            viewer=self._viewer(as_of_s, now_s),
            nat=self._looking.nat(),
            backend=self._looking.backend(),
            of_pods=self._looking.of_pods(),
            workloads=workloads,
            left_out=left_out,
            nat_traversal=cluster.nat_traversal.report(),
        )

    def _facts(
        self, uid: str, seen: WaySeen, lacking: Mapping[str, str], ahead_s: float
    ) -> PeerFacts:
        """`ahead_s`: of the wall clock against the monotonic one."""
        if not seen.is_allowed or seen.here is None:
            return PeerFacts()
        if seen.is_reached and not seen.here.is_silent:
            return PeerFacts(NodeState.ANSWERS)
        heard = self._cluster.exchange.heard.get(uid)
        heard_at_s = (
            round((heard.at_s + ahead_s) / _HEARD_STEP_S) * _HEARD_STEP_S if heard else None
        )
        part = self._looking.part(uid)
        why = (
            "it answers by no way" if seen.here.is_silent else part.refused or lacking.get(uid, "")
        )
        return PeerFacts(NodeState.SILENT, why, heard_at_s)

    def _viewer(self, as_of_s: float, now_s: float) -> Viewer:
        cluster = self._cluster
        said = session_status(cluster.session.state, now_s=now_s)
        api = cluster.kubernetes.api_server
        connected, since_s = said.connected, as_of_s - said.for_s
        cloud = f"controller at {said.address}" if said.address else "no controller known"
        why = said.error
        if api is not None:
            connected, since_s = api.state.connected, as_of_s - (now_s - api.state.since_s)
            cloud, why = f"API server at {api.state.server}", api.state.error
        since = datetime.fromtimestamp(round(since_s, -1), UTC).strftime("%Y-%m-%d %H:%M UTC")
        words = f"{'hears' if connected else 'does not hear'} the {cloud} since {since}"
        return Viewer(
            kind="node",
            name=cluster.membership.name_of(cluster.membership.uid),
            uid=cluster.membership.uid,
            version=__version__,
            connected=connected,
            cloud=words + (f": {why}" if why and not connected else ""),
        )

    async def _workloads(self) -> tuple[Workloads, LeftOut]:
        services: tuple[Service, ...] = ()
        policies: tuple[Policy, ...] = ()
        services_why = policies_why = ""
        try:
            found = self._services.with_endpoints(MOST_SERVICES)
            uids = {
                entry.grant.name: uid
                for uid, entry in self._cluster.membership.snapshot.nodes.items()
                if not entry.grant.tombstone
            }
            services = named_nodes((service_of(*each) for each in found), uids)
        except LimpetError as error:
            services_why = str(error)
        slot = self._policies
        if slot.policies is None:
            policies_why = "no policy holds on this node"
        elif isinstance(said := await slot.answer("policy.list", {}), SaidPolicies):
            policies, policies_why = policies_of(said), why_no_policies(said)
        return (
            Workloads(
                services=services,
                services_why=services_why,
                policies=policies[:MOST_POLICIES],
                policies_why=policies_why,
            ),
            LeftOut(
                services=0 if services_why else self._services.count - len(services),
                policies=max(0, len(policies) - MOST_POLICIES),
            ),
        )

    # Making, on another thread

    def _make(self, gathered: _Gathered, before: Picture | None) -> Picture:
        cluster = self._cluster
        view = cluster.peer_parts.peers.view
        nodes, own = view.snapshot.nodes, view.uid
        known = [kind for kind in gathered.nat.values() if kind != "unknown"]
        here = {own: known[0]} if known else {}
        in_clear = [
            (own, uid)
            for uid, seen in gathered.seen.items()
            if seen.here is not None
            and seen.here.path is not None
            and not seen.here.path.rung.encrypted
        ]
        sites = sites_of(nodes, in_clear)
        names = {uid: place.name for uid, place in sites.items()}
        shown = {} if before is None else {(each.one, each.other): each for each in before.pairs}
        pairs = [
            pair_of(own, uid, seen, shown.get((min(own, uid), max(own, uid))))
            for uid, seen in gathered.seen.items()
            if seen.is_allowed
        ]
        report = gathered.nat_traversal
        tls = report.relaying_tls
        made = Picture(
            as_of_s=0.0,
            revision=cluster.membership.replica.known.revision,
            viewer=gathered.viewer,
            network=network_of(view.network),
            sites=site_values(sites, here),
            nodes=tuple(self._nodes(gathered, nodes, names)),
            pairs=tuple(sorted(pairs, key=lambda each: (each.one, each.other))),
            relays=relays_of(
                nodes,
                report.relays.relays,
                own=own,
                relaying=report.relaying,
                tls_nodes=tls.nodes if tls is not None else (),
            ),
            communities=communities_of(nodes, view.network),
            workloads=gathered.workloads,
            also=Also(left_out=gathered.left_out),
        )
        if before is not None and made == replace(before, as_of_s=0.0, version=""):
            return replace(before, as_of_s=gathered.as_of_s)
        return replace(made, as_of_s=gathered.as_of_s, version=self._versions.next())

    def _nodes(
        self, gathered: _Gathered, nodes: Mapping[str, NodeEntry], sites: Mapping[str, str]
    ) -> Iterable[Node]:
        own = self._cluster.membership.uid
        for uid in sorted(nodes):
            entry = nodes[uid]
            if uid == own:
                yield self._own_node(gathered, entry, sites.get(uid, ""))
            elif not entry.grant.tombstone:
                yield node_of(entry, sites.get(uid, ""), gathered.facts.get(uid, PeerFacts()))

    def _own_node(self, gathered: _Gathered, entry: NodeEntry, site: str) -> Node:
        grant = entry.grant
        return Node(
            uid=grant.uid,
            name=grant.name,
            site=site,
            roles=roles_of(grant),
            communities=tuple(sorted(grant.communities)),
            labels=dict(sorted(grant.labels.items())),
            state=NodeState.REMOVED if grant.tombstone else NodeState.ANSWERS,
            segments=own_segments(gathered.of_pods.segments),
            pods=gathered.of_pods.pods,
            machine=machine_of(
                entry.presence,
                nat=dict(gathered.nat),
                version=__version__,
                backend=gathered.backend,
            ),
        )

    # One pair

    def pair(self, arguments: Mapping[str, Any]) -> PairDetail:
        """`one` and `other`: uids, one of which is this node's. Raises: LimpetError."""
        cluster = self._cluster
        view = cluster.peer_parts.peers.view
        ends = [str(arguments.get(key, "")) for key in ("one", "other")]
        one, other = sorted(ends)
        nodes = view.snapshot.nodes
        for each in ends:
            if each not in nodes:
                raise LimpetError(f"pair: this node knows no node with the uid {each[:80]!r}")
        peer = other if one == view.uid else one
        if view.uid not in ends or peer == view.uid:
            return PairDetail(
                one=one,
                other=other,
                why_unknown="only the two nodes themselves know, and the controller if they have "
                "told it: look there",
                as_of_s=round(time.time(), 1),
            )
        lacking = self._looking.lacking()
        seen = self._looking.seen(peer, nodes[peer], lacking)
        facts = replace_fields(
            self._looking.facts_of_pair(peer, seen, lacking),
            reading=cluster.peer_parts.tunnels.readings_by_uid().get(peer),
        )
        detail = pair_detail(facts, view, now_s=time.monotonic(), as_of_s=time.time())
        if detail.why_not_allowed:
            return detail
        mine, theirs = (Named(uid, nodes[uid].grant.name) for uid in (view.uid, peer))
        policies, say = policies_on_pair(
            self._policies.policies, nodes[peer].grant.segments, mine, theirs
        )
        return replace(detail, policies=policies, policies_say=say)
