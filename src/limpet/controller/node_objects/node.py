"""What is read of a Node of Kubernetes, as values. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import Protocol

import msgspec

from limpet.base.addresses import Address, Prefix, address_or_none
from limpet.cluster.kinds.network import Network
from limpet.cluster.segments import AddressSpace
from limpet.kubernetes.kinds.objects import Resource, Viewed

FLANNEL_PREFIX = "flannel.alpha.coreos.com/"


class NodeSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    pod_cidr: str = msgspec.field(default="", name="podCIDR")
    pod_cidrs: tuple[str, ...] = msgspec.field(default=(), name="podCIDRs")


class NodeAddress(msgspec.Struct, frozen=True):
    type: str = ""
    address: str = ""


class NodeStatus(msgspec.Struct, frozen=True):
    addresses: tuple[NodeAddress, ...] | None = None


class KubernetesNode(Viewed, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A Node as the API server has it."""

    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


REPLACE_LABEL = "limpet.node-restriction.kubernetes.io/replace"
"""Its value is the uid of the machine that was the Node and is gone: so it counts once. Kubelets
may set annotations of their own Nodes, but no such label (admission plugin NodeRestriction).
Source: kubernetes.io/docs/reference/labels-annotations-taints, node-restriction.kubernetes.io."""
FABEDGE_LABELS = ("fabedge/edge-community", "bocloud.com/edge-community")
"""How FabEdge's design spells membership: the label's value is the community's name.
Source: docs/edge-cni-design of github.com/FabEdge/fabedge."""
NODES = Resource("Node", "nodes", KubernetesNode)


@dataclass(frozen=True, slots=True)
class NodeObject:
    """What the controller looks at; the same while only heartbeats come."""

    name: str
    uid: str = ""
    """Uid of the object; a Node that is deleted and made again has another."""
    created_at: str = ""
    """RFC 3339, in UTC: earlier ones sort first."""
    labels: Mapping[str, str] = field(default_factory=dict)
    pod_cidrs: tuple[Prefix, ...] = ()
    unreadable_cidrs: tuple[str, ...] = ()
    addresses: tuple[Address, ...] = ()
    flannel: Mapping[str, str] = field(default_factory=dict)
    """flannel's annotations, by what follows its prefix."""


class KnownNodes(Protocol):
    """All Nodes, as they are now."""

    @property
    def objects(self) -> Mapping[str, NodeObject]: ...

    @property
    def listed(self) -> bool:
        """False: one that is missing may be there."""


@dataclass(frozen=True, slots=True)
class _NoNodes:
    objects: Mapping[str, NodeObject] = field(default_factory=dict)
    listed: bool = False


NO_NODES: KnownNodes = _NoNodes()


@dataclass(frozen=True, slots=True)
class NodeSource:
    """What is made of Kubernetes' Nodes, and the Nodes themselves."""

    from_nodes: bool = False
    """Segments are of `Node.spec.podCIDRs` where Kubernetes has handed them out; else all are the
    controller's."""
    own_cidrs: tuple[Prefix, ...] | None = None
    """What the controller grants from; None: all of the cluster's pod CIDRs."""
    nodes: KnownNodes = NO_NODES
    community_labels: tuple[str, ...] = ()
    """A node with one of these labels is in the community that its value names."""
    quarantine_s: float = 0.0

    def address_space(self, network: Network) -> AddressSpace:
        """Nothing of it is held."""
        return AddressSpace(network, self.quarantine_s, self.own_cidrs)


def looked_at(node: KubernetesNode) -> tuple[object, ...]:
    """All that `read_node` reads, which costs ten times as much: a heartbeat changes nothing of
    it."""
    metadata = node.metadata
    return (
        metadata.uid,
        metadata.creation_timestamp,
        metadata.labels,
        node.spec,
        node.status,
        _of_flannel(node),
    )


def read_node(node: KubernetesNode) -> NodeObject:
    """Names among the addresses are left out: nobody resolves them here."""
    prefixes, unreadable = [], []
    for text in node.spec.pod_cidrs or ((node.spec.pod_cidr,) if node.spec.pod_cidr else ()):
        try:
            prefixes.append(ip_network(text))
        except ValueError:
            unreadable.append(text)
    return NodeObject(
        node.metadata.name,
        node.metadata.uid,
        node.metadata.creation_timestamp or "",
        node.metadata.labels or {},
        tuple(prefixes),
        tuple(unreadable),
        tuple(
            filter(None, (address_or_none(each.address) for each in node.status.addresses or ()))
        ),
        _of_flannel(node),
    )


def _of_flannel(node: KubernetesNode) -> dict[str, str]:
    return {
        key.removeprefix(FLANNEL_PREFIX): value
        for key, value in (node.metadata.annotations or {}).items()
        if key.startswith(FLANNEL_PREFIX)
    }
