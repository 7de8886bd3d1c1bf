"""Nodes that flannel runs: what their annotations become, and what flannel's nodes read of ours."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest

from limpet.cluster.kinds import PRESENCE
from limpet.cluster.kinds.grant import Role
from limpet.cluster.kinds.presence import Presence
from limpet.cluster.seal import check, seal
from limpet.cluster.topology.vtep_mac import derived_vtep_mac
from limpet.controller.node_objects.lease import (
    FlannelLease,
    annotations_of,
    kept_macs,
    read_lease,
)
from limpet.controller.node_objects.node import REPLACE_LABEL, NodeObject
from limpet.controller.orchestrator.flannel.nodes import FlannelOutcome, take_flannel
from limpet.controller.registry.refusal import RefusedError
from limpet.controller.registry.tables import Tables
from limpet.controller.state import recovery, vtep_macs
from limpet.controller.state.nodes import await_replacement, remove
from tests.unit.cluster_values import node_key
from tests.unit.controller.state.cluster_tables import copy, join, new_tables

MAC, MAC6 = "9e:c9:07:f9:b3:8b", "9e:c9:07:f9:b3:8c"
ANNOTATIONS = {
    "kube-subnet-manager": "true",
    "backend-type": "vxlan",
    "backend-data": f'{{"VNI":1,"VtepMAC":"{MAC}"}}',
    "public-ip": "192.0.2.9",
}
DUAL = {
    **ANNOTATIONS,
    "backend-v6-data": f'{{"VNI":1,"VtepMAC":"{MAC6}"}}',
    "public-ipv6": "2001:db8::9",
}
CIDR = ip_network("10.244.9.0/24")
NODE = NodeObject("node", "u1", pod_cidrs=(CIDR,), flannel=ANNOTATIONS)


def take(
    tables: Tables, *nodes: NodeObject, gone: tuple[str, ...] = (), now_s: float = 0.0
) -> FlannelOutcome:
    return take_flannel(tables, {each.name: each for each in nodes}, gone, now_s)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, FlannelLease((ip_address("192.0.2.9"),), {4: MAC}, frozenset({1}))),
        # Old flannels name no VNI; newer ones write null for a family that they do not have.
        (
            {"backend-data": f'{{"VtepMAC":"{MAC}"}}', "backend-v6-data": "null"},
            FlannelLease((ip_address("192.0.2.9"),), {4: MAC}, frozenset({1})),
        ),
        (
            DUAL,
            FlannelLease(
                (ip_address("192.0.2.9"), ip_address("2001:db8::9")),
                {4: MAC, 6: MAC6},
                frozenset({1}),
            ),
        ),
        ({"kube-subnet-manager": "false"}, None),
    ],
)
def test_what_annotations_say(changes: dict[str, str], expected: FlannelLease | None) -> None:
    assert read_lease({**ANNOTATIONS, **changes}) == expected


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"backend-type": "host-gw"}, "backend 'host-gw', and only vxlan"),
        ({"backend-data": "{"}, "flannel.alpha.coreos.com/backend-data or public-ip"),
        ({"backend-data": '{"VtepMAC":"no"}'}, "'no' for IPv4"),
        ({"public-ip": "2001:db8::9"}, "2001:db8::9"),
        ({"public-ip": ""}, "backend-data or public-ip"),
        ({"backend-data": "null"}, "no VXLAN device"),
    ],
)
def test_annotations_that_say_nonsense_are_refused_in_words(
    changes: dict[str, str], words: str
) -> None:
    with pytest.raises(ValueError, match=r"annotation|backend") as refused:
        read_lease({**ANNOTATIONS, **changes})

    assert words in str(refused.value)


def test_a_node_that_joins_is_told_the_macs_that_others_know() -> None:
    assert kept_macs(DUAL) == {4: MAC, 6: MAC6}
    assert kept_macs({}) == {}
    assert kept_macs({**DUAL, "backend-type": "host-gw"}) == {}


def test_what_is_written_for_a_node_is_read_as_that_again() -> None:
    addresses = tuple(map(ip_address, ("fe80::1", "2001:db8::9", "198.51.100.1", "192.0.2.9")))
    known = (ip_address("192.0.2.9"),)

    written = annotations_of({4: MAC, 6: MAC6}, 7, addresses, known, {})
    read = read_lease({key: value for key, value in written.items() if value is not None})

    # The address that Kubernetes knows comes first, none that only one link knows is told.
    assert read == FlannelLease(
        (ip_address("192.0.2.9"), ip_address("2001:db8::9")), {4: MAC, 6: MAC6}, frozenset({7})
    )
    # Of a family that it does not have flannel reads nothing, also not what was there before.
    alone = annotations_of({4: MAC}, 7, addresses, known, DUAL)
    assert (alone["backend-v6-data"], alone["public-ipv6"]) == (None, None)
    # What a person has told flannel of a NAT in front of the node holds here too.
    behind = annotations_of({4: MAC}, 7, addresses, known, {"public-ip-overwrite": "203.0.113.1"})
    assert behind["public-ip"] == "203.0.113.1"


def test_a_node_of_flannels_is_a_member_with_its_pod_cidrs_that_the_cluster_speaks_for() -> None:
    tables = new_tables()

    assert take(tables, NODE).changed == ["node"]

    (grant,) = tables.grants.values()
    assert (grant.name, grant.segments, grant.roles) == (
        "node",
        (CIDR,),
        frozenset({Role.FLANNEL}),
    )
    presence = tables.presence(grant.uid)
    assert presence is not None
    assert (presence.addresses, presence.vtep_macs) == ((ip_address("192.0.2.9"),), {4: MAC})
    document = tables.find((PRESENCE.name, grant.uid))
    assert document is not None
    check(document, tables)
    # Looked at again, also by the next controller, it is the same.
    assert take(copy(tables), NODE).changed == []
    # What it says of itself changes alone.
    moved = replace(NODE, flannel={**ANNOTATIONS, "public-ip": "192.0.2.10"})
    assert take(tables, moved).changed == ["node"]
    assert tables.grants[grant.uid].generation == 1


def test_a_node_that_joins_under_the_name_takes_the_segments_over_and_nothing_else() -> None:
    tables = new_tables()
    take(tables, NODE)
    (theirs,) = tables.grants.values()

    ours = join(tables, 1, "node")

    assert (ours.segments, ours.roles, ours.supersedes) == (
        (CIDR,),
        frozenset({Role.EDGE}),
        (theirs.uid,),
    )
    assert tables.grants[theirs.uid].tombstone
    # Its annotations stay: it is not taken for flannel's again.
    assert take(tables, NODE).changed == []
    assert tables.uids_of("node") == [ours.uid]


def test_no_machine_takes_the_place_of_a_node_that_flannel_runs_as_one_of_flannels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tables = new_tables()
    take(tables, NODE)
    (theirs,) = tables.grants.values()

    with pytest.raises(RefusedError, match=r"flannel runs it, and a machine that joins under"):
        await_replacement(tables, "node", wanted=True)
    # Asked for by the label of the Node, or of a controller of before that let it be asked for.
    labelled = replace(NODE, labels={REPLACE_LABEL: theirs.uid})
    monkeypatch.setitem(tables.source.nodes.objects, "node", labelled)
    tables.put_node(theirs.uid, awaits_replacement=True)

    ours = join(tables, 1, "node")

    assert (ours.segments, ours.roles) == ((CIDR,), frozenset({Role.EDGE}))
    assert not await_replacement(tables, "node", wanted=False).is_flannel


def test_a_node_that_goes_back_gets_its_segments_back_under_another_uid() -> None:
    tables = new_tables()
    take(tables, NODE)
    (first,) = tables.grants
    ours = join(tables, 1, "node")

    remove(tables, "node", 0.0)

    assert take(tables, NODE).changed == ["node"]
    (uid,) = tables.uids_of("node")
    assert uid not in (first, ours.uid)
    assert tables.grants[uid].segments == (CIDR,)
    assert ours.uid in tables.grants[uid].supersedes


def test_a_node_that_is_deleted_goes_and_one_that_is_not_told_stays() -> None:
    tables = new_tables()
    take(tables, NODE)

    assert take(tables).changed == []
    assert tables.uids_of("node")
    assert take(tables, gone=("node",)).changed == ["node"]
    assert not tables.uids_of("node")
    # Without flannel's annotations it is nobody's.
    take(tables, NODE)
    assert tables.uids_of("node")
    assert take(tables, replace(NODE, flannel={})).changed == ["node"]
    assert not tables.uids_of("node")


def test_a_pod_cidr_of_a_node_that_went_is_another_nodes_when_it_has_rested() -> None:
    tables = new_tables(quarantine_s=100.0)
    take(tables, NODE)
    (first,) = tables.uids_of("node")
    take(tables, gone=("node",), now_s=1.0)
    heir = replace(NODE, name="heir", uid="u2")

    (problem,) = take(tables, heir, now_s=100.9).problems.values()
    assert "10.244.9.0/24 rests until 1970-01-01T00:01Z, since the removed node node" in problem
    assert take(tables, heir, now_s=101.0).changed == ["heir"]

    (uid,) = tables.uids_of("heir")
    assert (tables.grants[uid].segments, tables.grants[uid].supersedes) == ((CIDR,), (first,))


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (replace(NODE, pod_cidrs=(ip_network("10.99.0.0/24"),)), "is no segment of this cluster"),
        (replace(NODE, pod_cidrs=(ip_network("10.244.8.0/23"),)), "is no segment of this cluster"),
        (replace(NODE, pod_cidrs=(ip_network("10.244.0.0/24"),)), "is granted to other"),
        (replace(NODE, pod_cidrs=()), "it has no podCIDR"),
        (
            replace(
                NODE,
                flannel={**ANNOTATIONS, "backend-data": f'{{"VNI":4096,"VtepMAC":"{MAC}"}}'},
            ),
            "VXLAN id 4096, the cluster 1",
        ),
    ],
)
def test_a_node_that_can_be_no_peer_is_told_in_words_and_changes_nothing(
    node: NodeObject, words: str
) -> None:
    tables = new_tables()
    other = join(tables, 1, "other")

    taken = take(tables, node)

    assert words in taken.problems["node"]
    assert list(tables.grants) == [other.uid]


def test_flannels_nodes_are_told_of_ours_once_their_pod_cidrs_are_their_segments() -> None:
    tables = new_tables()
    ours = join(tables, 1, "ours")
    node = NodeObject("ours", "u2", pod_cidrs=ours.segments)
    assert take(tables, node).annotations == {}  # it has said nothing of itself

    presence = Presence(
        ours.uid, 0, "boot", addresses=(ip_address("192.0.2.1"),), vtep_macs={4: MAC}
    )
    tables.put_document(seal(PRESENCE, presence, node_key(1)))

    assert take(tables, node).annotations["ours"]["public-ip"] == "192.0.2.1"
    strange = take(tables, replace(node, pod_cidrs=(CIDR,)))
    assert strange.annotations == {}
    assert "its podCIDR 10.244.9.0/24, which is no segment" in strange.problems["ours"]


def test_flannels_nodes_are_told_no_mac_that_is_another_nodes() -> None:
    tables = new_tables()
    victim, claimant = join(tables, 1, "victim"), join(tables, 2, "claimant")
    macs = {4: derived_vtep_mac(victim.uid, 4)}
    for sequence, (said, is_told) in enumerate(((macs, False), ({4: MAC}, True))):
        presence = Presence(
            claimant.uid, sequence, "boot", addresses=(ip_address("192.0.2.2"),), vtep_macs=said
        )
        tables.put_document(seal(PRESENCE, presence, node_key(2)))
        taken = take(tables, NodeObject("claimant", "u2", pod_cidrs=claimant.segments))
        assert (taken.annotations != {}) is is_told
        words = "it claims the MAC address of node victim as its VXLAN device's"
        assert any(words in each for each in taken.problems.values()) is not is_told


def test_a_node_of_flannels_that_names_another_nodes_mac_is_no_peer() -> None:
    tables = new_tables()
    victim = join(tables, 1, "victim")
    data = f'{{"VNI":1,"VtepMAC":"{derived_vtep_mac(victim.uid, 4)}"}}'

    taken = take(tables, replace(NODE, flannel={**ANNOTATIONS, "backend-data": data}))

    assert "name the MAC address of node victim as its own" in taken.problems["node"]
    assert list(tables.grants) == [victim.uid]


def test_the_macs_that_a_node_brings_along_are_in_its_grant_unless_they_are_anothers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for annotated, kept in ((MAC, {4: MAC}), (None, {})):
        tables = new_tables()
        first = join(tables, 2, "first")
        mac = annotated or derived_vtep_mac(first.uid, 4)
        data = f'{{"VNI":1,"VtepMAC":"{mac}"}}'
        mover = NodeObject("mover", "u9", flannel={**ANNOTATIONS, "backend-data": data})
        monkeypatch.setitem(tables.source.nodes.objects, "mover", mover)
        joined = join(tables, 3, "mover")
        assert tables.grants[joined.uid].vtep_macs == kept


def test_a_key_whose_mac_is_another_nodes_is_not_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    # It takes four thousand million keys to find one that does it.
    monkeypatch.setattr(vtep_macs, "derived_vtep_mac", lambda _uid, version: f"0e:4c::{version}")
    tables = new_tables()
    join(tables, 1, "first")

    with pytest.raises(RefusedError, match="the MAC address that follows from its key is that of"):
        join(tables, 2, "second")


def test_a_controller_that_was_restored_waits_for_no_report_of_flannels_nodes() -> None:
    tables = new_tables()
    take(tables, NODE)
    ours = join(tables, 1, "ours")
    recovery.begin(tables, 1, 0.0, paused=False)

    assert recovery.waiting_for(tables) == [tables.grants[ours.uid]]
