"""The place of network policies in an agent: empty until there are any."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import structlog

from limpet.agent.settings import Settings
from limpet.agent.status.said import Said
from limpet.base.errors import KernelError, LimpetError
from limpet.base.faults import noted
from limpet.base.ownership import (
    KUBERNETES_POLICIES,
    NFT_POLICY_SPARE_TABLE,
    NFT_POLICY_TABLE,
    OWN_POLICIES,
    POLICY_SOCKET,
)
from limpet.base.process.lifetime import KEPT_DESCRIPTORS
from limpet.datapath.loop import Loop
from limpet.datapath.node.part import NodePart
from limpet.datapath.node.pod.attachment import Attachment

if TYPE_CHECKING:  # a node without policies, or on its own, need not have them in memory
    from limpet.agent.policies.keeper import Policies
    from limpet.cluster.membership import Membership
    from limpet.cluster.replica import Change

_log = structlog.get_logger("policy")

POLICY_KIND = "policy"
"""The kind of the cluster's documents. A node on its own does without `limpet.cluster.kinds`."""
VERBS = ("policy.apply", "policy.delete", "policy.list", "policy.show", "policy.judge", "pod.label")
_TABLES = [
    (family, name)
    for family in ("inet", "bridge")
    for name in (NFT_POLICY_TABLE, NFT_POLICY_SPARE_TABLE)
]


class PolicySlot:
    """Runs on the event loop."""

    def __init__(
        self,
        loop: Loop,
        node_part: NodePart,
        settings: Settings,
        attachments: Iterable[Attachment],
        membership: Membership | None,
    ) -> None:
        """`membership`: None: the node is in no cluster."""
        self.policies: Policies | None = None
        self._loop = loop
        self._node_part = node_part
        self._settings = settings
        self._path = settings.folders.state_dir / OWN_POLICIES
        self._attachments = attachments
        self._membership = membership
        self._has_started = False

    def begin(self) -> None:
        """What is kept is in force when this returns, and nothing else. Raises: LimpetError."""
        if (
            self._settings.policies.mode == "on"
            or self._path.exists()
            or self._cluster_may_have_some
            or self._some_hold_for_nobody()
        ):
            self._loop.run("start", self.open().part)

    @property
    def _cluster_may_have_some(self) -> bool:
        if self._membership is None:
            return False
        replica = self._membership.replica
        return bool(replica.known.of(POLICY_KIND)) or not replica.has_heard_all

    @property
    def _waits_to_join(self) -> bool:
        return self._membership is None and self._settings.joins_by_itself

    def _some_hold_for_nobody(self) -> bool:
        """Policies of an earlier agent hold in the kernel, and nothing follows them any more; else
        the socket of their tables is given up. Where the node waits to join a cluster they may be
        that one's, which will tell them again."""
        if self._waits_to_join:
            return False
        try:
            are_there = self._node_part.has_tables(_TABLES)
        except KernelError as error:
            _log.warning("policies of an earlier agent cannot be looked for", error=str(error))
            return False
        if not are_there:
            KEPT_DESCRIPTORS.give_up(POLICY_SOCKET)
        return are_there

    def hear(self, change: Change) -> None:
        """The cluster's documents changed: with its first policy there are policies here."""
        if self.policies is None and any(kind == POLICY_KIND for kind, _ in change.keys):
            with noted("opening network policies"):
                self.open().part.wake("the cluster has policies")
        if self.policies is not None:
            self.policies.hear(change)

    def start(self) -> None:
        self._has_started = True
        if self.policies is not None:
            self.policies.start()

    async def stop(self) -> None:
        if self.policies is not None:
            await self.policies.stop()

    def network_changed(self) -> None:
        if self.policies is not None:
            self.policies.network_changed()

    def open(self) -> Policies:
        """Raises: LimpetError."""
        if self.policies is None:
            self.policies = self._make()
            self._node_part.guards.join(self.policies.cover)
            if self._has_started:
                self.policies.start()
        return self.policies

    def _make(self) -> Policies:
        loop, pods, bridge_mac = self._loop, self._attachments, self._node_part.bridge_mac
        member = self._membership
        # Only now, and each only where it is meant: most nodes have no policies, and do without
        # what they take in memory.
        if self._settings.policies.mode == "on":
            # Only here: with those of a person no client of an API server is needed.
            from limpet.agent.policies.of_kubernetes import KubernetesPolicies

            return KubernetesPolicies(
                loop,
                self._settings.folders.state_dir / KUBERNETES_POLICIES,
                pods,
                bridge_mac,
                self._settings.source,
                node_segments=dict if member is None else lambda: member.segments,
                random=random.random,
            )
        if member is not None:
            # Only here: a node on its own does without the cluster's documents.
            from limpet.agent.policies.of_cluster import ClusterPolicies

            return ClusterPolicies(loop, self._path, pods, bridge_mac, member)
        # Only here, as above.
        from limpet.agent.policies.keeper import OwnPolicies

        return OwnPolicies(loop, self._path, pods, bridge_mac)

    @property
    def unheard(self) -> str:
        """As of its policies; empty also where there are none."""
        return "" if self.policies is None else self.policies.unheard

    def close(self) -> None:
        """What is in the kernel stays."""
        if self.policies is not None:
            self.policies.close()

    def pods_changed(self) -> None:
        if self.policies is not None:
            self.policies.pods_changed()
            self.policies.part.wake("pods were changed")

    async def answer(self, verb: str, arguments: dict[str, Any]) -> Said:
        """Raises: LimpetError."""
        if self.policies is None and self._waits_to_join:
            raise LimpetError(
                f"{verb.replace('.', ' ')}: this node has not joined its cluster yet, which tells "
                "what policies there are; what held here before holds until then (limpet status "
                "says what it waits for)"
            )
        return await self.open().answer(verb, arguments)
