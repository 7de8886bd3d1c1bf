"""Bodies of the neighbour exchange: bytes <-> values, no sockets. Integers are big-endian.

Of a push: for each document kind (u8 length, ASCII), body (u16 length, bytes), signature (64).
"""

from __future__ import annotations

import struct

from limpet.base.errors import LimpetError
from limpet.cluster.documents import Sealed
from limpet.cluster.exchange.messages import (
    BUCKETS,
    NONCE_BYTES,
    Digest,
    Item,
    Listing,
    Message,
    Push,
    Want,
)

MOST_DOCUMENTS = 128
"""In one push; each may cost a signature check."""
_SIGNATURE_BYTES = 64
_LENGTH = struct.Struct(">H")
_DIGEST = struct.Struct(f">{NONCE_BYTES}s{BUCKETS}I")
_LISTING = struct.Struct(f">{NONCE_BYTES}s{NONCE_BYTES}s?{BUCKETS // 8}s")
_ITEM = struct.Struct(">QQI")
_MARK = struct.Struct(">Q")


class MessageError(LimpetError):
    """A body that is not what its kind says."""


def encode(message: Message) -> bytes:
    """The body. Raises: ValueError for a document that is too large for any datagram."""
    match message:
        case Digest():
            return _DIGEST.pack(message.nonce, *message.buckets)
        case Listing():
            marks = sum(1 << bucket for bucket in message.buckets).to_bytes(BUCKETS // 8, "big")
            head = _LISTING.pack(message.echo, message.nonce, message.more, marks)
            return head + b"".join(_ITEM.pack(*item) for item in message.items)
        case Want():
            return message.echo + b"".join(map(_MARK.pack, message.marks))
        case Push():
            return b"".join(map(_encode_sealed, message.documents))


def parse_digest(body: bytes) -> Digest:
    """Raises: MessageError."""
    if len(body) != _DIGEST.size:
        raise MessageError(f"read digest: {len(body)} bytes are not {_DIGEST.size}")
    nonce, *buckets = _DIGEST.unpack(body)
    return Digest(nonce, tuple(buckets))


def parse_listing(body: bytes) -> Listing:
    """Raises: MessageError."""
    if len(body) < _LISTING.size or (len(body) - _LISTING.size) % _ITEM.size:
        raise MessageError(f"read listing: {len(body)} bytes are no whole listing")
    echo, nonce, more, marks = _LISTING.unpack_from(body)
    bits = int.from_bytes(marks, "big")
    buckets = frozenset(bucket for bucket in range(BUCKETS) if bits >> bucket & 1)
    items = map(Item._make, _ITEM.iter_unpack(memoryview(body)[_LISTING.size :]))
    return Listing(echo, nonce, more, buckets, tuple(items))


def parse_want(body: bytes) -> Want:
    """Raises: MessageError."""
    if len(body) < NONCE_BYTES or (len(body) - NONCE_BYTES) % _MARK.size:
        raise MessageError(f"read want: {len(body)} bytes are no whole list")
    marks = (mark for (mark,) in _MARK.iter_unpack(memoryview(body)[NONCE_BYTES:]))
    return Want(body[:NONCE_BYTES], tuple(marks))


def parse_push(body: bytes) -> Push:
    """Raises: MessageError."""
    documents: list[Sealed] = []
    at = 0
    while at < len(body):
        if len(documents) == MOST_DOCUMENTS:
            raise MessageError(f"read push: more than {MOST_DOCUMENTS} documents")
        sealed, at = _parse_sealed(body, at)
        documents.append(sealed)
    return Push(tuple(documents))


def _encode_sealed(sealed: Sealed) -> bytes:
    if len(sealed.body) > 0xFFFF or len(sealed.signature) != _SIGNATURE_BYTES:
        raise ValueError(f"a {sealed.kind} of {len(sealed.body)} bytes does not go into a datagram")
    kind = sealed.kind.encode("ascii")
    return b"".join(
        (bytes((len(kind),)), kind, _LENGTH.pack(len(sealed.body)), sealed.body, sealed.signature)
    )


def _parse_sealed(body: bytes, at: int) -> tuple[Sealed, int]:
    kind_end = at + 1 + body[at]
    start = kind_end + _LENGTH.size
    if start <= len(body):
        middle = start + _LENGTH.unpack_from(body, kind_end)[0]
        end = middle + _SIGNATURE_BYTES
        if end <= len(body):
            try:
                kind = body[at + 1 : kind_end].decode("ascii")
            except UnicodeDecodeError as error:
                raise MessageError(f"read push: the kind at byte {at} is no text") from error
            return Sealed(kind, body[start:middle], body[middle:end]), end
    raise MessageError(f"read push: a document is cut short at byte {at}")
