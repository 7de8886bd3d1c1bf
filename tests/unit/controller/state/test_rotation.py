"""The cluster's key after it was stolen: what the controller signs anew, and what it takes up."""

from __future__ import annotations

import ssl
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from msgspec.structs import replace as replace_fields

from limpet.base.bounds.signers import MAX_ERA, MAX_VERSION
from limpet.cluster.documents import Document, Known
from limpet.cluster.keys import ClusterKey, RevokedKeyError, endorse, public_key_of, uid_of
from limpet.cluster.kinds import GRANT, KINDS, NETWORK, POLICY, PRESENCE
from limpet.cluster.kinds.grant import Role
from limpet.cluster.kinds.network import signing_keys
from limpet.cluster.kinds.policy import SignedPolicy
from limpet.cluster.merge import merge
from limpet.cluster.seal import open_sealed, seal
from limpet.controller.registry.records import AUTHORITY, NODE, NodeRecord, PresenceRecord
from limpet.controller.registry.refusal import RefusedError
from limpet.controller.registry.rotation import (
    finish_rotation,
    has_signing_key,
    rotate_key,
    take_keys,
)
from limpet.controller.registry.tables import Tables
from limpet.controller.state import recovery
from limpet.controller.state.authority import _certificate, uid_of_certificate
from limpet.controller.state.cluster import Cluster
from limpet.controller.state.grants import change_grant, request_segments
from limpet.controller.state.nodes import remove
from limpet.controller.state.recovery import absorb
from tests.unit.cluster_values import grant, node_key, presence
from tests.unit.controller.state.cluster_tables import copy, join, new_tables
from tests.unit.controller.state.test_cut_off import OneByOneStore, two_nodes, with_cluster

NEXT, THIEF = node_key(200), node_key(201)


def a_cluster() -> Tables:
    """A node, a removed one, one of flannel's, and a policy."""
    tables = new_tables()
    join(tables, 1, "n1")
    join(tables, 2, "n2")
    remove(tables, "n2", 0.0)
    flannel = grant(3, name="f3", roles=frozenset({Role.FLANNEL}), revision=tables.next_revision())
    tables.sign(GRANT, flannel, NodeRecord(seal(GRANT, flannel, THIEF).sealed, 0.0))
    said = seal(PRESENCE, presence(3, sequence=4), THIEF).sealed
    tables.sign(PRESENCE, presence(3, sequence=4), PresenceRecord(said, 4, "", (), 0.0))
    tables.sign(POLICY, SignedPolicy("NetworkPolicy/shop/web", tables.next_revision(), {}))
    return tables


def documents_of(tables: Tables) -> list[Document]:
    found = [(kind.name, name) for kind in KINDS.published() for name in tables.records(kind.name)]
    return [document for key in found if (document := tables.find(key)) is not None]


def forged(tables: Tables, number: int, **changes: object) -> Document:
    key = tables.authority.cluster_keys[0]
    return seal(GRANT, grant(number, **{"revision": 10**6, **changes}), key)


def test_everything_that_counts_is_signed_anew_and_a_new_node_can_check_all_of_it() -> None:
    tables = a_cluster()
    before = {each.key: each for each in documents_of(tables)}

    count = rotate_key(tables, NEXT)

    after = documents_of(tables)
    assert count == len(after) - 1 == 5
    known = Known(KINDS, tables.pinned)
    for document in after:
        assert document.era == 1
        assert document.is_newer(before[document.key])
        known = merge(known, [open_sealed(document.sealed, known)])[0]
    assert {each.key for each in known} == before.keys()
    assert tables.presences[grant(3).uid].sequence == 5


def test_what_stands_under_others_is_signed_anew_last_and_takes_no_revision() -> None:
    tables = a_cluster()
    tables.commit()
    before = tables.state.revision

    rotate_key(tables, NEXT)

    signed = [kind for kind, _, _ in tables.changed() if KINDS.get(kind) is not None]
    kinds = (NETWORK, GRANT, GRANT, GRANT, POLICY, PRESENCE)
    assert signed == [kind.name for kind in kinds]
    revisions = [each.revision for each in documents_of(tables) if each.kind != PRESENCE.name]
    assert sorted(revisions) == list(range(before + 1, before + 6))
    assert tables.state.revision == before + 5


def test_what_a_thief_has_had_taken_up_does_not_outlive_the_rotation() -> None:
    tables = a_cluster()
    stolen, (own,) = tables.authority.cluster_keys[0], tables.uids_of("n1")
    keys = (ClusterKey(public_key_of(stolen)), endorse(public_key_of(THIEF), stolen))
    most = MAX_VERSION.most
    tables.put_document(seal(NETWORK, replace(tables.network, keys=keys, generation=most), THIEF))
    tables.put_document(seal(GRANT, replace(tables.grants[own], generation=most, era=1), THIEF))

    rotate_key(tables, NEXT)

    assert [key.public_key for key in tables.network.keys] == [
        public_key_of(stolen),
        public_key_of(NEXT),
    ]
    change_grant(tables, tables.grants[own], labels={"still": "possible"})
    for document in documents_of(tables):
        assert document.version < most


def test_what_only_a_thief_has_signed_is_withdrawn_when_a_node_shows_it() -> None:
    tables = a_cluster()
    node = forged(tables, 9, name="n1", segments=(ip_network("10.244.200.0/24"),))
    policy = seal(
        POLICY,
        SignedPolicy("NetworkPolicy/shop/none", 10**6, {}),
        tables.authority.cluster_keys[0],
    )
    rotate_key(tables, NEXT)
    known, shown = documents_of(tables), forged(tables, 1, generation=10**6)
    nobodys = seal(GRANT, grant(8, revision=1), THIEF)

    taken = absorb(tables, [each.sealed for each in (node, policy, shown, nobodys)], 0, 0.0)

    assert taken == 2
    buried = tables.find(node.key)
    assert buried is not None
    assert buried.tombstone
    assert buried.is_newer(node)
    assert tables.uids_of("n1") != [node.name]
    withdrawn = tables.find(policy.key)
    assert withdrawn is not None
    assert withdrawn.value.document is None
    assert withdrawn.is_newer(policy)
    assert [each for each in documents_of(tables) if each not in known] == [buried, withdrawn]
    assert tables.state.recovery is None


def test_another_successor_of_a_former_key_is_refused() -> None:
    tables = a_cluster()
    stolen = tables.authority.cluster_keys[0]
    rotate_key(tables, NEXT)
    keys = (tables.network.keys[0], endorse(public_key_of(THIEF), stolen))
    other = seal(NETWORK, replace(tables.network, keys=keys, generation=10**6), THIEF)

    with pytest.raises(RevokedKeyError):
        absorb(tables, [other.sealed], 0, 0.0)


def test_a_controller_without_the_key_that_signs_now_says_so_and_signs_nothing() -> None:
    tables = a_cluster()
    old = copy(tables)
    rotate_key(tables, NEXT)
    (own,) = tables.uids_of("n1")

    absorb(old, [*tables.first_documents, tables.nodes[own].sealed], 0, 0.0)

    assert not has_signing_key(old)
    with pytest.raises(RefusedError, match="restore one of after that"):
        change_grant(old, old.grants[own], labels={"a": "b"})


def test_a_restored_controller_goes_on_with_the_keys_of_the_database_that_it_replaces() -> None:
    tables = a_cluster()
    old = copy(tables)
    rotate_key(tables, NEXT)

    take_keys(old, tables.authority)

    assert has_signing_key(old)
    assert {each.era for each in documents_of(old)} == {1}
    assert open_sealed(old.first_documents[0], tables).value.keys == tables.network.keys


def test_the_key_is_not_rotated_while_what_was_granted_and_removed_since_is_unknown() -> None:
    tables = a_cluster()
    recovery.begin(tables, 0, 0.0, paused=True)

    with pytest.raises(RefusedError, match="Wait until every node has reported"):
        rotate_key(tables, NEXT)

    recovery.force(tables)
    assert rotate_key(tables, NEXT) == 5


def test_a_thief_of_the_key_who_opens_recoveries_again_and_again_is_shut_out_by_force() -> None:
    tables = a_cluster()
    stolen = tables.authority.cluster_keys[-1]
    for number in (40, 41):
        revision = tables.state.revision + 1
        forged = seal(GRANT, grant(number, segments=(), revision=revision), stolen)
        absorb(tables, [forged.sealed], 10, 0.0)
        with pytest.raises(RefusedError, match="rotate-key --force"):
            rotate_key(tables, NEXT)
    held_back = {each.prefix for each in tables.space.holdings.values() if not each.uid}
    assert held_back

    rotate_key(tables, NEXT, force=True)

    assert tables.state.recovery is None
    assert {each.era for each in documents_of(tables)} == {1}
    assert {each.prefix for each in tables.space.holdings.values() if not each.uid} == held_back
    forged = seal(GRANT, grant(42, segments=(), revision=tables.state.revision + 1), stolen)
    absorb(tables, [forged.sealed], 10, 0.0)
    assert tables.grants[grant(42).uid].tombstone
    assert tables.state.recovery is None


def restored_from_before_a_rotation() -> tuple[Tables, list[Document]]:
    """The tables, and what was signed after the back-up by the key that was rotated away: a
    removal, a newcomer, and a second segment."""
    tables = a_cluster()
    other = join(tables, 4, "n4")
    old = copy(tables)
    remove(tables, "n1", 0.0)
    newcomer = join(tables, 5, "n5")
    request_segments(tables, other.uid, other.generation, (4,), 0.0)
    uids = (grant(1).uid, newcomer.uid, other.uid)
    lost = [each for uid in uids if (each := tables.find((GRANT.name, uid))) is not None]
    rotate_key(tables, NEXT)
    recovery.begin(old, 0, 0.0, paused=False, former=tables.state)
    take_keys(old, tables.authority)
    return old, lost


def test_what_a_former_key_signed_after_the_back_up_removes_and_is_held_and_grants_nothing() -> (
    None
):
    old, lost = restored_from_before_a_rotation()
    (removal, newcomer, more) = lost
    before = old.grants[more.name]

    absorb(old, [each.sealed for each in lost], 0, 0.0)

    assert old.grants[removal.name].tombstone
    assert old.grants[removal.name].era == old.era == 1
    assert newcomer.name not in old.grants
    assert old.grants[more.name] == before
    for prefix in {*newcomer.value.segments, *more.value.segments} - {*before.segments}:
        assert old.space.holdings[prefix].uid == ""
    assert old.state.recovery is not None


def test_what_a_former_key_signed_after_it_was_rotated_away_removes_nobody() -> None:
    old, _ = restored_from_before_a_rotation()
    key, until = old.authority.cluster_keys[0], old.authority.rotated_at[0]
    removal = grant(1, tombstone=True, segments=(), revision=until + 1, generation=9)

    absorb(old, [seal(GRANT, removal, key).sealed], 0, 0.0)

    assert not old.grants[removal.uid].tombstone


def test_a_rotation_that_is_made_again_after_a_conflict_is_one(tmp_path: Path) -> None:
    """In Kubernetes the key is written before what it signs."""

    async def body(store: OneByOneStore, cluster: Cluster) -> None:
        await cluster.change(two_nodes)
        once = iter([True])
        store.conflicts = lambda change: change.kind == NODE and next(once, False)

        assert await cluster.rotate_key() == 2

        keys = await cluster.change(signing_keys)
        assert len(keys) == len(set(keys)) == 2
        eras = await cluster.change(lambda tables: {each.era for each in documents_of(tables)})
        assert eras == {1}
        assert await cluster.change(finish_rotation) == 0

    with_cluster(tmp_path, body)


def test_a_row_of_keys_that_no_node_takes_is_not_made() -> None:
    tables = new_tables()
    authority = tables.authority
    many = replace_fields(authority, cluster_keys=authority.cluster_keys * (MAX_ERA.most + 1))
    tables.put(AUTHORITY, AUTHORITY, many)

    with pytest.raises(RefusedError, match="rotated 127 times"):
        rotate_key(tables, NEXT)


def test_who_has_the_cas_key_makes_no_certificate_of_a_node_that_exists() -> None:
    """The node is told by the key that the handshake proves, whatever the certificate names."""
    authority = a_cluster().authority
    victim, thief = uid_of(public_key_of(node_key(1))), public_key_of(THIEF)
    key = Ed25519PublicKey.from_public_bytes(thief)
    forged = _certificate(victim, key, authority.ca_key, authority.ca_certificate)

    assert uid_of_certificate(ssl.PEM_cert_to_DER_cert(forged)) == uid_of(thief) != victim
