"""Signed documents."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.cluster.documents import ByCluster, Document, Kind, Kinds, Known, Sealed
from limpet.cluster.keys import ClusterKey, SealError, endorse, public_key_of, sign
from limpet.cluster.kinds import ABSENCE, GRANT, KINDS, NETWORK, PODS, POLICY, PRESENCE
from limpet.cluster.kinds.absence import Absence
from limpet.cluster.kinds.grant import Role
from limpet.cluster.kinds.network import (
    DefaultCommunity,
    Encryption,
    ServicesMode,
    TunnelBackend,
)
from limpet.cluster.kinds.pods import LabelledPod, LabelledPods
from limpet.cluster.kinds.policy import SignedPolicy
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
    twin = Kind("twin", GRANT.parse, GRANT.signers, GRANT.head, by_cluster=GRANT.by_cluster)
    known = Known(Kinds([*KINDS, twin]), PINNED)
    sealed = seal_grant(grant(1), CLUSTER_KEY)

    assert open_sealed(sealed, known).name == grant(1).uid
    with pytest.raises(SealError, match="nobody that this node trusts"):
        open_sealed(Sealed("twin", sealed.body, sealed.signature), known)


def test_a_kind_that_is_unknown_is_refused_in_words() -> None:
    with pytest.raises(SealError, match="kind 'service' is unknown to this Limpet"):
        open_sealed(Sealed("service", b"{}", bytes(64)), NOTHING)


def later(kind: Kind[Any], value: Any, key: bytes, **more: Any) -> Sealed:
    """What a later version has signed, which says more, or says it in other words."""
    plain = {**msgspec.json.decode(seal(kind, value, key).sealed.body), **more}
    body = msgspec.json.encode(plain, order="deterministic")
    return Sealed(kind.name, body, sign(f"document {kind.name}", body, key))


_UID = grant(1).uid
_POD = LabelledPod("default", "web", ("10.244.1.2",), {"app": "web"})
_OF_EACH_KIND: list[tuple[Kind[Any], Any, bytes]] = [
    (NETWORK, network(2, services=ServicesMode.ON), CLUSTER_KEY),
    (GRANT, grant(1, generation=2, era=0, communities=("a",)), CLUSTER_KEY),
    (PRESENCE, presence(1, port=7471), node_key(1)),
    (ABSENCE, Absence(_UID, 1, ("10.244.1.2",)), node_key(1)),
    (POLICY, SignedPolicy("NetworkPolicy/shop/web", 2, {"spec": {}}), CLUSTER_KEY),
    (PODS, LabelledPods(_UID, 0, 1, (_POD,)), node_key(1)),
]


def test_each_kind_is_tried_with_what_a_later_version_says_more() -> None:
    assert [kind.name for kind, _value, _key in _OF_EACH_KIND] == [
        kind.name for kind in KINDS if kind.name not in ("toy", "note")
    ]


@pytest.mark.parametrize(
    ("kind", "value", "key"), _OF_EACH_KIND, ids=[each[0].name for each in _OF_EACH_KIND]
)
def test_what_a_later_version_says_more_is_passed_over_and_kept_in_its_bytes(
    kind: Kind[Any], value: Any, key: bytes
) -> None:
    said = later(kind, value, key, later=1, also={"of": ["a", "later"]})

    opened = open_sealed(said, ONE)
    assert opened.value == value
    assert opened.sealed is said
    with pytest.raises(SealError, match="signed"):
        open_sealed(replace_body(said, later(kind, value, key, later=2)), ONE)


def replace_body(one: Sealed, other: Sealed) -> Sealed:
    return Sealed(one.kind, other.body, one.signature)


def test_a_word_that_only_a_later_version_knows_lets_nobody_do_more_here() -> None:
    roles = later(GRANT, grant(1), CLUSTER_KEY, roles=["edge", "orbit"])
    assert open_sealed(roles, NOTHING).value.roles == {Role.EDGE}

    said = later(
        NETWORK,
        network(2, community_backends={"a": TunnelBackend.IPSEC}),
        CLUSTER_KEY,
        tunnel_backend="quic",
        community_backends={"a": "ipsec", "b": "quic"},
        encryption="on-sundays",
        default_community="neighbours",
        services="some",
    )
    found = open_sealed(said, NOTHING).value
    assert found.tunnel_backend is TunnelBackend.WIREGUARD
    assert found.community_backends == {"a": TunnelBackend.IPSEC, "b": TunnelBackend.WIREGUARD}
    assert found.encryption is Encryption.ALL
    assert found.default_community is DefaultCommunity.NONE
    assert found.services is ServicesMode.AUTO


@pytest.mark.parametrize("nonsense", [7, None, ["all"]])
def test_what_is_no_word_is_refused(nonsense: object) -> None:
    with pytest.raises(SealError, match="read network"):
        open_sealed(later(NETWORK, network(2), CLUSTER_KEY, encryption=nonsense), NOTHING)
    with pytest.raises(SealError, match="read grant"):
        open_sealed(later(GRANT, grant(1), CLUSTER_KEY, roles=[nonsense]), NOTHING)


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


@pytest.mark.parametrize("forgotten", [None, ByCluster(lambda value, *_: value)])
def test_a_kind_that_the_cluster_signs_says_what_becomes_of_it_when_its_key_is_rotated(
    forgotten: ByCluster[Any] | None,
) -> None:
    twin = Kind("twin", GRANT.parse, GRANT.signers, GRANT.head, by_cluster=forgotten)
    with pytest.raises(ValueError, match="register kind twin: the cluster signs it"):
        Kinds([*KINDS, twin])


def test_a_document_says_its_kind_and_name() -> None:
    document: Document = seal(GRANT, grant(1), CLUSTER_KEY)
    assert document.key == ("grant", grant(1).uid)
