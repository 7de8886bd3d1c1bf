"""Labels of Nodes in the grants: the zone, and those that communities choose by, as long as the
Node has them."""

from __future__ import annotations

import pytest

from limpet.base.bounds.administrators import COMMUNITIES
from limpet.controller.communities import communities
from limpet.controller.communities.node_labels import take_labels
from limpet.controller.node_objects.node import FABEDGE_LABELS, NodeSource
from limpet.controller.registry.records import COMMUNITY, CommunityRecord
from limpet.controller.registry.refusal import RefusedError
from limpet.controller.registry.tables import Tables
from limpet.controller.state import nodes
from limpet.controller.state.authority import create_cluster
from tests.unit.controller.state.cluster_tables import join, network, new_tables

SITE = "example.org/site"
ZONE = "topology.kubernetes.io/zone"


def tables_with_node() -> Tables:
    tables = new_tables()
    join(tables, 1, "n1")
    tables.put(COMMUNITY, "harbour", CommunityRecord(f"{SITE}=harbour"))
    communities.declare(tables, "harbour")
    tables.commit()
    return tables


def communities_of(tables: Tables) -> tuple[str, ...]:
    (uid,) = tables.uids_of("n1")
    return tables.grants[uid].communities


def test_a_node_is_in_the_community_while_its_node_object_has_the_label() -> None:
    tables = tables_with_node()

    assert take_labels(tables, {"n1": {SITE: "harbour", "other": "x"}, "n9": {}}).changed == ("n1",)
    assert communities_of(tables) == ("harbour",)
    assert take_labels(tables, {"n1": {SITE: "harbour", "other": "y"}}).changed == ()
    assert take_labels(tables, {}).changed == ()
    assert communities_of(tables) == ("harbour",)
    assert take_labels(tables, {"n1": {"other": "y"}}).changed == ("n1",)
    assert communities_of(tables) == ()
    (uid,) = tables.uids_of("n1")
    assert tables.grants[uid].labels == {}


def test_labels_that_a_person_gave_the_node_here_stay() -> None:
    tables = tables_with_node()
    nodes.label(tables, "n1", {"tier": "edge"}, ())

    take_labels(tables, {"n1": {SITE: "harbour", "tier": "cloud"}})
    take_labels(tables, {"n1": {}})

    (uid,) = tables.uids_of("n1")
    assert tables.grants[uid].labels == {"tier": "edge"}


def test_a_nodes_zone_is_in_its_grant_without_any_community_that_asks_for_it() -> None:
    tables = new_tables()
    join(tables, 1, "n1")
    nodes.label(tables, "n1", {"tier": "edge"}, ())
    (uid,) = tables.uids_of("n1")

    assert take_labels(tables, {"n1": {ZONE: "hall", "other": "x"}}).changed == ("n1",)
    assert tables.grants[uid].labels == {ZONE: "hall", "tier": "edge"}
    assert tables.grants[uid].zone == "hall"
    assert tables.grants[uid].communities == ()
    tables.commit()
    assert take_labels(tables, {"n1": {ZONE: "hall", "other": "y"}}).changed == ()
    assert list(tables.changed()) == []
    assert take_labels(tables, {"n1": {ZONE: "yard"}}).changed == ("n1",)
    assert tables.grants[uid].zone == "yard"
    assert take_labels(tables, {"n1": {}}).changed == ("n1",)
    assert tables.grants[uid].labels == {"tier": "edge"}
    assert tables.grants[uid].zone == ""


def test_a_zone_that_a_person_gave_stays_where_the_node_object_has_none() -> None:
    tables = new_tables()
    join(tables, 1, "n1")
    nodes.label(tables, "n1", {ZONE: "hall"}, ())
    (uid,) = tables.uids_of("n1")

    assert take_labels(tables, {"n1": {"other": "x"}}).changed == ()
    assert tables.grants[uid].zone == "hall"
    assert take_labels(tables, {"n1": {ZONE: "yard"}}).changed == ("n1",)
    assert tables.grants[uid].zone == "yard"


def test_labels_of_a_node_object_do_not_outlive_it_when_its_machine_is_replaced() -> None:
    tables = tables_with_node()
    nodes.label(tables, "n1", {"tier": "edge"}, ())
    take_labels(tables, {"n1": {SITE: "harbour"}})
    nodes.await_replacement(tables, "n1", wanted=True)

    heir = join(tables, 2, "n1")
    assert heir.communities == ("harbour",)
    take_labels(tables, {"n1": {}})

    assert communities_of(tables) == ()
    assert tables.grants[heir.uid].labels == {"tier": "edge"}


def test_what_no_selector_names_makes_no_new_grant() -> None:
    tables = tables_with_node()
    tables.commit()

    assert take_labels(tables, {"n1": {"kubernetes.io/hostname": "n1"}}).changed == ()
    assert list(tables.changed()) == []


def test_of_two_machines_of_one_name_none_is_taken_for_the_node() -> None:
    tables = tables_with_node()
    join(tables, 2, "n1")

    assert take_labels(tables, {"n1": {SITE: "harbour"}}).changed == ()


FABEDGE, BOCLOUD = FABEDGE_LABELS


def test_a_label_as_fabedge_spells_it_puts_a_node_into_the_community_that_it_names() -> None:
    """Switched on by a setting; the community is made if there is none."""
    tables = Tables(0.0, NodeSource(community_labels=FABEDGE_LABELS))
    create_cluster(tables, network())
    for number in (1, 2, 3):
        join(tables, number, f"n{number}")
    communities.create(tables, "quay", ["n3"])

    take_labels(tables, {"n1": {FABEDGE: "harbour"}, "n2": {BOCLOUD: "quay"}, "n9": {FABEDGE: "x"}})

    assert communities_of(tables) == ("harbour",)
    assert [grant.name for grant in communities.members_of(tables, "quay")] == ["n2", "n3"]
    assert tables.communities.keys() == {"harbour", "quay"}
    with pytest.raises(RefusedError, match="kubectl label node n2"):
        communities.take_out(tables, "quay", ["n2"])

    communities.dissolve(tables, "harbour")
    take_labels(tables, {"n1": {FABEDGE: "harbour"}, "n2": {}})
    assert communities_of(tables) == ("harbour",)
    assert [grant.name for grant in communities.members_of(tables, "quay")] == ["n3"]


def test_it_counts_for_nothing_where_it_is_not_switched_on_or_names_nothing_possible() -> None:
    tables = tables_with_node()
    assert take_labels(tables, {"n1": {FABEDGE: "quay"}}).changed == ()
    assert tables.communities.keys() == {"harbour"}

    switched_on = Tables(0.0, NodeSource(community_labels=FABEDGE_LABELS))
    create_cluster(switched_on, network())
    join(switched_on, 1, "n1")
    take_labels(switched_on, {"n1": {FABEDGE: "", BOCLOUD: "-x"}})
    assert not switched_on.communities


def test_a_node_that_is_in_too_many_communities_holds_up_no_other() -> None:
    """Neither what it was, nor what others get, is touched by that."""
    tables = Tables(0.0, NodeSource(community_labels=FABEDGE_LABELS))
    create_cluster(tables, network())
    for number in (1, 2, 3):
        join(tables, number, f"n{number}")
    for number in range(COMMUNITIES.most):
        communities.create(tables, f"c{number}", ["n2"])
    (uid,) = tables.uids_of("n2")
    before, record = tables.grants[uid], tables.nodes[uid]

    labels = {f"n{number}": {FABEDGE: "harbour"} for number in (1, 2, 3)}
    taken = take_labels(tables, labels)

    assert taken.changed == ("n1", "n3")
    assert set(taken.refused) == {"node n2"}
    assert "64 at most" in taken.refused["node n2"]
    assert (tables.grants[uid], tables.nodes[uid]) == (before, record)
    members = [grant.name for grant in communities.members_of(tables, "harbour")]
    assert members == ["n1", "n3"]
    assert take_labels(tables, labels).changed == ()

    communities.dissolve(tables, "c0")
    assert take_labels(tables, labels).changed == ("n2",)


def test_a_community_that_cannot_be_made_keeps_no_label_from_being_taken() -> None:
    """The label of a node that is full was taken before; the community was dissolved meanwhile."""
    tables = Tables(0.0, NodeSource(community_labels=FABEDGE_LABELS))
    create_cluster(tables, network())
    for number in (1, 2):
        join(tables, number, f"n{number}")
    take_labels(tables, {"n1": {FABEDGE: "harbour"}})
    communities.dissolve(tables, "harbour")
    for number in range(COMMUNITIES.most):
        communities.create(tables, f"c{number}", ["n1"])

    taken = take_labels(tables, {"n1": {FABEDGE: "harbour"}, "n2": {FABEDGE: "quay"}})

    assert taken.changed == ("n2",)
    assert set(taken.refused) == {"community harbour"}
    assert "harbour" not in tables.communities
    assert [grant.name for grant in communities.members_of(tables, "quay")] == ["n2"]
