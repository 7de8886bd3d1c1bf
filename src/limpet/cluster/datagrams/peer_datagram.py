"""Datagrams between nodes: bytes <-> values, signed by the sender, no sockets.

    magic 3 | version 1 | kind 1 | cluster 8 | sender's key 32 | receiver 15 | body | signature 64

The cluster is told by a hash of its pinned key, the receiver by its uid, all zeros: anybody. The
signature (Ed25519) covers a context and all that is before it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from limpet.base.bounds.neighbours import DATAGRAM_BODY
from limpet.base.errors import LimpetError
from limpet.cluster.keys import uid_of

MAX_BODY_BYTES = DATAGRAM_BODY.most

MAGIC = b"Lmp\x01"
RELAY_MAGIC = b"Lmr\x01"
"""Magic of what is for the relay itself, at a port where it forwards everything else."""
_CONTEXT = b"limpet 1 datagram\0"
_VERSION_AT = 3
_MARKS = (MAGIC[:_VERSION_AT], RELAY_MAGIC[:_VERSION_AT])
_KIND_AT, _CLUSTER_AT, _KEY_AT, _TO_AT, _BODY_AT = 4, 5, 13, 45, 60
_SIGNATURE_BYTES = 64
OVERHEAD_BYTES = _BODY_AT + _SIGNATURE_BYTES
"""Bytes of a datagram beside its body."""
UID_BYTES = 15
_ANYBODY = bytes(UID_BYTES)


class BodyKind(IntEnum):
    """What a body is; a kind that is unknown is dropped."""

    EXCHANGE = 1
    PROBE = 16
    ANSWER = 17
    RELAY_HELLO = 32
    RELAY_SEEN = 33
    RELAY_ASK = 34
    RELAY_PAIR = 35
    RELAY_CHECK = 36
    RELAY_TOKEN = 37
    RELAY_BOUND = 38
    RELAY_FREE = 39
    HANDSHAKE_RESET = 48
    POD_ASK = 64
    POD_TOLD = 65
    REFLECT = 80
    """A question of anybody; neither it nor its answer is signed (`reflection`)."""
    REFLECTED = 81


class DropReason(StrEnum):
    """Why a datagram does not count; the name of its counter."""

    MALFORMED = "malformed"
    TOO_BIG = "too_big"
    FOREIGN = "foreign"
    """It is from another cluster, or not ours at all."""
    NEWER = "newer"
    """It is from a later Limpet."""
    OWN = "own"
    """An echo of our own."""
    NOT_FOR_US = "not_for_us"
    REPLAYED = "replayed"
    OVER_RATE = "over_rate"
    BAD_SIGNATURE = "bad_signature"
    REMOVED = "removed"
    """The sender was removed from the cluster."""
    UNHANDLED = "unhandled"
    """Nobody here takes its kind."""


class DatagramError(LimpetError):
    """A datagram that does not count."""

    def __init__(self, drop: DropReason, cause: str) -> None:
        super().__init__(f"read datagram: {cause}")
        self.drop = drop


@dataclass(frozen=True, slots=True)
class Datagram:
    """As it came; its signature is unchecked until `check` has returned."""

    kind: int
    public_key: bytes
    """Public key of the sender, 32 bytes."""
    to_anybody: bool
    body: bytes
    signed: bytes
    signature: bytes
    to_relay: bool = False
    """It says that it is for the relay at whose port it came."""

    @property
    def uid(self) -> str:
        """The sender's uid."""
        return uid_of(self.public_key)

    def check(self) -> None:
        """Returns if the holder of the key has sent it. Raises: DatagramError."""
        try:
            key = Ed25519PublicKey.from_public_bytes(self.public_key)
            key.verify(self.signature, _CONTEXT + self.signed)
        except (InvalidSignature, ValueError) as error:
            raise DatagramError(DropReason.BAD_SIGNATURE, "its sender has not signed it") from error


class Codec:
    """Makes and reads the datagrams of one node."""

    def __init__(self, private_key: bytes, pinned_key: bytes) -> None:
        """32 bytes each: the node's own key, and the cluster's first."""
        self._key = Ed25519PrivateKey.from_private_bytes(private_key)
        self._public_key = self._key.public_key().public_bytes_raw()
        self._uid = uid_bytes(uid_of(self._public_key))
        cluster = hashlib.sha256(b"limpet cluster\0" + pinned_key).digest()[:8]
        self._cluster = cluster
        self._last = b""
        """What was signed last: one thing is said to several in turn."""

    def encode(self, kind: int, body: bytes, *, to_uid: str = "", to_relay: bool = False) -> bytes:
        """A signed datagram for one node, or for anybody. Raises: DatagramError (too big)."""
        if len(body) > MAX_BODY_BYTES:
            raise DatagramError(
                DropReason.TOO_BIG, f"{len(body)} bytes are more than {MAX_BODY_BYTES}"
            )
        signed = b"".join(
            (
                RELAY_MAGIC if to_relay else MAGIC,
                bytes((kind,)),
                self._cluster,
                self._public_key,
                uid_bytes(to_uid) if to_uid else _ANYBODY,
                body,
            )
        )
        if self._last[:-_SIGNATURE_BYTES] != signed:
            self._last = signed + self._key.sign(_CONTEXT + signed)
        return self._last

    def parse(self, data: bytes) -> Datagram:
        """What is of our cluster, for us and of another. Raises: DatagramError.

        It costs next to nothing: the signature is left to `Datagram.check`.
        """
        to_relay = data[:_KIND_AT] == RELAY_MAGIC
        if data[:_VERSION_AT] in _MARKS and data[_VERSION_AT:_KIND_AT] > MAGIC[_VERSION_AT:]:
            raise DatagramError(
                DropReason.NEWER,
                f"it is of version {data[_VERSION_AT]}, this Limpet knows 1 (update it)",
            )
        if data[:_KIND_AT] != MAGIC and not to_relay:
            raise DatagramError(DropReason.FOREIGN, "it is not ours")
        if data[_CLUSTER_AT:_KEY_AT] != self._cluster:
            raise DatagramError(DropReason.FOREIGN, "it is not of this cluster")
        if len(data) < OVERHEAD_BYTES:
            raise DatagramError(DropReason.MALFORMED, f"{len(data)} bytes are too few")
        if len(data) > OVERHEAD_BYTES + MAX_BODY_BYTES:
            raise DatagramError(DropReason.TOO_BIG, f"{len(data)} bytes are too many")
        public_key = data[_KEY_AT:_TO_AT]
        if public_key == self._public_key:
            raise DatagramError(DropReason.OWN, "it is an echo of our own")
        to = data[_TO_AT:_BODY_AT]
        if to not in (self._uid, _ANYBODY):
            raise DatagramError(DropReason.NOT_FOR_US, "it is for another node")
        return Datagram(
            data[_KIND_AT],
            public_key,
            to == _ANYBODY,
            data[_BODY_AT:-_SIGNATURE_BYTES],
            data[:-_SIGNATURE_BYTES],
            data[-_SIGNATURE_BYTES:],
            to_relay,
        )


def uid_bytes(uid: str) -> bytes:
    """15 bytes. Raises: ValueError for what `uid_of` does not make."""
    try:
        raw = base64.b32decode(uid.upper())
    except binascii.Error as error:
        raise ValueError(f"{uid!r} is no uid") from error
    if len(raw) != UID_BYTES:
        raise ValueError(f"{uid!r} is no uid")
    return raw


def uid_text(raw: bytes) -> str:
    return base64.b32encode(raw).decode().lower()
