"""Policies that the controller has signed for all nodes, beside those of a person at this one.

Both hold together: a pod is isolated by either, and what either allows is allowed. Of two with one
name that of this node counts. The pods that labels choose are those of all nodes, which tell each
other of theirs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from ipaddress import ip_address
from pathlib import Path

from limpet.agent.policies.keeper import OwnPolicies
from limpet.agent.policies.told_pods import ToldPods
from limpet.agent.policies.words import UNHEARD
from limpet.base.addresses import Address, Prefix
from limpet.base.layered_map import differing
from limpet.base.timer import Timer
from limpet.cluster.documents import Source
from limpet.cluster.kinds import GRANT, PODS, POLICY
from limpet.cluster.kinds.pods import LabelledPod
from limpet.cluster.membership import Membership
from limpet.cluster.replica import Change
from limpet.datapath.loop import Loop
from limpet.datapath.node.pod.attachment import Attachment
from limpet.policies.heard import ReadPolicies, closing_policies
from limpet.policies.parse import PolicyError, parse_namespace
from limpet.policies.policy import Key, Policy, PolicyPod, PolicyWorld

_SOON_S = 0.05
"""Pods that come together are told together."""
_EVERY_S = 2.5
"""Neighbours take no more than that of one document for long."""


class ClusterPolicies(OwnPolicies):
    """Runs on the event loop."""

    def __init__(
        self,
        loop: Loop,
        path: Path,
        attachments: Iterable[Attachment],
        bridge_mac: Callable[[str], str],
        membership: Membership,
    ) -> None:
        """`path`: of this node's own. Raises: LimpetError: it cannot be read."""
        super().__init__(loop, path, attachments, bridge_mac, lambda: membership.segments)
        self._membership = membership
        self._heard = ReadPolicies()
        self._heard.is_whole = membership.replica.has_heard_all
        self._problems: dict[str, str] = {}
        self._theirs = ToldPods()
        self._segments = membership.segments
        self._told_s = float("-inf")
        self._timer = Timer("labels of pods", self._tell)
        known = membership.replica.known
        for name in known.of(POLICY.name):
            self._read_policy(name)
        for name in known.of(PODS.name):
            self._read_pods(name)

    def start(self) -> None:
        self._tell_soon()

    async def stop(self) -> None:
        self._timer.stop()

    def pods_changed(self) -> None:
        self._tell_soon()

    def _world(self, local: Mapping[Key, PolicyPod]) -> PolicyWorld:
        own = super()._world(local)
        doubts = {} if self._heard.is_whole else closing_policies(local)
        return PolicyWorld(
            {**self._heard.policies, **own.policies, **doubts},
            {**self._heard.namespaces, **own.namespaces},
            self._theirs.with_own(own.pods),
        )

    def _elsewhere(self, world: PolicyWorld) -> Mapping[Key, Policy]:
        return self._heard.policies

    @property
    def unheard(self) -> str:
        return super().unheard or ("" if self._heard.is_whole else UNHEARD)

    @property
    def _source(self) -> tuple[str, list[str]]:
        problems = sorted([*self._heard.problems.values(), *self._problems.values()])
        return f"the cluster and {self._path}", [*filter(None, (self.unheard,)), *problems]

    # What the cluster says

    def hear(self, change: Change) -> None:
        names = [name for kind, name in change.keys if kind == POLICY.name]
        others = self._pods_touched(change)
        for name in names:
            self._read_policy(name)
        if names:
            self._read_refused()
        for name in others:
            self._read_pods(name)
        is_whole = self._membership.replica.has_heard_all
        opens, self._heard.is_whole = is_whole and not self._heard.is_whole, is_whole
        if names or others or opens:
            self.part.wake("the cluster's policies were changed")
        mine = f"{self._membership.uid}/"
        if names or (
            change.source is not Source.SELF and any(name.startswith(mine) for name in others)
        ):
            self._tell_soon()  # also what was said before this node's disk was put back

    def _pods_touched(self, change: Change) -> list[str]:
        """Documents of pods that mean something else now: a node's new segment comes by another
        road than what it tells of the pods in it, and perhaps after that."""
        touched = {name for kind, name in change.keys if kind == PODS.name}
        if granted := {name for kind, name in change.keys if kind == GRANT.name}:
            before, self._segments = self._segments, self._membership.segments
            if before is not self._segments:  # also of who has lost one to another
                granted |= differing(before, self._segments)
            told = self._membership.replica.known.of(PODS.name)
            touched.update(name for name in told if name.partition("/")[0] in granted)
        return sorted(touched)

    def _read_policy(self, name: str) -> None:
        signed = self._membership.replica.known.value(POLICY.name, name)
        kind, _, rest = name.partition("/")
        document = None if signed is None else signed.document
        self._problems.pop(name, None)
        if kind == "Namespace":
            self._read_namespace(name, rest, document)
        elif document is None:
            self._heard.drop_policy(_key_of(rest))
        else:
            self._heard.put_policy(_key_of(rest), document)

    def _read_refused(self) -> None:
        """Policies for which there was no room: there may be now."""
        known = self._membership.replica.known.of(POLICY.name)
        for namespace in self._heard.closed_namespaces:
            self._heard.open_namespace(namespace)
            for name in known:
                kind, _, rest = name.partition("/")
                key = _key_of(rest)
                if (
                    kind != "Namespace"
                    and key.namespace == namespace
                    and key not in self._heard.policies
                ):
                    self._read_policy(name)

    def _read_namespace(self, name: str, namespace: str, document: object) -> None:
        """Labels that cannot be understood are those that it had."""
        if not isinstance(document, Mapping):
            self._heard.namespaces.pop(namespace, None)
            return
        try:
            self._heard.namespaces[namespace] = parse_namespace(document)[1]
        except PolicyError as error:
            self._problems[name] = f"Namespace {namespace}: {error}"

    def _read_pods(self, name: str) -> None:
        uid = name.partition("/")[0]
        if uid == self._membership.uid:
            return
        said = self._membership.replica.known.value(PODS.name, name)
        entry = self._membership.snapshot.nodes.get(uid)
        if said is None or entry is None or entry.grant.tombstone:
            self._theirs.put(name, {})
            return
        segments = self._membership.segments.get(uid, ())
        pods = (_pod_of(each, segments) for each in said.pods)
        self._theirs.put(name, {pod.key: pod for pod in pods})

    # What this node says

    def _tell_soon(self) -> None:
        if not self._timer.is_set:
            now_s = asyncio.get_running_loop().time()
            self._timer.set_in(max(_SOON_S, self._told_s + _EVERY_S - now_s))

    def _tell(self) -> None:
        """Where the cluster has no policy nobody asks for labels."""
        self._told_s = asyncio.get_running_loop().time()
        pods = self._own_pods().values() if self._heard.policies else ()
        self._membership.announce_pods(
            LabelledPod(
                *pod.key, tuple(map(str, pod.addresses)), dict(sorted((pod.labels or {}).items()))
            )
            for pod in pods
        )


def _key_of(name: str) -> Key:
    namespace, _, rest = name.partition("/")
    return Key(namespace, rest)


def _pod_of(told: LabelledPod, segments: Iterable[Prefix]) -> PolicyPod:
    """A node tells of addresses of its own segments only."""
    addresses: tuple[Address, ...] = tuple(
        each
        for each in map(ip_address, told.addresses)
        if any(each.version == own.version and each in own for own in segments)
    )
    return PolicyPod(Key(told.namespace, told.name), addresses, told.labels)
