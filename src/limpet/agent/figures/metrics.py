"""Figures of the agent, for Prometheus; read when they are asked for, none is kept."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from limpet.agent.answers.segments import segment_states
from limpet.agent.answers.verbs import Admin
from limpet.agent.policies.slot import PolicySlot
from limpet.base.metrics.figures import Exposition, Figures, Values
from limpet.cni.verbs import Node
from limpet.datapath.loop import Account

if TYPE_CHECKING:  # a node on its own need not have a cluster's side in memory
    from limpet.agent.policies.keeper import Policies
    from limpet.agent.wiring import ClusterSide

_FIGURES = Figures("limpet_agent_")
_gauge, _gauges, _counter = _FIGURES.gauge, _FIGURES.gauges, _FIGURES.counter


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
            from limpet.agent.figures.cluster import of_cluster

            yield from of_cluster(self._cluster)
        if self._policies.policies is not None:
            yield from _of_policies(self._policies.policies)
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


def _of_policies(policies: Policies) -> Iterator[Metric]:
    part = policies.part
    yield from _gauges(
        ("isolated_pods", "Pods of the node that policies isolate.", len(part.compiled.pods)),
        (
            "policy_dropped_packets",
            "Packets that no policy allows, dropped since the table was made.",
            part.dropped_packets(),
        ),
        (
            "policies_troubled",
            "What is wrong with policies or with who tells them.",
            len(policies.problems),
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
