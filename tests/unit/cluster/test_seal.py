"""Signed documents."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.cluster.documents import Document, Kind, Kinds, Known, Sealed
from limpet.cluster.keys import ClusterKey, SealError, endorse, public_key_of, sign
from limpet.cluster.kinds import GRANT, KINDS, NETWORK, PRESENCE
from limpet.cluster.merge import merge
from limpet.cluster.seal import open_sealed, seal
from tests.unit.cluster_values import (
    CLUSTER_KEY,
    NOTHING,
    PINNED,
    documents,
    grant,
    knowledge,
    network,
    node_key,
    presence,
    seal_grant,
    seal_network,
    seal_presence,
)

ONE = merge(NOTHING, documents(1))[0]
"""The first node's grant is known."""


@given(knowledge())
def test_a_document_is_the_same_after_disk_or_wire(known: Known) -> None:
    again = NOTHING
    for document in known:
        opened = open_sealed(document.sealed, again)
        assert opened == document
        again = merge(again, [opened])[0]
    assert again == known


@given(st.sampled_from([kind.name for kind in KINDS]), st.binary(max_size=200))
def test_bytes_that_are_no_document_are_refused_in_words(kind: str, body: bytes) -> None:
    with pytest.raises(SealError):
        open_sealed(Sealed(kind, body, bytes(64)), ONE)


@given(st.data())
def test_no_changed_bit_is_accepted(data: st.DataObject) -> None:
    sealed = seal_grant(grant(1), CLUSTER_KEY)
    whole = bytearray(sealed.body + sealed.signature)
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    cut = len(sealed.body)

    with pytest.raises(SealError):
        open_sealed(Sealed("grant", bytes(whole[:cut]), bytes(whole[cut:])), NOTHING)


def test_one_kind_of_document_never_passes_for_another() -> None:
    twin = Kind("twin", GRANT.parse, GRANT.signers, GRANT.head)
    known = Known(Kinds([*KINDS, twin]), PINNED)
    sealed = seal_grant(grant(1), CLUSTER_KEY)

    assert open_sealed(sealed, known).name == grant(1).uid
    with pytest.raises(SealError, match="nobody that this node trusts"):
        open_sealed(Sealed("twin", sealed.body, sealed.signature), known)


def test_a_kind_that_is_unknown_is_refused_in_words() -> None:
    with pytest.raises(SealError, match="kind 'service' is unknown to this Limpet"):
        open_sealed(Sealed("service", b"{}", bytes(64)), NOTHING)


def test_a_node_cannot_speak_for_another() -> None:
    both = merge(ONE, documents(2))[0]
    with pytest.raises(SealError, match="signed"):
        open_sealed(seal_presence(presence(2), node_key(1)), both)


def test_what_stands_under_nothing_that_is_known_or_under_a_tombstone_is_refused() -> None:
    said = seal_presence(presence(1), node_key(1))
    for known in (NOTHING, merge(ONE, documents(1, tombstone=True))[0]):
        with pytest.raises(SealError, match="there is no grant"):
            open_sealed(said, known)


@pytest.mark.parametrize(
    "nonsense",
    [
        {"sequence": "7"},
        {"sequence": -1},
        {"sequence": 1 << 47},
        {"sequence": 1.5},
        {"boot_id": 3},
        {"port": 1 << 16},
        {"port": "7471"},
        {"endpoints": ((ip_address("192.0.2.1"), -1),)},
        {"vtep_macs": {4: "02:00:00:00:00:01; drop"}},
        {"vtep_macs": {4: None}},
        {"link_mtu_bytes": True},
        {"addresses": (7,)},
        {"addresses": ("fe80::1%eth0 } ; flush ruleset",)},
        {"endpoints": (("fe80::1%eth0", 7471),)},
        {"uid": ""},
        {"uid": 7},
    ],
)
def test_a_node_that_signs_nonsense_about_itself_is_not_believed(nonsense: dict[str, Any]) -> None:
    said = replace(presence(1), **nonsense)
    plain = msgspec.to_builtins(said, enc_hook=str, str_keys=True)
    body = msgspec.json.encode(plain, order="deterministic")
    sealed = Sealed("presence", body, sign("document presence", body, node_key(1)))
    with pytest.raises(SealError, match="read presence"):
        open_sealed(sealed, ONE)


def test_a_grant_that_names_another_key_than_its_uid_is_refused() -> None:
    stolen = grant(1, public_key=public_key_of(node_key(2)))
    with pytest.raises(SealError, match="uid"):
        open_sealed(seal_grant(stolen, CLUSTER_KEY), NOTHING)


def test_a_rotated_key_is_trusted_by_its_predecessors_word_and_by_no_other() -> None:
    second, third, stranger = node_key(20), node_key(21), node_key(22)
    keys = (
        ClusterKey(PINNED),
        endorse(public_key_of(second), CLUSTER_KEY),
        endorse(public_key_of(third), second),
    )

    forged = (*keys, endorse(public_key_of(stranger), stranger))
    with pytest.raises(SealError):
        open_sealed(seal_network(network(2, keys=forged), stranger), NOTHING)

    sealed = seal_network(network(2, keys=keys), third)
    assert open_sealed(sealed, NOTHING).version == 2
    with pytest.raises(SealError):
        open_sealed(seal_network(network(2, keys=keys), stranger), NOTHING)


def test_a_kind_is_registered_once_and_after_what_it_stands_under() -> None:
    with pytest.raises(ValueError, match="register kind presence"):
        Kinds([NETWORK, PRESENCE, GRANT])
    with pytest.raises(ValueError, match="register kind grant"):
        Kinds([NETWORK, GRANT, GRANT])


def test_a_document_says_its_kind_and_name() -> None:
    document: Document = seal(GRANT, grant(1), CLUSTER_KEY)
    assert document.key == ("grant", grant(1).uid)
