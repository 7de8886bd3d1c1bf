"""What the cluster's nodes know of each other: grants from the cloud, presences from the nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from limpet.cluster.kinds.grant import Grant
from limpet.cluster.kinds.network import Network
from limpet.cluster.kinds.presence import Presence


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
