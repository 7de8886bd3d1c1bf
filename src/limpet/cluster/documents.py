"""What the cluster's nodes know of each other: grants from the cloud, presences from the nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from limpet.base.addresses import Address, Prefix


class Role(Enum):
    EDGE = "edge"
    CLOUD = "cloud"
    RELAY = "relay"


class DefaultCommunity(Enum):
    """What a node that is in no community shares with the other nodes of the edge."""

    ALL = "all"
    """One flat network."""
    NONE = "none"
    """Nothing: it talks to the cloud only."""


class Encryption(Enum):
    """Which pod traffic between nodes is encrypted."""

    BETWEEN_SITES = "between-sites"
    """What leaves a site: inside one, plain routes and VXLAN are used."""
    ALL = "all"
    """All of it: peers are reached through tunnels only, neighbours too."""


class TunnelBackend(Enum):
    """What makes the tunnels between nodes."""

    WIREGUARD = "wireguard"
    IPSEC = "ipsec"
    """IKEv2, by strongSwan."""


@dataclass(frozen=True, slots=True)
class ClusterKey:
    """A key that signs grants, and the former key's word for it."""

    public_key: bytes
    endorsement: bytes = b""
    """The former key's signature of this one; empty for a cluster's first key."""


@dataclass(frozen=True, slots=True)
class Network:
    """What holds for all of a cluster; signed by the cluster key, the higher generation counts."""

    cluster: str
    """Name of the cluster, chosen once."""
    generation: int
    revision: int
    """Of the whole cluster, at the time that this was made; grants count on the same scale."""
    keys: tuple[ClusterKey, ...]
    """All that the cluster has signed with, oldest first; the last one signs now."""
    pod_cidrs: tuple[Prefix, ...]
    """One for each family at most; segments are cut out of them."""
    segment_lengths: Mapping[int, int] = field(default_factory=lambda: {4: 24, 6: 64})
    """Prefix length of a segment by IP version."""
    service_cidrs: tuple[Prefix, ...] = ()
    vxlan_id: int = 1
    vxlan_port: int = 8472
    default_community: DefaultCommunity = DefaultCommunity.ALL
    segment_quota: int = 8
    """Segments of one family that one node may have."""
    encryption: Encryption = Encryption.BETWEEN_SITES
    tunnel_backend: TunnelBackend = TunnelBackend.WIREGUARD
    """Of the tunnels between nodes that share no community with another one."""
    community_backends: Mapping[str, TunnelBackend] = field(default_factory=dict)
    """By community: of the tunnels between its nodes, where it is not that of the network."""


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

    @property
    def prefixes(self) -> tuple[Prefix, ...]:
        """Everything that is reached through the node."""
        return self.segments + self.prefixes_behind


@dataclass(frozen=True, slots=True)
class Presence:
    """What a node says about itself; signed by the node's key, the higher sequence counts."""

    uid: str
    sequence: int
    boot_id: str
    """Of the kernel that runs it: two at once under one uid are two machines."""
    addresses: tuple[Address, ...] = ()
    """Of its links, where neighbours may reach it."""
    endpoints: tuple[tuple[Address, int], ...] = ()
    """Address and UDP port of its tunnel as seen from outside, or forwarded to it."""
    port: int = 0
    """UDP port of probes and of the neighbour exchange."""
    vtep_macs: Mapping[int, str] = field(default_factory=dict)
    """MAC of the VXLAN device by IP version of the underlay."""
    tunnel_port: int = 0
    """UDP port that its tunnel listens on; 0: it has no tunnel."""
    relay_tls_port: int = 0
    """TCP port where it relays packets in TLS connections; 0: it does not."""
    link_mtu_bytes: int = 1500


@dataclass(frozen=True, slots=True)
class Sealed:
    """A document as it was signed. The bytes are kept: a signature is of bytes, not of values."""

    body: bytes
    signature: bytes
    """Ed25519 over a context that names the kind of document, and the body."""


@dataclass(frozen=True, slots=True)
class NodeEntry:
    """A node's grant with its presence: the unit of exchange, so that both can be checked."""

    grant: Grant
    sealed_grant: Sealed
    presence: Presence | None = None
    sealed_presence: Sealed | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The network, and the entry of every node by its uid. Every part has been checked."""

    network: Network | None = None
    sealed_network: Sealed | None = None
    nodes: Mapping[str, NodeEntry] = field(default_factory=dict)

    @property
    def revision(self) -> int:
        """The highest that anything in it was made at."""
        known = [entry.grant.revision for entry in self.nodes.values()]
        return max([*known, self.network.revision if self.network else 0])
