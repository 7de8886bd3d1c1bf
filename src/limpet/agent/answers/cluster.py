"""What a person may ask of the cluster at a node: the way to a pod, the peers, how all stands."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from ipaddress import ip_address
from typing import Any

from limpet.agent.answers.names import KnownNames, Meant, Names, own_pods_told
from limpet.agent.answers.own_pods import node_words
from limpet.agent.answers.path import (
    pairs_of,
    path_status,
    peer_between,
)
from limpet.agent.answers.peers import (
    count_partly_reached,
    count_peers,
    count_silent,
    node_at,
    peer_kinds,
    peer_statuses,
    ping_way,
    probe_statuses,
    shared_endpoints,
)
from limpet.agent.answers.services import ServiceAdmin, services_status
from limpet.agent.status.cluster import (
    ApiServerStatus,
    ClusterStatus,
    ControllerStatus,
    LinkStatus,
    PeerClaim,
    PeerRound,
    ToldByFormerKey,
    TunnelStatus,
)
from limpet.agent.status.paths import PathAnswer, Peers
from limpet.agent.status.ping import PingAnswer, PingWay
from limpet.agent.status.services import ServiceWay
from limpet.agent.wiring import ClusterSide
from limpet.base.addresses import Address
from limpet.base.decoding import convert
from limpet.base.errors import LimpetError
from limpet.cloud.second_road.state import SecondRoad
from limpet.cloud.session import SessionState
from limpet.cluster.exchange.pod_lookup import PodLookup
from limpet.cluster.identity import load_identity
from limpet.cluster.keys import key_name
from limpet.cluster.kinds.network import signing_keys
from limpet.cni.verbs import Node
from limpet.datapath.together.peer_parts import PeerParts
from limpet.datapath.tunnel.traffic.report import tunnel_documents, unable_peers
from limpet.paths.explain import holder_of, name_of
from limpet.paths.measuring import Measured

_MOST_WAYS = 16
"""To endpoints of a Service."""
_PROBES = 4
"""One may be lost."""


class ClusterAdmin:
    """Answers from what the last round was planned with: what is said is what the kernel got."""

    def __init__(self, cluster: ClusterSide, node: Node) -> None:
        self._cluster = cluster
        self._node = node
        self.services = ServiceAdmin(cluster)
        known = KnownNames(
            lambda: cluster.peer_parts.peers.view,
            self.services.pods_called,
            self.services.way,
            self.services.way_called,
        )
        lookup = PodLookup(
            cluster.membership,
            cluster.courier,
            cluster.exchange.places,
            lambda namespace, name: own_pods_told(node_words(self._node).pods, namespace, name),
        )
        self.names = Names(cluster.membership, lookup, known)

    def read_controllers(self) -> ControllerStatus:
        """Whom to ask is read anew from the disk, where `limpet join --controller` has put it.

        Raises: LimpetError.
        """
        identity = load_identity(self._cluster.membership.identity.folder)
        if identity is None or identity.uid != self._cluster.membership.uid:
            raise LimpetError("read controllers: this node is another one now: restart the agent")
        self._cluster.session.use_controllers(identity.controllers)
        return session_status(self._cluster.session.state, now_s=time.monotonic())

    def status(self) -> ClusterStatus:
        """The cluster's part of `limpet status`."""
        cluster, membership = self._cluster, self._cluster.membership
        peer_parts, network, grant = cluster.peer_parts, membership.network, membership.grant
        tunnel, ipsec = tunnel_statuses(peer_parts)
        silent = frozenset(cluster.probing.reach.silent)
        kinds = peer_kinds(peer_parts.peers.view, peer_parts.overlay.planned, unable(peer_parts))
        return ClusterStatus(
            name=network.cluster if network is not None else "",
            node=grant.name if grant is not None else membership.identity.name,
            uid=membership.uid,
            granted=grant is not None,
            removed=membership.removed,
            cloned=membership.cloned,
            controller=session_status(cluster.session.state, now_s=time.monotonic()),
            api_server=api_server_status(cluster.kubernetes.api_server, now_s=time.monotonic()),
            revision=membership.replica.known.revision,
            segments=[str(each) for each in peer_parts.peers.view.segments.get(membership.uid, ())],
            pod_cidrs=[str(each) for each in network.pod_cidrs] if network is not None else [],
            vxlan_id=network.vxlan_id if network is not None else 0,
            vxlan_port=network.vxlan_port if network is not None else 0,
            encryption=network.encryption.value if network is not None else "",
            key=key_name(signing_keys(membership.replica.known)[-1]),
            rotations=len(signing_keys(membership.replica.known)) - 1,
            links=[
                LinkStatus(
                    ifname=link.ifname,
                    mtu_bytes=link.mtu_bytes,
                    addresses=[str(address) for address in link.addresses],
                )
                for link in peer_parts.own.links
            ],
            peers=count_peers(kinds),
            silent_peers=count_silent(kinds, silent),
            partly_reached_peers=count_partly_reached(
                kinds, silent, peer_parts.peers.view, peer_parts.overlay.planned
            ),
            claims=[
                PeerClaim(node=membership.name_of(uid), uid=uid, what=what)
                for uid, what in sorted(peer_parts.overlay.planned.claims.items())
            ],
            by_former_keys=[
                ToldByFormerKey(
                    by=membership.name_of(each.teller) if each.teller else "",
                    uid=each.teller,
                    what=f"{each.kind} {each.name}",
                    count=each.count,
                    last_s=round(time.monotonic() - each.at_s, 1),
                )
                for each in membership.replica.alarms.all()
            ],
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
            services=services_status(cluster.kubernetes.choice, cluster.kubernetes.services),
        )

    def why_no_segments(self) -> str:
        """In words, should the node have none."""
        membership, state = self._cluster.membership, self._cluster.session.state
        if membership.removed:
            return "this node was removed from the cluster"
        why = (
            state.segment_refused
            or state.refused
            or state.error
            or "the controller has not answered yet"
        )
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
            silent=frozenset(self._cluster.probing.reach.silent),
            unable=unable(peer_parts),
            readings=peer_parts.tunnels.readings_by_uid(),
            now_ns=time.time_ns(),
        )
        return Peers(peers=peers)

    async def path(self, arguments: Mapping[str, Any]) -> PathAnswer:
        """Between two words, each an address or what `Names` finds. Raises: LimpetError.

        `probe`: the node at the other end is asked as well.
        """
        words, peer_parts = node_words(self._node), self._cluster.peer_parts
        origin = await self._meant("path", str(arguments.get("origin", "")))
        target = await self._meant("path", str(arguments.get("target", "")), services=True)
        service = target.service
        targets = [target.addresses] if service is None else _in_rotation(service)
        pairs = [
            pair
            for each in targets
            for pair in pairs_of(origin.addresses, each, peer_parts.peers.view)
        ]
        words = replace(words, pods=(*words.pods, *origin.pods, *target.pods))
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
                unable(peer_parts),
                frozenset(self._cluster.probing.reach.silent),
            )
            for pair in pairs
        ]
        probes = [
            probe
            for uid, rounds in measured.items()
            for probe in probe_statuses(rounds, uid, peer_parts.peers.view.snapshot)
        ]
        nat = self._cluster.nat_traversal.relays.report().nat
        return PathAnswer(
            paths=paths, probes=probes, nat=nat, failed=peer_parts.failures, service=service
        )

    async def ping(self, arguments: Mapping[str, Any]) -> PingAnswer:
        """One round: every way to the node that is meant, and a packet to each address.

        `target`: a word that `Names` finds; `uid`, `pod` and `addresses`: what an earlier round
        has found.
        Raises: LimpetError.
        """
        # Here: it is a person's, and no other round needs it.
        from limpet.agent.answers.ping import ping_packets

        view = self._cluster.peer_parts.peers.view
        if "addresses" in arguments:
            uid, pod = (str(arguments.get(each, "")) for each in ("uid", "pod"))
            addresses: tuple[Address, ...] = tuple(map(ip_address, arguments["addresses"]))
        else:
            meant = await self._meant("ping", str(arguments.get("target", "")))
            addresses = meant.addresses
            holders = {meant.uid, *(holder_of(view, each) or "" for each in addresses)}
            underlay = node_at(view, addresses[0])
            uid = next((each for each in sorted(holders, reverse=True) if each), underlay)
            pod = next((str(each) for each in meant.pods), "")
        other = uid if uid != view.uid else ""
        (ways, why), packets = await asyncio.gather(self._ways(other), ping_packets(addresses))
        path = view.paths.get(other)
        return PingAnswer(
            node=name_of(view.snapshot, uid or None),
            uid=uid,
            pod=pod,
            addresses=[str(each) for each in addresses],
            rung=path.rung.name if path is not None else "",
            ways=ways,
            packets=packets,
            why=why,
        )

    async def _ways(self, uid: str) -> tuple[list[PingWay], str]:
        """And why there are none; of this node, and of no node, there are none."""
        if not uid:
            return [], ""
        try:
            measured = await self._cluster.probing.measure(uid)
        except LimpetError as error:  # a peer that is not probed
            return [], str(error)
        snapshot = self._cluster.peer_parts.peers.view.snapshot
        return [ping_way(each, snapshot) for each in measured], ""

    async def _meant(self, verb: str, word: str, *, services: bool = False) -> Meant:
        """Raises: LimpetError."""
        try:
            return await self.names.find(word, node_words(self._node).pods, services=services)
        except LimpetError as error:
            raise LimpetError(f"{verb}: {error}") from error

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


def _in_rotation(service: ServiceWay) -> list[tuple[Address, ...]]:
    """Addresses of endpoints that may be drawn, the first of them."""
    drawn = dict.fromkeys(each.address for each in service.endpoints if each.weight)
    return [(ip_address(each),) for each in list(drawn)[:_MOST_WAYS]]


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
        segment_refused=state.segment_refused,
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
        refuses=state.refuses,
        refused=state.refused,
        unusable=list(state.unusable),
        told=list(state.told),
        clock_ahead_s=round(state.clock_ahead_s),
    )


def tunnel_statuses(peer_parts: PeerParts) -> tuple[TunnelStatus, TunnelStatus | None]:
    """WireGuard's, and IPsec's where the cluster names it."""
    found = tunnel_documents(peer_parts.tunnels, peer_parts.watch, now_ns=time.time_ns())
    return convert((found["tunnel"], found["ipsec"]), tuple[TunnelStatus, TunnelStatus | None])


def unable(peer_parts: PeerParts) -> Mapping[str, str]:
    """Peers that have a path by a tunnel which does not come about, by uid, and why."""
    return unable_peers(peer_parts.tunnels, time.monotonic())
