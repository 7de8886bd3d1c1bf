"""Bodies of the neighbour exchange: bytes <-> values, no sockets. Integers are big-endian."""

from __future__ import annotations

import base64
import struct

from limpet.base.errors import LimpetError
from limpet.cluster.documents import Sealed
from limpet.cluster.exchange.messages import (
    BUCKETS,
    NONCE_BYTES,
    Digest,
    GrantRank,
    Item,
    Listing,
    Message,
    NetworkRank,
    Pair,
    PresenceRank,
    Push,
    Want,
)

_NETWORK, _PAIR, _GRANT = 1, 2, 3
_MOST_PAIRS = 64
"""In one push; each may cost two signature checks."""
_SIGNATURE_BYTES = 64
_UID_BYTES = 15
_LENGTH = struct.Struct(">H")
_RANK = struct.Struct(">QI")
_DIGEST = struct.Struct(f">{NONCE_BYTES}sQI{BUCKETS}I")
_LISTING = struct.Struct(f">{NONCE_BYTES}s{NONCE_BYTES}sQI?{BUCKETS // 8}s")
_ITEM = struct.Struct(f">{_UID_BYTES}s?QIQI")
_WANT = struct.Struct(f">{NONCE_BYTES}s?")


class MessageError(LimpetError):
    """A body that is not what its kind says."""


def encode(message: Message) -> bytes:
    """The body. Raises: ValueError for a document that is too large for any datagram."""
    match message:
        case Digest():
            return _DIGEST.pack(message.nonce, *message.network, *message.buckets)
        case Listing():
            marks = sum(1 << bucket for bucket in message.buckets).to_bytes(BUCKETS // 8, "big")
            head = _LISTING.pack(message.echo, message.nonce, *message.network, message.more, marks)
            return head + b"".join(
                _ITEM.pack(_raw(item.uid), *item.grant, *item.presence) for item in message.items
            )
        case Want():
            head = _WANT.pack(message.echo, message.network)
            return head + b"".join(map(_raw, message.uids))
        case Push():
            network = message.network
            parts = [] if network is None else [bytes((_NETWORK,)) + _encode_sealed(network)]
            parts.extend(map(_encode_pair, message.pairs))
            return b"".join(parts)


def parse_digest(body: bytes) -> Digest:
    """Raises: MessageError."""
    if len(body) != _DIGEST.size:
        raise MessageError(f"read digest: {len(body)} bytes are not {_DIGEST.size}")
    nonce, generation, digest, *buckets = _DIGEST.unpack(body)
    return Digest(nonce, NetworkRank(generation, digest), tuple(buckets))


def parse_listing(body: bytes) -> Listing:
    """Raises: MessageError."""
    if len(body) < _LISTING.size or (len(body) - _LISTING.size) % _ITEM.size:
        raise MessageError(f"read listing: {len(body)} bytes are no whole listing")
    echo, nonce, generation, digest, more, marks = _LISTING.unpack_from(body)
    bits = int.from_bytes(marks, "big")
    items = tuple(
        Item(_uid(raw), GrantRank(tombstone, grant, mark), PresenceRank(sequence, presence))
        for raw, tombstone, grant, mark, sequence, presence in _ITEM.iter_unpack(
            memoryview(body)[_LISTING.size :]
        )
    )
    buckets = frozenset(bucket for bucket in range(BUCKETS) if bits >> bucket & 1)
    return Listing(echo, nonce, NetworkRank(generation, digest), more, buckets, items)


def parse_want(body: bytes) -> Want:
    """Raises: MessageError."""
    if len(body) < _WANT.size or (len(body) - _WANT.size) % _UID_BYTES:
        raise MessageError(f"read want: {len(body)} bytes are no whole list")
    echo, network = _WANT.unpack_from(body)
    starts = range(_WANT.size, len(body), _UID_BYTES)
    return Want(echo, network, tuple(_uid(body[at : at + _UID_BYTES]) for at in starts))


def parse_push(body: bytes) -> Push:
    """Raises: MessageError."""
    pairs: list[Pair] = []
    network = None
    at = 0
    while at < len(body):
        if len(pairs) == _MOST_PAIRS:
            raise MessageError(f"read push: more than {_MOST_PAIRS} nodes")
        part = body[at]
        first, at = _parse_sealed(body, at + 1)
        match part:
            case 1 if network is None:
                network = first
            case 2:
                second, at = _parse_sealed(body, at)
                pairs.append((first, second))
            case 3:
                pairs.append((first, None))
            case _:
                raise MessageError(f"read push: part {part} is unknown or there twice")
    return Push(tuple(pairs), network)


def _encode_pair(pair: Pair) -> bytes:
    grant, presence = pair
    if presence is None:
        return bytes((_GRANT,)) + _encode_sealed(grant)
    return bytes((_PAIR,)) + _encode_sealed(grant) + _encode_sealed(presence)


def _encode_sealed(sealed: Sealed) -> bytes:
    if len(sealed.body) > 0xFFFF or len(sealed.signature) != _SIGNATURE_BYTES:
        raise ValueError(f"a document of {len(sealed.body)} bytes does not go into a datagram")
    return _LENGTH.pack(len(sealed.body)) + sealed.body + sealed.signature


def _parse_sealed(body: bytes, at: int) -> tuple[Sealed, int]:
    start = at + _LENGTH.size
    if start <= len(body):
        middle = start + _LENGTH.unpack_from(body, at)[0]
        end = middle + _SIGNATURE_BYTES
        if end <= len(body):
            return Sealed(body[start:middle], body[middle:end]), end
    raise MessageError(f"read push: a document is cut short at byte {at}")


def _raw(uid: str) -> bytes:
    return base64.b32decode(uid.upper())


def _uid(raw: bytes) -> str:
    return base64.b32encode(raw).decode().lower()
