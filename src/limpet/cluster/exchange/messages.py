"""What neighbours tell each other about what they know of the cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from limpet.cluster.documents import Sealed

BUCKETS = 256
"""Documents are compared in groups, by a hash of kind and name."""
NONCE_BYTES = 8


class Item(NamedTuple):
    """What one knows of a document. Of two with one mark the higher one counts, as merged."""

    mark: int
    """64 bits that stand for kind and name."""
    version: int
    """64 bits; the highest of them tells a tombstone."""
    digest: int
    """32 bits."""


@dataclass(frozen=True, slots=True)
class Digest:
    """All that one knows, in little: the other answers with a listing."""

    nonce: bytes
    buckets: tuple[int, ...]
    """32 bits for each of `BUCKETS`."""


@dataclass(frozen=True, slots=True)
class Listing:
    """All that one knows of the documents in some buckets, in answer to a digest."""

    echo: bytes
    """The digest's nonce: who knows it is where the digest was sent to."""
    nonce: bytes
    more: bool
    """Other buckets differ too: compare again."""
    buckets: frozenset[int]
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class Want:
    """What one lacks, in answer to a listing."""

    echo: bytes
    """The listing's nonce."""
    marks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Push:
    """What the other may lack; what is checked with something else comes after that."""

    documents: tuple[Sealed, ...] = ()


Message = Digest | Listing | Want | Push

OVERHEAD_BYTES = 124
"""Of a datagram beside its body."""
GOOD_BODY_BYTES = 1_108
"""Of a body that no path has to fragment: a datagram in 1,280 bytes of IPv6. Source: RFC 8200."""
DIGEST_BYTES = NONCE_BYTES + 4 * BUCKETS
LISTING_BYTES, ITEM_BYTES = 2 * NONCE_BYTES + 1 + BUCKETS // 8, 20
WANT_BYTES, MARK_BYTES = NONCE_BYTES, 8
_SEALED_BYTES = 67


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
            return WANT_BYTES + MARK_BYTES * len(message.marks)
        case Push():
            return sum(map(sealed_bytes, message.documents))


def sealed_bytes(sealed: Sealed) -> int:
    """What a document adds to a push."""
    return _SEALED_BYTES + len(sealed.kind) + len(sealed.body)
