"""What a person may ask of the cluster at a node: the way to a pod, the peers, how all stands."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from limpet.agent.answers.path import (
    LocalPod,
    NodeWords,
    addresses_of,
    pairs_of,
    path_status,
    peer_between,
)
from limpet.agent.answers.services import ServiceAdmin
from limpet.agent.status.cluster import (
    ApiServerStatus,
    ClusterStatus,
    ControllerStatus,
    LinkStatus,
    PeerRound,
    SharedEndpoint,
    TunnelStatus,
)
from limpet.agent.status.paths import PathAnswer, Peers, PeerStatus, ProbeStatus
from limpet.agent.status.services import ServicesStatus, ServiceWay
from limpet.agent.wiring import ClusterSide
from limpet.base.addresses import Address, Endpoint, endpoint_text
from limpet.base.decoding import convert
from limpet.base.errors import LimpetError
from limpet.cloud.second_road import SecondRoad
from limpet.cloud.session import SessionState
from limpet.cluster.nodes import Snapshot
from limpet.cluster.topology import transports
from limpet.cluster.topology.paths import PeerPath
from limpet.cluster.topology.reach import may_talk
from limpet.cluster.topology.transports import ProbeKind
from limpet.cluster.topology.view import View
from limpet.cni.attachment_plan import pod_mtu_bytes
from limpet.cni.verbs import Node
from limpet.datapath.overlay.plan import transport_of
from limpet.datapath.overlay.state import OverlayPlan, PeerPart
from limpet.datapath.peer_parts import PeerParts
from limpet.datapath.tunnel.state import PeerReading
from limpet.datapath.tunnel.traffic.report import peer_document, tunnel_documents, unable_peers
from limpet.paths.explain import name_of
from limpet.paths.measuring import Measured
from limpet.paths.probe.messages import Candidate

if TYPE_CHECKING:  # in memory only where Services are heard of
    from limpet.agent.services import ServiceSide
    from limpet.services.mode import Choice

_MOST_WAYS = 16
"""To endpoints of a Service."""
_PROBES = 4
"""One may be lost."""
_NOBODY: Mapping[str, str] = {}
_STATES = {"": "removed", "unreached": "unreached", "apart": "apart"}


class ClusterAdmin:
    """Answers from what the last round was planned with: what is said is what the kernel got."""

    def __init__(self, cluster: ClusterSide, node: Node) -> None:
        self._cluster = cluster
        self._node = node
        self.services = ServiceAdmin(cluster)

    def status(self) -> ClusterStatus:
        """The cluster's part of `limpet status`."""
        cluster, membership = self._cluster, self._cluster.membership
        peer_parts, network, grant = cluster.peer_parts, membership.network, membership.grant
        tunnel, ipsec = tunnel_statuses(peer_parts)
        return ClusterStatus(
            name=network.cluster if network is not None else "",
            node=grant.name if grant is not None else membership.identity.name,
            uid=membership.uid,
            granted=grant is not None,
            removed=membership.removed,
            cloned=membership.cloned,
            controller=session_status(cluster.session.state, now_s=time.monotonic()),
            api_server=api_server_status(cluster.api_server, now_s=time.monotonic()),
            revision=membership.replica.known.revision,
            segments=[str(each) for each in peer_parts.peers.view.segments.get(membership.uid, ())],
            pod_cidrs=[str(each) for each in network.pod_cidrs] if network is not None else [],
            vxlan_id=network.vxlan_id if network is not None else 0,
            vxlan_port=network.vxlan_port if network is not None else 0,
            links=[
                LinkStatus(
                    ifname=link.ifname,
                    mtu_bytes=link.mtu_bytes,
                    addresses=[str(address) for address in link.addresses],
                )
                for link in peer_parts.own.links
            ],
            peers=count_peers(
                peer_parts.peers.view, peer_parts.overlay.planned, _unable(peer_parts)
            ),
            contested=len(peer_parts.overlay.planned.contested),
            shared_endpoints=shared_endpoints(peer_parts.peers.view.snapshot, membership.uid),
            tunnel=tunnel,
            ipsec=ipsec,
            disk=[*membership.replica.problems, *filter(None, [membership.replica.file.trouble])],
            last_round=PeerRound(
                rounds=max(account.rounds for account in peer_parts.accounts),
                changes=sum(account.changes for account in peer_parts.accounts),
                failed=peer_parts.failures,
                took_ms=round(sum(each.last_took_ms for each in peer_parts.accounts), 1),
            ),
            messages=dict(sorted(cluster.courier.counters.items())),
            exchange=dict(sorted(cluster.exchange.counters.items())),
            probes=dict(sorted(cluster.probing.counters.items())),
            nat_traversal=cluster.nat_traversal.report(),
            offers=dict(sorted(membership.replica.counters.items())),
            services=services_status(cluster.services_choice, cluster.services),
        )

    def why_no_segments(self) -> str:
        """In words, should the node have none."""
        membership, state = self._cluster.membership, self._cluster.session.state
        if membership.removed:
            return "this node was removed from the cluster"
        why = state.refused or state.error or "the controller has not answered yet"
        return f"the cluster has granted this node no segment yet: {why}"

    async def peers(self, arguments: Mapping[str, Any]) -> Peers:
        """Every other node; removed ones too if `all` is true."""
        peer_parts, now_s = self._cluster.peer_parts, time.monotonic()
        heard_s = {uid: now_s - heard.at_s for uid, heard in self._cluster.exchange.heard.items()}
        every = bool(arguments.get("all"))
        peers = await asyncio.to_thread(
            peer_statuses,
            peer_parts.peers.view,
            peer_parts.overlay.planned,
            heard_s=heard_s,
            every=every,
            unable=_unable(peer_parts),
            readings=peer_parts.tunnels.readings_by_uid(),
            now_ns=time.time_ns(),
        )
        return Peers(peers=peers)

    async def path(self, arguments: Mapping[str, Any]) -> PathAnswer:
        """Between two words, each an address or a pod of this node. Raises: LimpetError.

        `probe`: the node at the other end is asked as well.
        """
        words, peer_parts = self._words(), self._cluster.peer_parts
        origin, target = (str(arguments.get(key, "")) for key in ("origin", "target"))
        service = self.services.way(target)
        targets = [target] if service is None else _in_rotation(service)
        origins = addresses_of(origin, words.pods)
        pairs = [
            pair
            for each in targets
            for pair in pairs_of(origins, addresses_of(each, words.pods), peer_parts.peers.view)
        ]
        # Before the paths are told: an answer also says by which way the peer reaches this node.
        measured = await self._measure_peers(pairs) if arguments.get("probe") else {}
        paths = [
            await asyncio.to_thread(
                path_status,
                peer_parts.peers.view,
                peer_parts.overlay.planned,
                *pair,
                words,
                dict(self._cluster.probing.ways),
                _unable(peer_parts),
            )
            for pair in pairs
        ]
        probes = [
            probe
            for uid, rounds in measured.items()
            for probe in probe_statuses(rounds, uid, peer_parts.peers.view.snapshot)
        ]
        nat = self._cluster.nat_traversal.relays.report()["nat"]
        return PathAnswer(
            paths=paths, probes=probes, nat=nat, failed=peer_parts.failures, service=service
        )

    async def _measure_peers(
        self, pairs: Iterable[tuple[Address, Address]]
    ) -> dict[str, list[tuple[Measured, ...]]]:
        """Probes every way to each node at the other ends, several times; by its uid."""
        view = self._cluster.peer_parts.peers.view
        uids = dict.fromkeys(filter(None, (peer_between(view, *pair) for pair in pairs)))
        return {uid: [await self._measure(uid) for _ in range(_PROBES)] for uid in uids}

    async def _measure(self, uid: str) -> tuple[Measured, ...]:
        try:
            return await self._cluster.probing.measure(uid)
        except LimpetError:  # a peer that is not probed: the path says why it has none
            return ()

    def _words(self) -> NodeWords:
        node, node_part = self._node, self._node.node_part
        settings = node.settings
        attached = [
            LocalPod(each.pod.namespace, each.pod.name, address.ip, attached=True)
            for each in node.attachments
            for address in each.addresses
        ]
        live = {pod.address for pod in attached}
        kept = [
            LocalPod(binding.key.namespace, binding.key.pod, address, attached=False)
            for ledger in node.ledgers
            for address, binding in ledger.bindings().items()
            if address not in live
        ]
        mtu_bytes = pod_mtu_bytes(settings, node_part.uplink_mtu_bytes)
        return NodeWords((*attached, *kept), settings.bridge, mtu_bytes)


def _in_rotation(service: ServiceWay) -> list[str]:
    """Addresses of endpoints that may be drawn, the first of them."""
    drawn = dict.fromkeys(each.address for each in service.endpoints if each.weight)
    return list(drawn)[:_MOST_WAYS]


def session_status(state: SessionState, *, now_s: float) -> ControllerStatus:
    """`for_s`: seconds that it has been connected, or has not."""
    return ControllerStatus(
        address=state.controller,
        connected=state.connected,
        for_s=round(now_s - state.since_s, 1),
        error=state.error,
        refused=state.refused,
        over=state.over,
        told=list(state.told),
    )


def api_server_status(road: SecondRoad | None, *, now_s: float) -> ApiServerStatus | None:
    """`for_s`: seconds that it has been connected, or has not. None: none is asked."""
    if road is None:
        return None
    state = road.state
    return ApiServerStatus(
        server=state.server,
        connected=state.connected,
        for_s=round(now_s - state.since_s, 1),
        error=state.error,
        refused=state.refused,
        unusable=list(state.unusable),
        told=list(state.told),
        clock_ahead_s=round(state.clock_ahead_s),
    )


def services_status(choice: Choice | None, side: ServiceSide | None) -> ServicesStatus | None:
    if choice is None:
        return None
    decision = choice.taken
    return ServicesStatus(
        on=decision.on,
        why=decision.why,
        backend="" if side is None else side.sockets.backend,
        kube_proxy=choice.kube_proxy,
        why_not_ebpf="" if side is None else side.sockets.why_not,
        asked_backend="nftables" if side is None else side.sockets.asked,
    )


def probe_statuses(
    rounds: Iterable[Iterable[Measured]], uid: str, snapshot: Snapshot
) -> list[ProbeStatus]:
    """How many probes of each kind were sent and answered, in the order of the first round.

    `uid`: of the node that was asked.
    """
    found: dict[Candidate, list[Measured]] = {}
    for measured in rounds:
        for each in measured:
            found.setdefault(each.candidate, []).append(each)
    return [
        _probe_status(candidate, answers, uid, snapshot) for candidate, answers in found.items()
    ]


def _probe_status(
    candidate: Candidate, answers: list[Measured], uid: str, snapshot: Snapshot
) -> ProbeStatus:
    entry = snapshot.nodes.get(uid)
    trips_ms = [each.rtt_ms for each in answers if each.rtt_ms is not None]
    return ProbeStatus(
        node=entry.grant.name if entry is not None else uid,
        uid=uid,
        asked=candidate.kind.name.lower(),
        address=str(candidate.address),
        endpoint=endpoint_text((candidate.address, candidate.port))
        if candidate.kind is ProbeKind.TUNNEL
        else "",
        relay=name_of(snapshot, candidate.relay or None),
        device=candidate.device,
        version=candidate.version or candidate.address.version,
        in_use=answers[-1].in_use,
        sent=len(answers),
        answered=len(trips_ms),
        rtts_ms=[round(trip_ms, 3) for trip_ms in trips_ms],
    )


def shared_endpoints(snapshot: Snapshot, uid: str) -> list[SharedEndpoint]:
    """Endpoints that the node tells and others too: at most one of them is reached there."""
    entry = snapshot.nodes.get(uid)
    own = entry.presence.endpoints if entry is not None and entry.presence is not None else ()
    names: dict[Endpoint, list[str]] = {each: [] for each in own}
    for other, each in snapshot.nodes.items() if names else ():
        if other != uid and each.presence is not None and not each.grant.tombstone:
            for endpoint in names.keys() & set(each.presence.endpoints):
                names[endpoint].append(each.grant.name)
    return [
        SharedEndpoint(endpoint=endpoint_text(endpoint), nodes=sorted(found))
        for endpoint, found in names.items()
        if found
    ]


def tunnel_statuses(peer_parts: PeerParts) -> tuple[TunnelStatus, TunnelStatus | None]:
    """WireGuard's, and IPsec's where the cluster names it."""
    found = tunnel_documents(peer_parts.tunnels, peer_parts.watch, now_ns=time.time_ns())
    return convert((found["tunnel"], found["ipsec"]), tuple[TunnelStatus, TunnelStatus | None])


def _unable(peer_parts: PeerParts) -> Mapping[str, str]:
    return unable_peers(peer_parts.tunnels, time.monotonic())


def count_peers(
    view: View, plan: OverlayPlan, unable: Mapping[str, str] = _NOBODY
) -> dict[str, int]:
    """How many peers are reached on each rung, are not, and are not to be (`apart`).

    `unable`: as `unable_peers` tells them.
    """
    found = Counter(
        _kind(uid, view, plan, unable) for uid in view.snapshot.nodes if uid != view.uid
    )
    return {kind: found[kind] for kind in (*transports.TRANSPORTS, "unreached", "apart")}


def _kind(uid: str, view: View, plan: OverlayPlan, unable: Mapping[str, str]) -> str:
    """Empty: the peer was removed from the cluster."""
    grant = view.snapshot.nodes[uid].grant
    if grant.tombstone:
        return ""
    if view.network is None or view.grant is None:
        return "unreached"
    if not may_talk(view.network, view.grant, grant):
        return "apart"
    part, path = plan.parts.get(uid, PeerPart()), view.paths.get(uid)
    return _rung(part, plan, path, able=uid not in unable) or "unreached"


def _rung(part: PeerPart, plan: OverlayPlan, path: PeerPath | None, *, able: bool) -> str:
    """The higher one where IPv4 and IPv6 go different ways; empty: the peer is not reached.

    `able`: a tunnel to it comes about.
    """
    if part.refused or not part.routes or path is None or (path.rung.encrypted and not able):
        return ""
    rows = [transport_of(route, path, plan.state.devices) for route in part.routes]
    return min(rows, key=lambda row: row.preference).name


def peer_statuses(
    view: View,
    plan: OverlayPlan,
    *,
    heard_s: Mapping[str, float],
    every: bool,
    unable: Mapping[str, str] = _NOBODY,
    readings: Mapping[str, PeerReading],
    now_ns: int,
) -> list[PeerStatus]:
    """Every other node, sorted by name.

    `heard_s`: seconds since a peer's last message, by uid, as far as remembered.
    `every`: also what was removed from the cluster. `unable`: as `unable_peers` tells them.
    `readings`: of tunnels' devices, by uid, at `now_ns` of the wall clock.
    """
    found = [
        _peer_status(
            uid,
            view,
            plan,
            unable,
            heard_s=_rounded(heard_s.get(uid)),
            **peer_document(readings.get(uid), now_ns),
        )
        for uid, entry in view.snapshot.nodes.items()
        if uid != view.uid and (every or not entry.grant.tombstone)
    ]
    return sorted(found, key=lambda peer: (peer.name, peer.uid))


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)


def _underlay(part: PeerPart, path: PeerPath | None) -> Address | None:
    """The underlay address that our device sends to; None: no device of ours is used."""
    if part.fdb:
        return part.fdb[0].underlay
    proven = path is not None and part.routes and path.rung.proof is ProbeKind.SITE
    return path.underlay if path is not None and proven else None


def _peer_status(
    uid: str, view: View, plan: OverlayPlan, unable: Mapping[str, str], **heard: Any
) -> PeerStatus:
    entry = view.snapshot.nodes[uid]
    grant, presence = entry.grant, entry.presence
    nothing = "this node has no segment" if view.grant is not None else "this node has no grant"
    part, path = plan.parts.get(uid, PeerPart(refused=nothing)), view.paths.get(uid)
    tunnelled = path if path is not None and path.rung.encrypted and part.routes else None
    relay = view.snapshot.nodes.get(tunnelled.relay) if tunnelled is not None else None
    return PeerStatus(
        name=grant.name,
        uid=uid,
        state=_STATES.get(_kind(uid, view, plan, unable), "reached"),
        rung=_rung(part, plan, path, able=uid not in unable),
        endpoint=endpoint_text(tunnelled.endpoint)
        if tunnelled is not None and tunnelled.endpoint is not None
        else "",
        relay=relay.grant.name if relay is not None else "",
        devices=sorted({route.device for route in part.routes}),
        next_hops=sorted({str(route.next_hop) for route in part.routes}),
        underlay=str(_underlay(part, path) or ""),
        mtu_bytes=min((route.mtu_bytes for route in part.routes), default=None),
        segments=[str(prefix) for prefix in view.segments.get(uid, ())],
        addresses=[str(each) for each in presence.addresses] if presence is not None else [],
        sequence=presence.sequence if presence is not None else None,
        why=part.refused or (unable.get(uid, "") if tunnelled is not None else ""),
        without=[f"{prefix}: {reason}" for prefix, reason in part.without],
        **heard,
    )
