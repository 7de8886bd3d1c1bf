"""Figures of a node's part in its cluster: peers, tunnels, relays, Services."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from limpet.agent.answers.cluster import tunnel_statuses
from limpet.agent.answers.peers import count_silent, peer_kinds
from limpet.agent.answers.services import count_left_out
from limpet.agent.figures.table import CLUSTER, PREFIX, RELAY, SERVICES
from limpet.base.metrics.figures import Figures, Values
from limpet.cluster.keys import key_name
from limpet.cluster.kinds.network import signing_keys
from limpet.cluster.topology import transports
from limpet.datapath.tunnel.traffic.report import unable_peers

if TYPE_CHECKING:  # in memory only where Services are on, or the node is a relay
    from limpet.agent.nat_traversal import NatTraversal
    from limpet.agent.services import ServiceSide
    from limpet.agent.wiring import ClusterSide
    from limpet.datapath.together.peer_parts import PeerParts

_FIGURES = Figures(PREFIX, CLUSTER, SERVICES, RELAY)
_make, _each = _FIGURES.make, _FIGURES.each
_TUNNEL_PEERS = {"known": "peers", "session": "sessions", "active": "active"}
_KINDS = (*transports.TRANSPORTS, "unreached", "apart")


def of_cluster(cluster: ClusterSide) -> Iterator[Metric]:
    """Figures of a node that is, or was, in a cluster."""
    membership, peer_parts, state = cluster.membership, cluster.peer_parts, cluster.session.state
    known = membership.replica.known
    mine = peer_parts.peers.view.segments.get(membership.uid, ())
    yield from _of_peers(cluster)
    yield from _each(
        ("links", len(peer_parts.own.links)),
        ("segments", len(mine)),
        ("snapshot_revision", known.revision),
        ("disk_trouble", bool(membership.replica.file.trouble)),
        ("controller_connected", state.connected),
        ("controller_refuses", bool(state.refused or state.segment_refused)),
        ("removed", membership.removed),
        ("cloned", membership.cloned),
        ("peer_claims", len(peer_parts.overlay.planned.claims)),
        ("forged_packets", peer_parts.overlay.forged_packets()),
    )
    yield _make("cluster_key_info", {(key_name(signing_keys(known)[-1]),): 1})
    yield _make(
        "former_key_documents", {(): sum(each.count for each in membership.replica.alarms.all())}
    )
    yield from _of_tunnels(peer_parts)
    yield from _of_relays(cluster.nat_traversal)
    if cluster.kubernetes.services is not None:
        yield from _of_services(cluster.kubernetes.services)
    for name, counters in (
        ("messages_total", cluster.courier),
        ("probes_total", cluster.probing),
        ("exchange_total", cluster.exchange),
        ("offers_total", membership.replica),
    ):
        counts: Values = {(key,): count for key, count in counters.counters.items()}
        yield _make(name, counts)


def _of_peers(cluster: ClusterSide) -> Iterator[Metric]:
    peer_parts = cluster.peer_parts
    kinds = peer_kinds(
        peer_parts.peers.view,
        peer_parts.overlay.planned,
        unable_peers(peer_parts.tunnels, time.monotonic()),
    )
    counts = dict.fromkeys(_KINDS, 0)
    trips_s: dict[str, list[float]] = defaultdict(list)
    measured_s = cluster.probing.round_trips_s()
    for uid, kind in kinds.items():
        counts[kind] += 1
        if kind in transports.TRANSPORTS and uid in measured_s:
            trips_s[kind].append(measured_s[uid])
    yield _make("peers", {(kind,): count for kind, count in counts.items()})
    yield _make("silent_peers", {(): count_silent(kinds, cluster.probing.reach.silent)})
    found: Values = {
        (rung, quantile): of(each)
        for rung, each in trips_s.items()
        for quantile, of in (("0.5", statistics.median), ("1", max))
    }
    yield _make("peer_round_trip_seconds", found)


def _of_tunnels(peer_parts: PeerParts) -> Iterator[Metric]:
    found = [each for each in tunnel_statuses(peer_parts) if each is not None]
    made = [each for each in found if each.backend]
    yield _make(
        "tunnel_info", {(each.backend, each.version): 1 for each in made} or {("none", ""): 1}
    )
    yield _make("tunnel_trouble", {(): any(each.problem for each in found)})
    yield _make(
        "tunnel_peers",
        {
            (state,): sum(getattr(each, key) for each in found)
            for state, key in _TUNNEL_PEERS.items()
        },
    )
    yield _make(
        "tunnel_bytes_total",
        {
            (direction,): sum(getattr(each, f"{direction}_bytes") for each in found)
            for direction in ("received", "sent")
        },
    )


def _of_relays(nat: NatTraversal) -> Iterator[Metric]:
    """Relays that the node may use, and the one that it is."""
    answering = [each.answers for each in nat.relays.report().relays]
    yield _make(
        "relays",
        {
            ("answering",): sum(answering),
            ("silent",): len(answering) - sum(answering),
        },
    )
    service, server = nat.role.service, nat.role.server
    if not service.has_role:
        return
    said = service.report()
    yield from _each(
        ("relay_active", said.active),
        ("relay_trouble", bool(said.trouble)),
        ("relay_pairs", len(said.pairs)),
        ("relay_tls_nodes", len(server.report().nodes) if server is not None else 0),
    )
    yield _make(
        "relay_packets_total",
        {(outcome,): count for outcome, count in said.packets.items()},
    )
    yield _make("relay_events_total", {(what,): count for what, count in service.counters.items()})


def _of_services(services: ServiceSide) -> Iterator[Metric]:
    yield from _each(
        ("services", len(services.catalog)),
        ("service_elements", services.part.count),
        ("services_troubled", len(services.part.troubles)),
        ("services_left_out", count_left_out(services)),
        ("doubted_nodes", len(services.part.here.silent)),
        ("doubted_pods", len(services.part.here.gone)),
        ("services_connected", services.source.is_connected),
    )
