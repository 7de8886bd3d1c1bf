"""Values of IPsec: this node in IKE, peers' connections, SAs, and what to do about them."""

from __future__ import annotations

from dataclasses import dataclass, field

from limpet.base.addresses import Endpoint, Prefix

IPSEC_IF_ID = 0x6C696D08
"""Marks SAs and policies of our xfrm interface."""
OLDEST_IPSEC = (5, 9)
"""The oldest strongSwan whose VICI interface has all that is used here."""


@dataclass(frozen=True, slots=True)
class IpsecIdentity:
    """The node's identity in IKE: a certificate of its cluster."""

    uid: str
    private_key: bytes = field(repr=False)
    """PEM (PKCS #8), Ed25519."""
    certificate: bytes
    """PEM; names the uid. Only agents of before peers were told by their grants' keys look at it.
    """


@dataclass(frozen=True, slots=True)
class IpsecPeer:
    """A peer as its connection is loaded into the daemon."""

    public_key: bytes
    """The peer's tunnel key, by which plans name it."""
    identity_key: bytes = b""
    """Ed25519, of its grant, which the tunnel key is made of: the only one that proves the peer."""
    allowed: frozenset[Prefix] = frozenset()
    endpoint: Endpoint | None = None
    """None: the peer has to begin."""
    generation: int = 0
    """Counts the peer's planned endpoints: an SA made for an earlier one has a lower number."""


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
    """Generation of the connection that it was made by."""
    established: bool
    initiator: bool
    remote: Endpoint
    spi: str
    """The initiator's: the same at both ends."""
    age_s: int = 0
    children: tuple[ChildSa, ...] = ()
    """CHILD_SAs that carry packets, the newest last."""


# What the daemon is told to do with a peer's tunnel.


@dataclass(frozen=True, slots=True)
class Initiate:
    """Initiate a CHILD_SA for `prefixes` (empty: all of the peer's), and an IKE_SA for it if there
    is none of this generation."""

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
    """The keeper's memory of one peer between two looks at its SAs."""

    peer: IpsecPeer
    first: bool
    """This end initiates at once; the other end does so only after a second without an SA."""
    target: Endpoint | None = None
    """A newly planned endpoint that no IKE_SA has reached yet."""
    lacking: frozenset[Prefix] = frozenset()
    """Prefixes that no CHILD_SA carried at the last look."""
    tries: int = 0
    due_s: float = 0.0
    """When to try next (monotonic s)."""
    foreign_since_s: float | None = None
    """Since when a CHILD_SA has had a prefix that is not the peer's (monotonic s); None: none."""
