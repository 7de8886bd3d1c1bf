"""Policies, pods and namespaces as values.

Source: k8s.io/api/networking/v1/types.go, NetworkPolicySpec.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from limpet.base.addresses import Address, Prefix
from limpet.policies.labels import NAMESPACE_NAME_LABEL, Labels, Selector

Direction = Literal["ingress", "egress"]
Protocol = Literal["tcp", "udp", "sctp"]
PROTOCOLS: tuple[Protocol, ...] = ("tcp", "udp", "sctp")


class Key(NamedTuple):
    """Names a policy, or a pod."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class PodPeer:
    """Pods that are chosen by labels. Without a `namespaces`: those of the policy's namespace."""

    pods: Selector = Selector()
    namespaces: Selector | None = None


@dataclass(frozen=True, slots=True)
class IpBlock:
    """The addresses of a prefix, but for those of others inside it."""

    prefix: Prefix
    excepted: tuple[Prefix, ...] = ()


@dataclass(frozen=True, slots=True)
class PortSpan:
    """Ports from the first to the last of one protocol."""

    protocol: Protocol
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class NamedPort:
    """A port that the receiving pod gives a name to."""

    protocol: Protocol
    name: str


@dataclass(frozen=True, slots=True)
class PolicyRule:
    """Something is allowed: what is of one of the peers and for one of the ports."""

    peers: tuple[PodPeer | IpBlock, ...] = ()
    """Empty: everybody."""
    ports: tuple[PortSpan | NamedPort, ...] = ()
    """Empty: all ports of all protocols."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Pods that it selects are isolated in its directions; its rules allow."""

    key: Key
    pods: Selector
    directions: frozenset[Direction]
    ingress: tuple[PolicyRule, ...] = ()
    egress: tuple[PolicyRule, ...] = ()

    def rules(self, direction: Direction) -> tuple[PolicyRule, ...]:
        return self.ingress if direction == "ingress" else self.egress

    @property
    def parts(self) -> int:
        """How many things it says: rules, ports of theirs, and demands on labels; without
        ipBlocks, each of which is looked at once."""
        peers = (
            _demands(peer)
            for rule in (*self.ingress, *self.egress)
            for peer in rule.peers
            if isinstance(peer, PodPeer)
        )
        rules = sum(1 + len(rule.ports) for rule in (*self.ingress, *self.egress))
        return self.pods.demands + rules + sum(peers)

    def may_select(self, pod: PolicyPod) -> bool:
        """Also one whose labels nobody has told yet."""
        mine = self.key.namespace == pod.key.namespace and not pod.host_network
        return mine and (pod.labels is None or self.pods.selects(pod.labels))


def _demands(peer: PodPeer) -> int:
    return 1 + peer.pods.demands + (0 if peer.namespaces is None else peer.namespaces.demands)


@dataclass(frozen=True, slots=True)
class PolicyPod:
    """A pod somewhere in the cluster."""

    key: Key
    addresses: tuple[Address, ...]
    labels: Labels | None
    """None: nobody has told them yet; then it may be any pod of its namespace."""
    ports: Mapping[NamedPort, int] = field(default_factory=dict)
    host_network: bool = False
    """It has the node's addresses: no policy applies to it, and no selector chooses it."""


@dataclass(frozen=True, slots=True)
class PolicyWorld:
    """All that policies are about, as it is known."""

    policies: Mapping[Key, Policy] = field(default_factory=dict)
    namespaces: Mapping[str, Labels] = field(default_factory=dict)
    """Labels of those that have any beside their name."""
    pods: Mapping[Key, PolicyPod] = field(default_factory=dict)

    def namespace_labels(self, namespace: str) -> Labels:
        return {**self.namespaces.get(namespace, {}), NAMESPACE_NAME_LABEL: namespace}
