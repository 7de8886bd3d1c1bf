"""Pods of a node with their labels, for policies of other nodes to select; signed by the node.

Told among nodes only, and only where the cluster has policies. A node's pods are dealt out to some
documents, so that one that changes does not bring all of them along.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Any

from limpet.base.addresses import Prefix
from limpet.base.bounds.members import (
    SEQUENCE,
    TOLD_PARTS,
    TOLD_POD_ADDRESSES,
    TOLD_PODS,
    TOLD_PODS_BODY,
)
from limpet.cluster.documents import Head, Kind
from limpet.cluster.kinds.fields import address_text, few, labels, name, text, whole
from limpet.cluster.kinds.grant import GRANT, key_of_node

PARTS = TOLD_PARTS.most


@dataclass(frozen=True, slots=True)
class LabelledPod:
    """Addresses are written shortest; whoever reads it takes those of the node's segments only."""

    namespace: str
    name: str
    addresses: tuple[str, ...]
    labels: Mapping[str, str]


def with_as_many_as_are_taken(pod: LabelledPod, segments: Collection[Prefix]) -> LabelledPod:
    """The addresses in the node's own segments first, where a pod in many networks has too many, as
    nobody believes others: with more than there may be, all of the document would be refused."""
    if len(pod.addresses) <= TOLD_POD_ADDRESSES.most:
        return pod

    def is_foreign(address: str) -> bool:
        return not any(ip_address(address) in each for each in segments)

    return replace(
        pod, addresses=tuple(sorted(pod.addresses, key=is_foreign)[: TOLD_POD_ADDRESSES.most])
    )


@dataclass(frozen=True, slots=True)
class LabelledPods:
    """The higher sequence counts."""

    uid: str
    part: int
    sequence: int
    pods: tuple[LabelledPod, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.uid}/{self.part}"


def _parse(found: dict[str, Any]) -> LabelledPods:
    pods = few(found["pods"], TOLD_PODS)
    return LabelledPods(
        text(found["uid"]),
        whole(found["part"], PARTS - 1),
        whole(found["sequence"], SEQUENCE.most),
        tuple(map(_pod, pods)),
    )


def _pod(found: Mapping[str, Any]) -> LabelledPod:
    return LabelledPod(
        name(found["namespace"]),
        name(found["name"]),
        tuple(address_text(each) for each in few(found["addresses"], TOLD_POD_ADDRESSES)),
        labels(found["labels"]),
    )


PODS = Kind(
    "pods",
    _parse,
    signers=lambda pods, known: key_of_node(pods.uid, known),
    head=lambda pods: Head(pods.name, pods.sequence),
    under=GRANT.name,
    among_nodes=True,
    most_bytes=TOLD_PODS_BODY.most,
)
