"""What neighbours tell each other about what they know of the cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from limpet.cluster.documents import Sealed

BUCKETS = 256
"""Nodes are compared in groups, by a hash of the uid."""
NONCE_BYTES = 8

Pair = tuple[Sealed, Sealed | None]
"""A grant and its node's presence."""


class GrantRank(NamedTuple):
    """Of two grants of a node the higher one counts, as `cluster.merge` has it."""

    tombstone: bool
    generation: int
    digest: int
    """32 bits."""


class PresenceRank(NamedTuple):
    """Of two presences of a node the higher one counts, as `cluster.merge` has it."""

    sequence: int
    digest: int
    """32 bits."""


NO_PRESENCE = PresenceRank(0, 0)


class NetworkRank(NamedTuple):
    generation: int
    digest: int
    """32 bits."""


NO_NETWORK = NetworkRank(0, 0)


class Item(NamedTuple):
    """What one knows of a node."""

    uid: str
    grant: GrantRank
    presence: PresenceRank


@dataclass(frozen=True, slots=True)
class Digest:
    """All that one knows, in little: the other answers with a listing."""

    nonce: bytes
    network: NetworkRank
    buckets: tuple[int, ...]
    """32 bits for each of `BUCKETS`."""


@dataclass(frozen=True, slots=True)
class Listing:
    """All that one knows of the nodes in some buckets, in answer to a digest."""

    echo: bytes
    """The digest's nonce: who knows it is where the digest was sent to."""
    nonce: bytes
    network: NetworkRank
    more: bool
    """Other buckets differ too: compare again."""
    buckets: frozenset[int]
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class Want:
    """What one lacks, in answer to a listing."""

    echo: bytes
    """The listing's nonce."""
    network: bool
    uids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Push:
    """What the other may lack."""

    pairs: tuple[Pair, ...] = ()
    network: Sealed | None = None


Message = Digest | Listing | Want | Push

OVERHEAD_BYTES = 124
"""Of a datagram beside its body."""
GOOD_BODY_BYTES = 1_108
"""Of a body that no path has to fragment: a datagram in 1,280 bytes of IPv6. Source: RFC 8200."""
DIGEST_BYTES = NONCE_BYTES + 12 + 4 * BUCKETS
LISTING_BYTES, ITEM_BYTES = 2 * NONCE_BYTES + 13 + BUCKETS // 8, 40
WANT_BYTES, UID_BYTES = NONCE_BYTES + 1, 15
_SEALED_BYTES = 66


def datagram_bytes(message: Message) -> int:
    return OVERHEAD_BYTES + body_bytes(message)


def body_bytes(message: Message) -> int:
    """Size of the message's body on the wire."""
    match message:
        case Digest():
            return DIGEST_BYTES
        case Listing():
            return LISTING_BYTES + ITEM_BYTES * len(message.items)
        case Want():
            return WANT_BYTES + UID_BYTES * len(message.uids)
        case Push():
            network = message.network
            size = 0 if network is None else 1 + _SEALED_BYTES + len(network.body)
            return size + sum(map(pair_bytes, message.pairs))


def pair_bytes(pair: Pair) -> int:
    """What a pair adds to a push."""
    return 1 + sum(_SEALED_BYTES + len(sealed.body) for sealed in pair if sealed is not None)
