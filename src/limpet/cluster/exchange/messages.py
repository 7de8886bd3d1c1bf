"""What neighbours tell each other about what they know of the cluster: MessagePack arrays, the name
of the message first."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta, Struct

from limpet.base.bounds.neighbours import LISTED_ITEMS, PUSHED_DOCUMENTS, WANTED_MARKS
from limpet.base.decoding import msgpack_decoder
from limpet.base.errors import LimpetError
from limpet.cluster.datagrams.peer_datagram import OVERHEAD_BYTES
from limpet.cluster.documents import Sealed

BUCKETS = 256
"""Documents are compared in groups, by a hash of kind and name."""
NONCE_BYTES = 8
SUM_BYTES = 4
GOOD_BODY_BYTES = 1_108
"""Largest body that no path fragments: a datagram in 1,280 bytes of IPv6. Source: RFC 8200."""
LISTING_BYTES, BUCKET_BYTES, ITEM_BYTES = 37, 2, 24
"""Largest size of an empty listing, and of each bucket and item in it."""

_Nonce = Annotated[bytes, Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
_Sums = Annotated[bytes, Meta(min_length=SUM_BYTES * BUCKETS, max_length=SUM_BYTES * BUCKETS)]
_Number = Annotated[int, Meta(ge=0)]


class MessageError(LimpetError):
    """Bytes that are no message of the exchange."""


class Item(NamedTuple):
    """What one knows of a document. Of two with one mark the higher one counts, as merged."""

    mark: _Number
    """64 bits that stand for kind and name."""
    version: _Number
    """64 bits; the highest of them tells a tombstone."""
    digest: _Number
    """32 bits."""


class Digest(Struct, frozen=True, array_like=True, tag="digest"):
    """All that one knows, in little: the other answers with a listing."""

    nonce: _Nonce
    sums: _Sums
    """32 bits for each of `BUCKETS`: a hash of its documents and the nonce; zeros: it has none."""


class Listing(Struct, frozen=True, array_like=True, tag="listing"):
    """All that one knows of the documents in some buckets, in answer to a digest."""

    echo: _Nonce
    """The digest's nonce: who knows it is where the digest was sent to."""
    nonce: _Nonce
    more: bool
    """Other buckets differ too: compare again."""
    buckets: Annotated[frozenset[Annotated[int, Meta(ge=0, lt=BUCKETS)]], Meta(max_length=BUCKETS)]
    items: Annotated[tuple[Item, ...], Meta(max_length=LISTED_ITEMS.most)]


class Want(Struct, frozen=True, array_like=True, tag="want"):
    """What one lacks, in answer to a listing."""

    echo: _Nonce
    """The listing's nonce."""
    marks: Annotated[tuple[_Number, ...], Meta(max_length=WANTED_MARKS.most)]


class Push(Struct, frozen=True, array_like=True, tag="push"):
    """What the other may lack; what is checked with something else comes after that."""

    documents: Annotated[tuple[Sealed, ...], Meta(max_length=PUSHED_DOCUMENTS.most)] = ()


Message = Digest | Listing | Want | Push

encode = msgspec.msgpack.Encoder().encode
_decode = msgpack_decoder(Message).decode


def decode(body: bytes) -> Message:
    """Raises: MessageError."""
    try:
        message: Message = _decode(body)
    except msgspec.MsgspecError as error:
        raise MessageError(f"read message: {error}") from error
    return message


def datagram_bytes(message: Message) -> int:
    """Size of the datagram that carries the message."""
    return OVERHEAD_BYTES + len(encode(message))
