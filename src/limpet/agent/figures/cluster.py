"""Figures of a node's part in its cluster: peers, tunnels, relays, Services."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from limpet.agent.answers.cluster import tunnel_statuses
from limpet.agent.answers.peers import peer_kinds
from limpet.base.metrics.figures import Figures, Values
from limpet.cluster.keys import key_name
from limpet.cluster.kinds.network import signing_keys
from limpet.cluster.topology import transports
from limpet.datapath.tunnel.traffic.report import unable_peers

if TYPE_CHECKING:  # in memory only where Services are on, or the node is a relay
    from limpet.agent.nat_traversal import NatTraversal
    from limpet.agent.services import ServiceSide
    from limpet.agent.wiring import ClusterSide
    from limpet.datapath.peer_parts import PeerParts

_FIGURES = Figures("limpet_agent_")
_gauge, _gauges, _counter = _FIGURES.gauge, _FIGURES.gauges, _FIGURES.counter
_TUNNEL_PEERS = {"known": "peers", "session": "sessions", "active": "active"}
_KINDS = (*transports.TRANSPORTS, "unreached", "apart")


def of_cluster(cluster: ClusterSide) -> Iterator[Metric]:
    """Of a node that is, or was, in a cluster."""
    membership, peer_parts, state = cluster.membership, cluster.peer_parts, cluster.session.state
    known = membership.replica.known
    mine = peer_parts.peers.view.segments.get(membership.uid, ())
    yield from _of_peers(cluster)
    yield from _gauges(
        ("links", "Links to other nodes.", len(peer_parts.own.links)),
        ("segments", "Segments of the node.", len(mine)),
        (
            "snapshot_revision",
            "Highest revision of the cluster that is known here.",
            known.revision,
        ),
        (
            "disk_trouble",
            "1 while what is known cannot be written.",
            bool(membership.replica.file.trouble),
        ),
        ("controller_connected", "1 while the controller is.", state.connected),
        (
            "controller_refuses",
            "1 while the controller refuses what the node tells or asks, in words.",
            bool(state.refused),
        ),
        ("removed", "1 once the node was removed.", membership.removed),
        ("cloned", "1 once another machine has its identity.", membership.cloned),
        (
            "peer_claims",
            "Other nodes that claim what is not their own, such as another's MAC.",
            len(peer_parts.overlay.planned.claims),
        ),
        (
            "forged_packets",
            "Packets that no peer may send, dropped since the filter was put the last time.",
            peer_parts.overlay.forged_packets(),
        ),
    )
    yield _gauge(
        "cluster_key_info",
        "The key that signs for the cluster, in short.",
        {(key_name(signing_keys(known)[-1]),): 1},
        "key",
    )
    yield _gauge(
        "former_key_documents",
        "Documents that a revoked key of the cluster has signed, which somebody goes on telling.",
        {(): sum(each.count for each in membership.replica.alarms.all())},
    )
    yield from _of_tunnels(peer_parts)
    yield from _of_relays(cluster.nat_traversal)
    if cluster.kubernetes.services is not None:
        yield from _of_services(cluster.kubernetes.services)
    for name, text, counters in (
        ("messages", "Datagrams of other nodes, and what became of them.", cluster.courier),
        ("probes", "Probes by what was asked, and what became of them.", cluster.probing),
        ("exchange", "Messages of the exchange that were not answered.", cluster.exchange),
        ("offers", "Documents that were offered, by source and outcome.", membership.replica),
    ):
        counts: Values = {(key,): count for key, count in counters.counters.items()}
        yield _counter(name, text, counts, "outcome")


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
    yield _gauge(
        "peers",
        "Other nodes by how they are reached.",
        {(kind,): count for kind, count in counts.items()},
        "rung",
    )
    silent = cluster.probing.reach.silent
    yield _gauge(
        "silent_peers",
        "Other nodes that have a path and answer by none.",
        {(): sum(1 for uid in silent if kinds.get(uid) in transports.TRANSPORTS)},
    )
    found: Values = {
        (rung, quantile): of(each)
        for rung, each in trips_s.items()
        for quantile, of in (("0.5", statistics.median), ("1", max))
    }
    yield _gauge(
        "peer_round_trip_seconds",
        "Round trips of the paths in use, smoothed: the median of all peers, and the longest.",
        found,
        "rung",
        "quantile",
    )


def _of_tunnels(peer_parts: PeerParts) -> Iterator[Metric]:
    found = [each for each in tunnel_statuses(peer_parts) if each is not None]
    made = [each for each in found if each.backend]
    yield _gauge(
        "tunnel_info",
        "What makes the encrypted tunnels; none while there is no device.",
        {(each.backend, each.version): 1 for each in made} or {("none", ""): 1},
        "backend",
        "version",
    )
    yield _gauge(
        "tunnel_trouble",
        "1 while the node cannot have a tunnel that it should.",
        {(): any(each.problem for each in found)},
    )
    yield _gauge(
        "tunnel_peers",
        "Peers of the tunnel: all, those with a session, those with packets of pods just now.",
        {
            (state,): sum(getattr(each, key) for each in found)
            for state, key in _TUNNEL_PEERS.items()
        },
        "state",
    )
    yield _counter(
        "tunnel_bytes",
        "Encrypted bytes since the device and each peer were made.",
        {
            (direction,): sum(getattr(each, f"{direction}_bytes") for each in found)
            for direction in ("received", "sent")
        },
        "direction",
    )


def _of_relays(nat: NatTraversal) -> Iterator[Metric]:
    """Relays that the node may use, and the one that it is."""
    answering = [each["answers"] for each in nat.relays.report()["relays"]]
    yield _gauge(
        "relays",
        "Relays that the node may use.",
        {
            ("answering",): sum(answering),
            ("silent",): len(answering) - sum(answering),
        },
        "state",
    )
    service, server = nat.role.service, nat.role.server
    if not service.has_role:
        return
    said = service.report()
    pairs = said.get("pairs", ())
    yield from _gauges(
        ("relay_active", "1 while the node relays.", said["active"]),
        ("relay_trouble", "1 while the relay works badly or not at all.", bool(said["trouble"])),
        ("relay_pairs", "Pairs of nodes that are relayed.", len(pairs)),
        (
            "relay_tls_nodes",
            "Nodes that are served in TLS.",
            len(server.report()["nodes"]) if server is not None else 0,
        ),
    )
    yield _counter(
        "relay_packets",
        "Packets by what the kernel did with them, since the relay's table was put.",
        {(outcome,): count for outcome, count in said.get("packets", {}).items()},
        "outcome",
    )
    yield _counter(
        "relay_events",
        "Pairs, checks, refusals, and packets that were lost.",
        {(what,): count for what, count in service.counters.items()},
        "what",
    )


def _of_services(services: ServiceSide) -> Iterator[Metric]:
    yield from _gauges(
        ("services", "Services that are known.", len(services.catalog)),
        ("service_elements", "Elements of nftables for them.", services.part.count),
        (
            "services_troubled",
            "Services that are not served as they ask.",
            len(services.part.troubles),
        ),
        ("doubted_nodes", "Silent nodes whose endpoints rest.", len(services.part.here.silent)),
        ("doubted_pods", "Pods that are gone and rest.", len(services.part.here.gone)),
        (
            "services_connected",
            "1 while the API server tells what changes of Services.",
            services.source.is_connected,
        ),
    )
