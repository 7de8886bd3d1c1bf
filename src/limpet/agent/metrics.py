"""Figures of the agent, for Prometheus; read when they are asked for, none is kept."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from limpet.agent.answers.cluster import tunnel_statuses
from limpet.agent.answers.peers import count_peers
from limpet.agent.answers.segments import segment_states
from limpet.agent.answers.verbs import Admin
from limpet.agent.policies.slot import PolicySlot
from limpet.base.metrics.figures import Exposition, Figures, Values
from limpet.cni.verbs import Node
from limpet.datapath.loop import Account
from limpet.datapath.tunnel.traffic.report import unable_peers

if TYPE_CHECKING:  # a node on its own need not have a cluster's side in memory
    from limpet.agent.services import ServiceSide
    from limpet.agent.wiring import ClusterSide
    from limpet.datapath.peer_parts import PeerParts

_FIGURES = Figures("limpet_agent_")
_gauge, _gauges, _counter = _FIGURES.gauge, _FIGURES.gauges, _FIGURES.counter
_TUNNEL_PEERS = {"known": "peers", "session": "sessions", "active": "active"}


class Metrics:
    """Of one agent; docs/metrics.md says what each figure means."""

    def __init__(
        self, node: Node, admin: Admin, cluster: ClusterSide | None, policies: PolicySlot
    ) -> None:
        self._node = node
        self._policies = policies
        self._admin = admin
        self._cluster = cluster
        self._started_s = time.monotonic()
        self.text = Exposition(self._collect).text

    def _collect(self) -> Iterator[Metric]:
        yield from self._of_node()
        if self._cluster is not None:
            yield from _of_cluster(self._cluster)
        if self._policies.policies is not None:
            part = self._policies.policies.part
            yield from _of_policies(len(part.compiled.pods), part.dropped_packets())
        yield from _of_rounds(self._node.node_part.accounts)

    def _of_node(self) -> Iterator[Metric]:
        node = self._node
        yield from _FIGURES.of_process(self._started_s)
        yield from _gauges(
            ("ready", "Whether pods can be started.", not self._admin.reasons_not_ready()),
            ("attachments", "Pod interfaces.", len(node.attachments)),
            (
                "pod_forged_packets",
                "Frames that a pod may not send, dropped since the table was put the last time.",
                node.node_part.guards.ports.dropped_packets(),
            ),
            (
                "findings",
                "Problems in the records of addresses.",
                sum(len(ledger.findings) for ledger in node.ledgers),
            ),
        )
        yield _gauge(
            "addresses",
            "Addresses of the node's segments by state; bound ones are absent pods'.",
            {
                (segment.prefix, state): getattr(segment, state)
                for segment in segment_states(node)
                for state in ("live", "bound", "resting", "free")
            },
            "segment",
            "state",
        )


def _of_policies(isolated_pods: int, dropped_packets: int) -> Iterator[Metric]:
    yield from _gauges(
        ("isolated_pods", "Pods of the node that policies isolate.", isolated_pods),
        (
            "policy_dropped_packets",
            "Packets that no policy allows, dropped since the table was made.",
            dropped_packets,
        ),
    )


def _of_rounds(accounts: Mapping[str, Account]) -> Iterator[Metric]:
    """Of each part of the loop."""
    for name, text, field in (
        ("rounds", "Rounds.", "rounds"),
        ("round_changes", "Changes that rounds made or tried.", "changes"),
        ("round_failures", "Changes that failed, in each round that tried them.", "failed"),
        ("round_seconds", "Time that rounds took.", "took_s"),
    ):
        values: Values = {(part,): getattr(account, field) for part, account in accounts.items()}
        yield _counter(name, text, values, "part")
    yield _gauge(
        "last_round_failures",
        "Changes that failed in the last round.",
        {(part,): len(account.failures) for part, account in accounts.items()},
        "part",
    )


def _of_cluster(cluster: ClusterSide) -> Iterator[Metric]:
    membership, peer_parts, state = cluster.membership, cluster.peer_parts, cluster.session.state
    mine = peer_parts.peers.view.segments.get(membership.uid, ())
    yield _gauge(
        "peers",
        "Other nodes by how they are reached.",
        {
            (rung,): count
            for rung, count in count_peers(
                peer_parts.peers.view,
                peer_parts.overlay.planned,
                unable_peers(peer_parts.tunnels, time.monotonic()),
            ).items()
        },
        "rung",
    )
    yield from _gauges(
        ("links", "Links to other nodes.", len(peer_parts.own.links)),
        ("segments", "Segments of the node.", len(mine)),
        (
            "snapshot_revision",
            "Highest revision of the cluster that is known here.",
            membership.replica.known.revision,
        ),
        (
            "disk_trouble",
            "1 while what is known cannot be written.",
            bool(membership.replica.file.trouble),
        ),
        ("controller_connected", "1 while the controller is.", state.connected),
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
    yield from _of_tunnels(peer_parts)
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


def _of_services(services: ServiceSide) -> Iterator[Metric]:
    yield from _gauges(
        ("services", "Services that are known.", len(services.catalog)),
        ("service_elements", "Elements of nftables for them.", services.part.count),
        (
            "services_troubled",
            "Services that are not served as they ask.",
            len(services.part.troubles),
        ),
        (
            "services_connected",
            "1 while the API server tells what changes of Services.",
            services.source.is_connected,
        ),
    )
