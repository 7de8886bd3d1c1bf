"""Signed documents: values <-> bytes, signing and checking, of whatever kind.

The body is JSON with sorted keys; it is kept as it came and never encoded again.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TypeVar

import msgspec

from limpet.base.bounds.signers import MAX_ERA, MAX_VERSION
from limpet.base.bounds.words import NAME
from limpet.base.decoding import decode_plain_json
from limpet.cluster.documents import Document, Kind, Kinds, Lookup, Sealed
from limpet.cluster.keys import RevokedKeyError, SealError, is_signed, sign

MAX_NAME_CHARACTERS = NAME.most
_MAX_VERSION = MAX_VERSION.most
_MAX_ERA = MAX_ERA.most

T = TypeVar("T")


def seal(kind: Kind[T], value: T, private_key: bytes) -> Document:
    """Raises: SealError for a key that is none."""
    body = body_of(kind, value)
    sealed = Sealed(kind.name, body, sign(_what(kind), body, private_key))
    return _document(kind, sealed, value)


def body_of(kind: Kind[T], value: T) -> bytes:
    """What this version says it with."""
    plain = msgspec.to_builtins(value, enc_hook=_encode, str_keys=True)
    for name, unsaid in kind.unsaid.items():
        if plain[name] == unsaid:
            del plain[name]
    return msgspec.json.encode(plain, order="deterministic")


def open_sealed(sealed: Sealed, known: Lookup) -> Document:
    """The document, signed by whom its kind demands. Raises: SealError."""
    document = read_sealed(sealed, known.kinds)
    check(document, known)
    return document


def read_sealed(sealed: Sealed, kinds: Kinds) -> Document:
    """What it says; no signature is looked at. Raises: SealError for what sealing did not make."""
    kind = kinds.get(sealed.kind)
    if kind is None:
        raise SealError(f"read document: kind {sealed.kind[:40]!r} is unknown to this Limpet")
    if len(sealed.body) > kind.most_bytes:
        raise SealError(
            f"read {kind.name}: {len(sealed.body)} bytes are more than {kind.most_bytes}"
        )
    try:
        found = decode_plain_json(sealed.body)
        if not isinstance(found, dict):
            raise ValueError("it is no object")
        return _document(kind, sealed, kind.parse(found))
    except msgspec.MsgspecError as error:
        raise SealError(f"read {kind.name}: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SealError(f"read {kind.name}: {error!r}") from error


def is_readable(sealed: Sealed, kinds: Kinds) -> bool:
    """False: it is of a kind or a shape that this version does not know, or nonsense."""
    try:
        read_sealed(sealed, kinds)
    except SealError:
        return False
    return True


def is_of_a_later_key(sealed: Sealed, kinds: Kinds, era: int) -> bool:
    """Whether it says that a later key of the cluster than this one has signed it: it may count
    once the network that names that key was told."""
    try:
        return read_sealed(sealed, kinds).era > era
    except SealError:
        return False


def check(document: Document, known: Lookup) -> None:
    """Returns if one has signed it whom its kind demands. Raises: SealError; RevokedKeyError."""
    sealed, kind = document.sealed, known.kinds[document.kind]
    parent = kind.parent(document.name)
    if parent is not None and known.value(*parent) is None:
        raise SealError(f"open {kind.name}: there is no {' '.join(parent)} that it could be under")
    try:
        signers = kind.signers(document.value, known)
    except ValueError as error:
        raise SealError(f"open {kind.name}: {error}") from error
    if is_signed(_what(kind), sealed.body, sealed.signature, signers):
        return
    revoked = kind.revoked(document.value, known)
    if revoked and is_signed(_what(kind), sealed.body, sealed.signature, revoked):
        raise RevokedKeyError(
            f"open {kind.name} {document.name}: a revoked key of the cluster has signed it"
        )
    raise SealError(f"open {kind.name}: nobody that this node trusts has signed it")


def is_signed_by(sealed: Sealed, kinds: Kinds, keys: Collection[bytes]) -> bool:
    """Whether one of these public keys has signed it, as a document of its kind."""
    return is_signed(_what(kinds[sealed.kind]), sealed.body, sealed.signature, keys)


def _document(kind: Kind[T], sealed: Sealed, value: T) -> Document:
    name, version, tombstone, era = kind.head(value)
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARACTERS:
        raise ValueError(f"{name!r} is no name")
    if type(tombstone) is not bool:
        raise ValueError(f"tombstone {tombstone!r} is neither true nor false")
    if type(version) is not int or not 0 <= version <= _MAX_VERSION:
        raise ValueError(f"version {version!r} is no number from 0 to {_MAX_VERSION}")
    if type(era) is not int or not 0 <= era <= _MAX_ERA:
        raise ValueError(f"era {era!r} is no number from 0 to {_MAX_ERA}")
    return Document(name, version, sealed, value, tombstone, era)


def _what(kind: Kind[Any]) -> str:
    return f"document {kind.name}"


def _encode(value: object) -> object:
    return sorted(value) if isinstance(value, frozenset) else str(value)
