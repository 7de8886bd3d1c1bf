"""IPsec tunnels as the IKE daemon (strongSwan) has them, and what should become of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from limpet.base.addresses import Endpoint, Prefix

IPSEC_IF_ID = 0x6C696D08
"""What tells that interface's SAs and policies from those of others."""
OLDEST_IPSEC = (5, 9)
"""strongSwan whose VICI says all that is asked here."""


@dataclass(frozen=True, slots=True)
class IpsecIdentity:
    """Who the node is in IKE: its cluster's certificate for it."""

    uid: str
    private_key: bytes = field(repr=False)
    """PEM (PKCS #8), Ed25519."""
    certificate: bytes
    """PEM; names the uid."""
    authority: bytes
    """PEM: the cluster's CA, the only one that is believed."""


@dataclass(frozen=True, slots=True)
class IpsecPeer:
    """A peer as its connection is loaded into the daemon."""

    public_key: bytes
    """What the tunnel's plan names it by."""
    uid: str = ""
    """What its certificate names."""
    allowed: frozenset[Prefix] = frozenset()
    endpoint: Endpoint | None = None
    """None: the peer has to begin."""
    generation: int = 0
    """Counts its endpoints: what was made for an earlier one is told by it."""


@dataclass(frozen=True, slots=True)
class ChildSa:
    uniqueid: int
    local: frozenset[Prefix] = frozenset()
    remote: frozenset[Prefix] = frozenset()
    received_bytes: int = 0
    sent_bytes: int = 0


@dataclass(frozen=True, slots=True)
class IkeSa:
    uniqueid: int
    public_key: bytes
    generation: int
    """Of the connection that it was made by."""
    established: bool
    initiator: bool
    remote: Endpoint
    spi: str
    """The initiator's: the same at both ends."""
    age_s: int = 0
    children: tuple[ChildSa, ...] = ()
    """Those that carry packets, the newest last."""


# What the daemon is told to do with a peer's tunnel.


@dataclass(frozen=True, slots=True)
class Initiate:
    """Begin, by a new IKE_SA if there is none of this generation; with these prefixes only where
    some are named."""

    public_key: bytes
    prefixes: frozenset[Prefix] = frozenset()


@dataclass(frozen=True, slots=True)
class EndIke:
    uniqueid: int


@dataclass(frozen=True, slots=True)
class EndChild:
    uniqueid: int


IpsecAction = Initiate | EndIke | EndChild


@dataclass(frozen=True, slots=True)
class Care:
    """What is remembered of a peer between two looks at its tunnel."""

    peer: IpsecPeer
    first: bool
    """This end begins; the other only after it has waited for this one in vain."""
    target: Endpoint | None = None
    """An endpoint that is new to the plan and that no IKE_SA has reached yet."""
    lacking: frozenset[Prefix] = frozenset()
    """Prefixes that were not carried when it was tried last."""
    tries: int = 0
    due_s: float = 0.0
    """When it is tried next."""
