"""A network policy, or the labels of a namespace, that holds on every node; signed by the cluster.

What it means is said in `limpet.policies`; here it is a document as a person wrote it. One that is
withdrawn has none: unlike what has a tombstone it may come back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from limpet.cluster.documents import ByCluster, Head, Kind
from limpet.cluster.kinds.network import cluster_keys, revoked_keys


@dataclass(frozen=True, slots=True)
class SignedPolicy:
    """A signed policy, or its withdrawal; the higher revision counts."""

    name: str
    """Kind of the object, and its name: `NetworkPolicy/shop/web`, `Namespace/shop`."""
    revision: int
    """Revision of the whole cluster when this was made."""
    document: Mapping[str, Any] | None = None
    """As it was written; None: it was withdrawn."""
    era: int = 0
    """Number of the cluster's key that has signed it."""


def _parse(found: dict[str, Any]) -> SignedPolicy:
    document = found["document"]
    if document is not None and not isinstance(document, dict):
        raise ValueError("the document is no object")
    return SignedPolicy(found["name"], found["revision"], document, found.get("era", 0))


def _renewed(policy: SignedPolicy, _version: int, next_revision: Callable[[], int]) -> SignedPolicy:
    return replace(policy, revision=next_revision())


def _withdrawn(forged: SignedPolicy, revision: int) -> SignedPolicy:
    return SignedPolicy(forged.name, revision)


POLICY = Kind(
    "policy",
    _parse,
    signers=cluster_keys,
    head=lambda policy: Head(policy.name, policy.revision, era=policy.era),
    revoked=revoked_keys,
    by_cluster=ByCluster(_renewed, _withdrawn),
    kept_twice=True,
    unsaid={"era": 0},
)
