"""Signed documents."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.cluster.documents import Sealed, Snapshot
from limpet.cluster.kinds.network import ClusterKey
from limpet.cluster.seal import (
    SealError,
    decode_snapshot,
    encode_snapshot,
    endorse,
    open_grant,
    open_network,
    open_presence,
    public_key_of,
    seal_grant,
    seal_network,
    seal_presence,
    trusted_keys,
)
from tests.unit.cluster_values import (
    CLUSTER_KEY,
    PINNED,
    TRUSTED,
    grant,
    network,
    node_key,
    presence,
    snapshots,
)


@given(snapshots())
def test_a_snapshot_is_the_same_after_disk_or_wire(snapshot: Snapshot) -> None:
    assert decode_snapshot(encode_snapshot(snapshot), PINNED) == (snapshot, [])


@given(st.binary(max_size=200))
def test_bytes_that_are_no_snapshot_are_refused_in_words(data: bytes) -> None:
    with pytest.raises(SealError):
        decode_snapshot(data, PINNED)


@given(st.data())
def test_no_changed_bit_is_accepted(data: st.DataObject) -> None:
    sealed = seal_grant(grant(1), CLUSTER_KEY)
    whole = bytearray(sealed.body + sealed.signature)
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    changed = Sealed(bytes(whole[: len(sealed.body)]), bytes(whole[len(sealed.body) :]))

    with pytest.raises(SealError):
        open_grant(changed, TRUSTED)


def test_one_kind_of_document_never_passes_for_another() -> None:
    sealed = seal_grant(grant(1), node_key(1))
    with pytest.raises(SealError):
        open_presence(sealed, grant(1))


def test_a_node_cannot_speak_for_another() -> None:
    forged = seal_presence(presence(2), node_key(1))
    with pytest.raises(SealError, match="uid"):
        open_presence(forged, grant(1))
    with pytest.raises(SealError, match="signed"):
        open_presence(forged, grant(2))


@pytest.mark.parametrize(
    "nonsense",
    [
        {"sequence": "7"},
        {"sequence": -1},
        {"sequence": 1 << 63},
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
    ],
)
def test_a_node_that_signs_nonsense_about_itself_is_not_believed(nonsense: dict[str, Any]) -> None:
    sealed = seal_presence(replace(presence(1), **nonsense), node_key(1))
    with pytest.raises(SealError, match="read document"):
        open_presence(sealed, grant(1))


def test_a_grant_that_names_another_key_than_its_uid_is_refused() -> None:
    stolen = grant(1, public_key=public_key_of(node_key(2)))
    with pytest.raises(SealError, match="uid"):
        open_grant(seal_grant(stolen, CLUSTER_KEY), TRUSTED)


def test_one_bad_entry_does_not_spoil_a_snapshot() -> None:
    good = seal_grant(grant(1), CLUSTER_KEY)
    bad = seal_grant(grant(2), node_key(2))
    text = encode_snapshot(Snapshot())
    assert text
    import msgspec

    data = msgspec.json.encode({"network": None, "nodes": [[good, None], [bad, None]]})

    snapshot, problems = decode_snapshot(data, PINNED)

    assert [entry.grant.name for entry in snapshot.nodes.values()] == ["node-1"]
    assert len(problems) == 1


def test_a_rotated_key_is_trusted_by_its_predecessors_word_and_by_no_other() -> None:
    second, third, stranger = node_key(20), node_key(21), node_key(22)
    keys = (
        ClusterKey(PINNED),
        endorse(public_key_of(second), CLUSTER_KEY),
        endorse(public_key_of(third), second),
    )

    assert trusted_keys(PINNED, keys) == {PINNED, *(key.public_key for key in keys)}
    forged = endorse(public_key_of(stranger), stranger)
    assert public_key_of(stranger) not in trusted_keys(PINNED, (*keys, forged))

    sealed = seal_network(network(2, keys=keys), third)
    assert open_network(sealed, PINNED).generation == 2
    with pytest.raises(SealError):
        open_network(seal_network(network(2, keys=keys), stranger), PINNED)
