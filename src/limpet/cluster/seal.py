"""Signed documents: values <-> bytes, signing and checking. Ed25519 (RFC 8032), deterministic.

A signature covers a context that names the kind of document, so that one kind never passes for
another. The body is JSON with sorted keys; it is kept as it came and never encoded again.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from ipaddress import ip_address, ip_network
from typing import Any, TypeVar

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from limpet.base.addresses import Address
from limpet.base.errors import LimpetError
from limpet.cluster.documents import NodeEntry, Sealed, Snapshot
from limpet.cluster.kinds.grant import Grant, Role
from limpet.cluster.kinds.network import (
    ClusterKey,
    DefaultCommunity,
    Encryption,
    Network,
    TunnelBackend,
)
from limpet.cluster.kinds.presence import Presence

MAX_BODY_BYTES = 64 << 10
"""Of one document; a grant with a hundred segments takes four kilobytes."""
_NETWORK, _GRANT, _PRESENCE, _KEY = b"network", b"grant", b"presence", b"key"
_KEY_BYTES, _SIGNATURE_BYTES = 32, 64
_UID_BYTES = 15
_UID_MARK = b'"uid":"'
_MAX_SEQUENCE = (1 << 63) - 1
_MAX_PORT = (1 << 16) - 1
_MAX_MTU_BYTES = 1 << 16
_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")

T = TypeVar("T")


class SealError(LimpetError):
    """A document that is not what it says, or that nobody we trust has signed."""


def uid_of(public_key: bytes) -> str:
    """24 letters and digits that stand for a node's key, and so for the node."""
    digest = hashlib.sha256(b"limpet uid\0" + public_key).digest()[:_UID_BYTES]
    return base64.b32encode(digest).decode().lower()


def public_key_of(private_key: bytes) -> bytes:
    """32 bytes. Raises: SealError."""
    return _private(private_key).public_key().public_bytes_raw()


def seal_network(network: Network, private_key: bytes) -> Sealed:
    return _seal(_NETWORK, network, private_key)


def seal_grant(grant: Grant, private_key: bytes) -> Sealed:
    return _seal(_GRANT, grant, private_key)


def seal_presence(presence: Presence, private_key: bytes) -> Sealed:
    return _seal(_PRESENCE, presence, private_key)


def endorse(public_key: bytes, by_private_key: bytes) -> ClusterKey:
    """The next cluster key, with the present one's word for it."""
    return ClusterKey(public_key, _private(by_private_key).sign(_context(_KEY) + public_key))


def trusted_keys(pinned: bytes, keys: Iterable[ClusterKey]) -> frozenset[bytes]:
    """`pinned` and the keys that follow from it, each endorsed by the one before."""
    trusted = [pinned]
    for key in keys:
        if _is_signed(_KEY, key.public_key, key.endorsement, trusted):
            trusted.append(key.public_key)
    return frozenset(trusted)


def open_network(sealed: Sealed, pinned: bytes) -> Network:
    """The network, signed by the pinned cluster key or one that follows. Raises: SealError."""
    network = _parse(sealed.body, _network)
    _require(_NETWORK, sealed, trusted_keys(pinned, network.keys))
    return network


def open_grant(sealed: Sealed, trusted: Collection[bytes]) -> Grant:
    """The grant, signed by one of the cluster's keys. Raises: SealError."""
    _require(_GRANT, sealed, trusted)
    grant = _parse(sealed.body, _grant)
    if grant.uid != uid_of(grant.public_key):
        raise SealError(f"open grant of {grant.name}: uid {grant.uid} is not its key's")
    return grant


def open_presence(sealed: Sealed, grant: Grant) -> Presence:
    """The presence, signed by the node that `grant` names. Raises: SealError."""
    _require(_PRESENCE, sealed, (grant.public_key,))
    presence = _parse(sealed.body, _presence)
    if presence.uid != grant.uid:
        raise SealError(f"open presence of {grant.name}: it speaks of uid {presence.uid}")
    return presence


def read_presence(sealed: Sealed) -> Presence:
    """One that was checked before and kept where only we write. Raises: SealError."""
    return _parse(sealed.body, _presence)


def uid_hint(sealed_grant: Sealed) -> str:
    """The uid that a grant names, unchecked: where to look for what is known; empty: none."""
    start = sealed_grant.body.find(_UID_MARK)
    if start < 0:
        return ""
    start += len(_UID_MARK)
    return sealed_grant.body[start : start + _UID_BYTES * 8 // 5].decode(errors="replace")


def make_entry(
    sealed_grant: Sealed, sealed_presence: Sealed | None, trusted: Collection[bytes]
) -> NodeEntry:
    """A checked entry. A tombstone has no presence. Raises: SealError."""
    grant = open_grant(sealed_grant, trusted)
    if sealed_presence is None or grant.tombstone:
        return NodeEntry(grant, sealed_grant)
    return NodeEntry(grant, sealed_grant, open_presence(sealed_presence, grant), sealed_presence)


def parse_entry(sealed_grant: Sealed, sealed_presence: Sealed | None) -> NodeEntry:
    """An entry that was checked before and kept where only we write: no signature is looked at.

    Raises: SealError for what does not parse.
    """
    grant = _parse(sealed_grant.body, _grant)
    if sealed_presence is None or grant.tombstone:
        return NodeEntry(grant, sealed_grant)
    presence = _parse(sealed_presence.body, _presence)
    return NodeEntry(grant, sealed_grant, presence, sealed_presence)


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """For disk and wire: the sealed parts alone, in the order of uids."""
    document = {
        "network": snapshot.sealed_network,
        "nodes": [
            [entry.sealed_grant, entry.sealed_presence]
            for _uid, entry in sorted(snapshot.nodes.items())
        ],
    }
    return msgspec.json.encode(document)


def decode_snapshot(data: bytes, pinned: bytes) -> tuple[Snapshot, list[SealError]]:
    """All that is in order, and what was not. Raises: SealError for what is no snapshot at all."""
    try:
        found = msgspec.json.decode(data, type=_Snapshot)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SealError(f"read snapshot: {error}") from error
    problems: list[SealError] = []
    network = None
    trusted = frozenset({pinned})
    if found.network is not None:
        try:
            network = open_network(found.network, pinned)
            trusted = trusted_keys(pinned, network.keys)
        except SealError as error:
            problems.append(error)
    nodes = {}
    for sealed_grant, sealed_presence in found.nodes:
        try:
            entry = make_entry(sealed_grant, sealed_presence, trusted)
        except SealError as error:
            problems.append(error)
        else:
            nodes[entry.grant.uid] = entry
    return Snapshot(network, found.network if network else None, nodes), problems


class _Snapshot(msgspec.Struct):
    network: Sealed | None
    nodes: list[tuple[Sealed, Sealed | None]]


def _context(kind: bytes) -> bytes:
    return b"limpet 1 " + kind + b"\0"


def _private(private_key: bytes) -> Ed25519PrivateKey:
    try:
        return Ed25519PrivateKey.from_private_bytes(private_key)
    except ValueError as error:
        raise SealError(f"use a private key: {error}") from error


def _seal(kind: bytes, document: object, private_key: bytes) -> Sealed:
    plain = msgspec.to_builtins(document, enc_hook=_encode, str_keys=True)
    body = msgspec.json.encode(plain, order="deterministic")
    return Sealed(body, _private(private_key).sign(_context(kind) + body))


def _encode(value: object) -> object:
    return sorted(value) if isinstance(value, frozenset) else str(value)


def _require(kind: bytes, sealed: Sealed, trusted: Iterable[bytes]) -> None:
    if len(sealed.body) > MAX_BODY_BYTES:
        raise SealError(f"open {kind.decode()}: {len(sealed.body)} bytes are too many")
    if not _is_signed(kind, sealed.body, sealed.signature, trusted):
        raise SealError(f"open {kind.decode()}: nobody that this node trusts has signed it")


def _is_signed(kind: bytes, body: bytes, signature: bytes, trusted: Iterable[bytes]) -> bool:
    if len(signature) != _SIGNATURE_BYTES:
        return False
    for key in trusted:
        if len(key) != _KEY_BYTES:
            continue
        try:
            Ed25519PublicKey.from_public_bytes(key).verify(signature, _context(kind) + body)
        except InvalidSignature:
            continue
        return True
    return False


def _document(body: bytes) -> dict[str, Any]:
    """Raises: SealError."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SealError(f"read document: {error}") from error
    if not isinstance(found, dict):
        raise SealError("read document: it is no object")
    return found


def _parse(body: bytes, build: Callable[[dict[str, Any]], T]) -> T:
    """Raises: SealError for anything that sealing did not make."""
    found = _document(body)
    try:
        return build(found)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SealError(f"read document: {error!r}") from error


def _network(found: dict[str, Any]) -> Network:
    return Network(
        **{
            **found,
            "keys": tuple(
                ClusterKey(_bytes(key["public_key"]), _bytes(key["endorsement"]))
                for key in found["keys"]
            ),
            "pod_cidrs": tuple(map(ip_network, found["pod_cidrs"])),
            "segment_lengths": _by_version(found["segment_lengths"]),
            "service_cidrs": tuple(map(ip_network, found["service_cidrs"])),
            "default_community": DefaultCommunity(found["default_community"]),
            "encryption": Encryption(found["encryption"]),
            "tunnel_backend": TunnelBackend(found["tunnel_backend"]),
            "community_backends": {
                name: TunnelBackend(each) for name, each in found["community_backends"].items()
            },
        }
    )


def _grant(found: dict[str, Any]) -> Grant:
    return Grant(
        **{
            **found,
            "public_key": _bytes(found["public_key"]),
            "segments": tuple(map(ip_network, found["segments"])),
            "communities": tuple(found["communities"]),
            "roles": frozenset(map(Role, found["roles"])),
            "prefixes_behind": tuple(map(ip_network, found["prefixes_behind"])),
            "supersedes": tuple(found["supersedes"]),
        }
    )


def _presence(found: dict[str, Any]) -> Presence:
    return Presence(
        **{
            **found,
            "sequence": _whole(found["sequence"], _MAX_SEQUENCE),
            "boot_id": _text(found["boot_id"]),
            "addresses": tuple(map(_address, found["addresses"])),
            "endpoints": tuple(
                (_address(at), _whole(port, _MAX_PORT)) for at, port in found["endpoints"]
            ),
            "port": _whole(found["port"], _MAX_PORT),
            "vtep_macs": {
                version: _mac(mac) for version, mac in _by_version(found["vtep_macs"]).items()
            },
            "tunnel_port": _whole(found["tunnel_port"], _MAX_PORT),
            "relay_tls_port": _whole(found["relay_tls_port"], _MAX_PORT),
            "link_mtu_bytes": _whole(found["link_mtu_bytes"], _MAX_MTU_BYTES),
        }
    )


def _whole(value: object, most: int) -> int:
    """A node signs its presence itself: what it says need not be what it should be."""
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{value!r} is no number from 0 to {most}")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


def _address(value: object) -> Address:
    """Without a scope: that could be any text, and names a link of another node at best."""
    if not isinstance(value, str) or "%" in value:
        raise ValueError(f"{value!r} is no address that means the same everywhere")
    return ip_address(value)


def _mac(value: object) -> str:
    if not isinstance(value, str) or _MAC.fullmatch(value) is None:
        raise ValueError(f"{value!r} is no MAC address")
    return value


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _by_version(found: Mapping[str, T]) -> dict[int, T]:
    """JSON has no numbers for keys."""
    return {int(version): value for version, value in found.items()}
