"""Keys and signatures. Ed25519 (RFC 8032), deterministic.

A signature covers a context that says what is signed, so that one thing never passes for another.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

from limpet.base.errors import LimpetError

if TYPE_CHECKING:  # a node that is in no cluster needs no crypto in memory
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_KEY = "key"
_KEY_BYTES, _SIGNATURE_BYTES = 32, 64
_UID_BYTES = 15
_UID = re.compile(r"[a-z2-7]{24}")


class SealError(LimpetError):
    """A document that is not what it says, or that nobody we trust has signed."""


class RevokedKeyError(SealError):
    """A document that a revoked key of the cluster has signed, or a successor of it that is not the
    cluster's: whoever made it since then has the key."""


@dataclass(frozen=True, slots=True)
class ClusterKey:
    """A key that signs for the cluster, and the former key's word for it."""

    public_key: bytes
    endorsement: bytes = b""
    """The former key's signature of this one; empty for a cluster's first key."""


def uid_of(public_key: bytes) -> str:
    """24 letters and digits that stand for a node's key, and so for the node."""
    digest = hashlib.sha256(b"limpet uid\0" + public_key).digest()[:_UID_BYTES]
    return base64.b32encode(digest).decode().lower()


def is_uid(text: str) -> bool:
    """Whether it could be some node's."""
    return _UID.fullmatch(text) is not None


def public_key_of(private_key: bytes) -> bytes:
    """32 bytes. Raises: SealError."""
    return _private(private_key).public_key().public_bytes_raw()


def endorse(public_key: bytes, by_private_key: bytes) -> ClusterKey:
    """The next cluster key, with the present one's word for it."""
    return ClusterKey(public_key, sign(_KEY, public_key, by_private_key))


@lru_cache(maxsize=16)
def is_chain(keys: tuple[ClusterKey, ...]) -> bool:
    """Whether each but the first has the word of the one directly before it."""
    return all(has_word_of(former.public_key, key) for former, key in pairwise(keys))


def has_word_of(former: bytes, key: ClusterKey) -> bool:
    """Whether it is a successor of this public key: there should be one."""
    return is_signed(_KEY, key.public_key, key.endorsement, (former,))


def key_name(public_key: bytes) -> str:
    """16 hexadecimal digits for a person to compare."""
    return hashlib.sha256(b"limpet cluster key\0" + public_key).hexdigest()[:16]


def sign(what: str, body: bytes, private_key: bytes) -> bytes:
    """The signature; `what` is signed too. Raises: SealError for a key that is none."""
    return _private(private_key).sign(_context(what) + body)


def is_signed(what: str, body: bytes, signature: bytes, trusted: Iterable[bytes]) -> bool:
    # As in `_private`: a node that is in no cluster needs no crypto in memory.
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if len(signature) != _SIGNATURE_BYTES:
        return False
    for key in trusted:
        if len(key) != _KEY_BYTES:
            continue
        try:
            Ed25519PublicKey.from_public_bytes(key).verify(signature, _context(what) + body)
        except InvalidSignature:
            continue
        return True
    return False


def _context(what: str) -> bytes:
    return b"limpet 1 " + what.encode() + b"\0"


def _private(private_key: bytes) -> Ed25519PrivateKey:
    # Only here: a node that is in no cluster needs no crypto in memory.
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    try:
        return Ed25519PrivateKey.from_private_bytes(private_key)
    except ValueError as error:
        raise SealError(f"use a private key: {error}") from error
