"""Probes of what somebody signs who has a key of the cluster."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import msgspec
from msgspec.structs import replace as replace_fields

from limpet.base.bounds.signers import (
    DOCUMENT_BODY,
    FORGED_BURIED,
    KEY_ALARMS,
    MAX_ERA,
    MAX_SHOWN_VERSION,
    MAX_VERSION,
)
from limpet.cluster.documents import Kind, Sealed, Source
from limpet.cluster.key_alarms import KeyAlarms
from limpet.cluster.keys import SealError, uid_of
from limpet.cluster.kinds import GRANT, KINDS, NETWORK, PRESENCE
from limpet.cluster.seal import read_sealed, seal
from limpet.controller.registry.refusal import RefusedError
from limpet.controller.registry.rotation import (
    _following,
    bury_forged,
    check_counts,
    rotate_key,
    take_keys,
)
from tests.unit.base.bounds.probes import probe
from tests.unit.cluster_values import CLUSTER_KEY, documents, grant, network, node_key, presence
from tests.unit.controller.state.cluster_tables import new_tables


@probe(MAX_VERSION)
def _(amount: int) -> bool:
    return _is_sealed(presence(1, sequence=amount), PRESENCE)


@probe(MAX_VERSION)
def _(amount: int) -> bool:
    """Of the network at which the key was rotated."""
    return _is_sealed(replace(network(), rotated_at=(amount,)), NETWORK)


@probe(MAX_ERA)
def _(amount: int) -> bool:
    return _is_sealed(grant(1, era=amount), GRANT)


def _is_sealed(value: Any, kind: Kind[Any]) -> bool:
    body = msgspec.json.encode(msgspec.to_builtins(value, enc_hook=_plain, str_keys=True))
    try:
        read_sealed(Sealed(kind.name, body, b""), KINDS)
    except SealError:
        return False
    return True


def _plain(value: object) -> object:
    return sorted(value) if isinstance(value, frozenset) else str(value)


@probe(KEY_ALARMS)
def _(amount: int) -> bool:
    alarms, (document,) = KeyAlarms(), documents(1)
    for number in range(amount):
        alarms.note(document, Source.NEIGHBOUR, f"teller {number}", 0.0)
    return len(alarms.all()) == amount


@probe(MAX_SHOWN_VERSION)
def _(amount: int) -> bool:
    try:
        check_counts(seal(GRANT, grant(1, revision=amount), CLUSTER_KEY))
    except SealError:
        return False
    return True


@probe(MAX_SHOWN_VERSION)
def _(amount: int) -> bool:
    """Of what is signed anew, whose number goes on."""
    return _following(amount - 1) == amount


@probe(MAX_ERA)
def _(amount: int) -> bool:
    """It was rotated so many times but one, and is once more."""
    tables = new_tables()
    had = tables.authority
    keys = (hashlib.sha256(number.to_bytes(4, "big")).digest() for number in range(1, amount))
    rotated = replace_fields(
        had, cluster_keys=(*had.cluster_keys, *keys), rotated_at=tuple(range(1, amount))
    )
    take_keys(tables, rotated)
    try:
        rotate_key(tables, bytes(32))
    except RefusedError:
        return False
    return True


@probe(FORGED_BURIED)
def _(amount: int) -> bool:
    tables = new_tables()
    thief = tables.authority.cluster_keys[0]
    rotate_key(tables, node_key(200))
    for number in range(amount):
        key = hashlib.sha256(number.to_bytes(4, "big")).digest()
        forged = replace(grant(1), public_key=key, uid=uid_of(key))
        if number < FORGED_BURIED.most - 2:  # what it would make of most, signing them
            tables.put_document(
                seal(GRANT, replace(forged, name=forged.uid, tombstone=True), thief)
            )
        elif not bury_forged(tables, seal(GRANT, forged, thief), 0.0):
            return False
    return True


@probe(DOCUMENT_BODY)
def _(amount: int) -> bool:
    said = seal(GRANT, grant(1), CLUSTER_KEY).sealed.body
    filled = said[:-1] + b" " * (amount - len(said)) + said[-1:]
    try:
        read_sealed(Sealed(GRANT.name, filled, b""), KINDS)
    except SealError:
        return False
    return True
