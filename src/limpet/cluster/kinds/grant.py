"""What the cloud says about a node; signed by the cluster key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from limpet.base.addresses import Prefix
from limpet.cluster.documents import ByCluster, Head, Kind, Lookup
from limpet.cluster.keys import uid_of
from limpet.cluster.kinds.fields import by_version, bytes_of, known_fields, known_words, prefixes
from limpet.cluster.kinds.network import cluster_keys, revoked_keys

ZONE_LABEL = "topology.kubernetes.io/zone"
"""Zone label of a Node. Source: kubernetes.io/docs/reference/labels-annotations-taints."""


class Role(Enum):
    EDGE = "edge"
    CLOUD = "cloud"
    RELAY = "relay"
    FLANNEL = "flannel"
    """Run by flannel: it speaks VXLAN alone, and the cluster says what there is to know of it."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What the cloud says about a node; signed by the cluster key.

    It does not expire: it is replaced by a higher generation, and revoked by a tombstone, which
    nothing replaces.
    """

    uid: str
    """Names the node for ever: it is made of its public key (`cluster.seal.uid_of`)."""
    name: str
    public_key: bytes
    """Ed25519, 32 bytes; what the node signs its presence with."""
    generation: int
    revision: int
    segments: tuple[Prefix, ...] = ()
    communities: tuple[str, ...] = ()
    roles: frozenset[Role] = frozenset({Role.EDGE})
    prefixes_behind: tuple[Prefix, ...] = ()
    """Other networks that are reached through the node."""
    labels: Mapping[str, str] = field(default_factory=dict)
    supersedes: tuple[str, ...] = ()
    """Uids that held some of the segments before."""
    tombstone: bool = False
    vtep_macs: Mapping[int, str] = field(default_factory=dict)
    """MACs of VXLAN devices that it has brought along from before, by IP version of the underlay;
    that which is made of its uid is its own without a word."""
    era: int = 0
    """Number of the cluster's key that has signed it."""

    @property
    def signed_at(self) -> tuple[int, int]:
        """When the cluster did, to compare with another grant's: a thief of a former key of the
        cluster signs whatever revision it likes, but in no later era."""
        return self.era, self.revision

    @property
    def prefixes(self) -> tuple[Prefix, ...]:
        """Everything that is reached through the node."""
        return self.segments + self.prefixes_behind

    @property
    def zone(self) -> str:
        """As its label says, by which Services choose endpoints; empty: it has none."""
        return self.labels.get(ZONE_LABEL, "")

    @property
    def is_flannel(self) -> bool:
        """It has no agent of ours: it answers no probe, and signs nothing."""
        return Role.FLANNEL in self.roles


def _parse(found: dict[str, Any]) -> Grant:
    return Grant(
        **{
            **known_fields(Grant, found),
            "public_key": bytes_of(found["public_key"]),
            "segments": prefixes(found["segments"]),
            "communities": tuple(found["communities"]),
            "roles": known_words(Role, found["roles"]),
            "prefixes_behind": prefixes(found["prefixes_behind"]),
            "supersedes": tuple(found["supersedes"]),
            "vtep_macs": by_version(found.get("vtep_macs", {})),
        }
    )


def _signers(grant: Grant, known: Lookup) -> tuple[bytes, ...]:
    if grant.uid != uid_of(grant.public_key):
        raise ValueError(f"uid {grant.uid} of {grant.name} is not its key's")
    return cluster_keys(grant, known)


def _renewed(grant: Grant, generation: int, next_revision: Callable[[], int]) -> Grant:
    return replace(grant, generation=generation, revision=next_revision())


def _withdrawn(forged: Grant, revision: int) -> Grant:
    """A tombstone under its uid: the name that it gave itself may be another's."""
    return Grant(forged.uid, forged.uid, forged.public_key, 1, revision, tombstone=True)


GRANT = Kind(
    "grant",
    _parse,
    signers=_signers,
    head=lambda grant: Head(grant.uid, grant.generation, grant.tombstone, grant.era),
    revoked=revoked_keys,
    by_cluster=ByCluster(_renewed, _withdrawn, of_one_node=True),
    unsaid={"vtep_macs": {}, "era": 0},
)


def key_of_node(uid: str, known: Lookup) -> tuple[bytes, ...]:
    """The key that signs what the node says of its pods; none: flannel's nodes say nothing."""
    grant = known.value(GRANT.name, uid)
    return (grant.public_key,) if grant is not None and not grant.is_flannel else ()
