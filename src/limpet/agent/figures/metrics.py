"""Figures of the agent, for Prometheus; read when they are asked for, none is kept."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from limpet.agent.answers.verbs import Admin
from limpet.agent.figures.table import NODE, POLICIES, PREFIX
from limpet.agent.happenings.segments import segment_states
from limpet.agent.policies.slot import PolicySlot
from limpet.base.metrics.figures import Exposition, Figures, Values
from limpet.base.metrics.room_on_disk import ROOM_ON_DISK, room_on_disk
from limpet.base.settings import Folders
from limpet.cni.verbs import Node
from limpet.datapath.loop import Account

if TYPE_CHECKING:  # a node on its own need not have a cluster's side in memory
    from limpet.agent.policies.keeper import Policies
    from limpet.agent.wiring import ClusterSide

_FIGURES = Figures(PREFIX, ROOM_ON_DISK, NODE, POLICIES)
_make, _each = _FIGURES.make, _FIGURES.each


class Metrics:
    """Figures of one agent."""

    def __init__(
        self,
        node: Node,
        admin: Admin,
        cluster: ClusterSide | None,
        policies: PolicySlot,
        folders: Folders,
    ) -> None:
        self._node = node
        self._folders = {"state": folders.state_dir, "addresses": folders.data_dir}
        self._policies = policies
        self._admin = admin
        self._cluster = cluster
        self._started_s = time.monotonic()
        self.text = Exposition(self._collect).text

    def _collect(self) -> Iterator[Metric]:
        yield from self._of_node()
        if self._cluster is not None:
            # Only here: a node on its own need not have a cluster's side in memory.
            from limpet.agent.figures.cluster import of_cluster

            yield from of_cluster(self._cluster)
        if self._policies.policies is not None:
            yield from _of_policies(self._policies.policies)
        yield from _of_rounds(self._node.node_part.accounts)

    def _of_node(self) -> Iterator[Metric]:
        node = self._node
        yield from _FIGURES.of_process(self._started_s)
        yield from room_on_disk(_FIGURES, self._folders)
        yield from _each(
            ("ready", not self._admin.reasons_not_ready()),
            ("attachments", len(node.attachments)),
            ("pod_forged_packets", node.node_part.guards.ports.dropped_packets()),
            ("findings", sum(len(ledger.findings) for ledger in node.ledgers)),
        )
        yield _make(
            "addresses",
            {
                (segment.prefix, state): getattr(segment, state)
                for segment in segment_states(node)
                for state in ("live", "bound", "resting", "free")
            },
        )


def _of_policies(policies: Policies) -> Iterator[Metric]:
    part = policies.part
    yield from _each(
        ("isolated_pods", len(part.compiled.pods)),
        ("policy_dropped_packets", part.dropped_packets()),
        ("policies_troubled", len(policies.problems)),
    )


def _of_rounds(accounts: Mapping[str, Account]) -> Iterator[Metric]:
    """Figures of the rounds of each part of the loop."""
    for name, field in (
        ("rounds_total", "rounds"),
        ("round_changes_total", "changes"),
        ("round_failures_total", "failed"),
        ("round_seconds_total", "took_s"),
    ):
        values: Values = {(part,): getattr(account, field) for part, account in accounts.items()}
        yield _make(name, values)
    yield _make(
        "last_round_failures",
        {(part,): len(account.failures) for part, account in accounts.items()},
    )
