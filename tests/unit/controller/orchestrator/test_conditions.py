"""What Limpet's objects say of themselves: conditions with reasons, told when they turn."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address

import msgspec
import pytest

from limpet.cluster.documents import Sealed
from limpet.cluster.kinds import NETWORK
from limpet.cluster.kinds.grant import Role
from limpet.controller.communities import communities
from limpet.controller.orchestrator.conditions import (
    Condition,
    ConditionFacts,
    Shown,
    Written,
    conditions_of,
    read_written,
    status_of,
    turned,
    wanted,
)
from limpet.controller.orchestrator.object_status import Carrying, read_shown
from limpet.controller.registry.records import COMMUNITY, NODE, PRESENCE, CommunityRecord
from limpet.controller.registry.tables import Tables
from limpet.controller.state import nodes, published, recovery
from limpet.controller.store.kubernetes.items import ObjectPlace
from limpet.controller.store.kubernetes.rows import row_of
from tests.unit.cluster_values import node_key, presence, seal_presence
from tests.unit.controller.orchestrator.node_keeper.node_tables import Told, tables_beside
from tests.unit.controller.state.cluster_tables import join, new_tables

NONE = ConditionFacts()


def said(number: int, sequence: int = 1, **changes: object) -> Sealed:
    return seal_presence(presence(number, sequence, **changes), node_key(number))


def shown(tables: Tables, kind: str, name: str, node: str = "") -> Shown:
    """As the object is that the store makes of the item."""
    value = msgspec.json.encode(tables.record(kind, name))
    row = row_of(kind)
    kept = row.encode(name, value, ObjectPlace(node or "default", node))
    body = {**kept.builtins, "metadata": {"name": node or name, "uid": "u", "generation": 1}}
    return read_shown(kind, msgspec.convert(body, Carrying))


def of(tables: Tables, each: Shown, facts: ConditionFacts = NONE) -> dict[str, Condition]:
    return {found.type: found for found in conditions_of(each, tables, facts)}


def false_reasons(tables: Tables, each: Shown, facts: ConditionFacts = NONE) -> dict[str, str]:
    return {
        name: found.reason for name, found in of(tables, each, facts).items() if not found.holds
    }


def test_members_are_in_a_community_also_those_that_join_later_and_absent_ones_are_named() -> None:
    tables = new_tables()
    join(tables, 1, "n1")
    tables.put(COMMUNITY, "harbour", CommunityRecord(members=("n1", "n2", "n3")))
    assert communities.declare(tables, "harbour") == 1
    join(tables, 2, "n2")
    harbour = Shown(COMMUNITY, "harbour", "u", 1, "harbour")

    assert of(tables, harbour) == {
        "Ready": Condition(
            "Ready", True, "Granted", "2 nodes have it in their grants; not joined yet: n3"
        )
    }
    other = Shown(COMMUNITY, "other", "u", 1, "other")
    assert false_reasons(tables, other) == {"Ready": "NotRead"}
    refused = ConditionFacts({"harbour": "too many"})
    assert of(tables, harbour, refused)["Ready"].message == "too many"
    odd = Shown(COMMUNITY, "odd", "u", 1, unreadable="it is nonsense")
    assert of(tables, odd)["Ready"] == Condition("Ready", False, "Unreadable", "it is nonsense")


def test_a_community_that_names_nobody_says_what_to_do() -> None:
    tables = new_tables()
    tables.put(COMMUNITY, "nobody", CommunityRecord(members=("n9",)))

    found = of(tables, Shown(COMMUNITY, "nobody", "u", 1, "nobody"))["Ready"]

    assert (found.holds, found.reason) == (False, "NamesNobody")
    assert "n9" in found.message
    assert "spec.members" in found.message


def test_a_community_that_is_gone_leaves_nothing() -> None:
    tables = new_tables()
    grant = join(tables, 1, "n1")
    communities.create(tables, "harbour", ["n1"])
    tables.put(COMMUNITY, "harbour", None)

    assert communities.declare(tables, "harbour") == 1
    assert tables.grants[grant.uid].communities == ()
    assert tables.nodes[grant.uid].communities == ()


def test_a_grant_says_that_it_is_removed_at_its_quota_or_of_several_machines() -> None:
    tables = new_tables(segment_quota=1)
    grant = join(tables, 1, "n1")
    each = shown(tables, NODE, grant.uid, "n1")
    assert false_reasons(tables, each) == {"SegmentsLeft": "QuotaUsed"}

    tables = new_tables()
    grant = join(tables, 1, "n1")
    each = shown(tables, NODE, grant.uid, "n1")
    assert false_reasons(tables, each) == {}
    join(tables, 2, "n1")
    assert false_reasons(tables, each) == {"NameUnique": "SeveralMachines"}
    nodes.remove(tables, grant.uid, 0.0)
    assert false_reasons(tables, each) == {"Ready": "Removed"}
    assert false_reasons(new_tables(), each) == {"Ready": "NotKnown"}


def test_a_grant_says_that_it_is_not_as_its_node_and_that_it_is_again() -> None:
    told = Told()
    tables = tables_beside(told)
    told.put("n1", "10.244.3.0/24")
    grant = join(tables, 1, "n1")
    each = shown(tables, NODE, grant.uid, "n1")
    assert "MatchesNode" not in of(tables, each)

    refused = ConditionFacts(cidr_problems={"n1": "no room"})
    assert false_reasons(tables, each, refused) == {"MatchesNode": "PodCIDRsRefused"}
    told.objects.clear()
    assert false_reasons(tables, each, refused) == {"MatchesNode": "NodeMissing"}
    tables.put_node(grant.uid, node_gone_at_s=1.0)
    assert false_reasons(tables, each, refused) == {"MatchesNode": "NodeDeleted"}

    tables.put_node(grant.uid, node_gone_at_s=None)
    told.put("n1", "10.244.3.0/24")
    before = Written("MatchesNode", "False", "NodeMissing", "gone", "2026-01-01T00:00:00Z")
    assert of(tables, replace(each, written=(before,)))["MatchesNode"].holds


def test_a_presence_says_whether_it_counts_and_what_is_held_by_others_too() -> None:
    tables = new_tables()
    one, two = join(tables, 1, "n1"), join(tables, 2, "n2")
    for number, grant in ((1, one), (2, two)):
        sealed = said(number, endpoints=((ip_address("192.0.2.1"), 51820),))
        published.publish(tables, grant.uid, sealed, 0.0)
    each = shown(tables, PRESENCE, one.uid, "n1")
    twice = ConditionFacts(held_twice={"n1": ["10.0.0.9: a/x on n1 and a/y on n2"]})

    assert false_reasons(tables, each, twice) == {
        "AddressesUnique": "EndpointShared",
        "PodAddressesUnique": "HeldTwice",
    }
    assert "10.0.0.9" in of(tables, each, twice)["PodAddressesUnique"].message
    assert "10.0.0.9" not in str(of(tables, shown(tables, PRESENCE, two.uid, "n2"), twice))
    published.note_clone(tables, one.uid, 1.0)
    assert false_reasons(tables, each)["IdentityUnique"] == "Cloned"
    published.publish(tables, one.uid, said(1, 2, addresses=(ip_address("10.9.0.1"),)), 0.0)
    assert false_reasons(tables, each)["Signed"] == "NotTaken"
    nodes.set_node(
        tables, "n1", nodes.Altered(add=frozenset({Role.RELAY})), nodes.Altered(), anyway=True
    )
    assert false_reasons(tables, each)["RelayReached"] == "NoPublicAddress"
    nodes.remove(tables, "n1", 0.0)
    assert false_reasons(tables, each)["UnderItsGrant"] == "Removed"


def test_the_network_says_what_concerns_all() -> None:
    tables = new_tables()
    each = shown(tables, NETWORK.name, NETWORK.name)
    assert false_reasons(tables, each) == {}
    facts = ConditionFacts(
        unreadable_grants={"abc": "no JSON"}, held_twice={"n1": ["x"], "n2": ["x"]}
    )
    assert false_reasons(tables, each, facts) == {
        "GrantsReadable": "Unreadable",
        "PodAddressesUnique": "HeldTwice",
    }
    assert of(tables, each, facts)["PodAddressesUnique"].message.count("x") >= 1
    recovery.begin(tables, 16, 0.0, paused=True)
    assert false_reasons(tables, each)["Granting"] == "Recovering"
    assert "limpet controller recovery" in of(tables, each)["Granting"].message


@pytest.mark.parametrize("kind", [NETWORK.name, NODE, PRESENCE])
def test_an_object_edited_into_nonsense_says_so_and_what_to_do(kind: str) -> None:
    tables = new_tables()
    grant = join(tables, 1, "n1")
    published.publish(tables, grant.uid, said(1), 0.0)
    name, node = (NETWORK.name, "") if kind == NETWORK.name else (grant.uid, "n1")
    record = tables.record(kind, name)
    kept = row_of(kind).encode(
        name, msgspec.json.encode(record), ObjectPlace(node or "default", node)
    )
    metadata = {"name": node or "default", "uid": "u", "generation": 2}
    for nonsense in ({"document": None}, {"document": {"body": "AAAA", "signature": 7}}):
        body = {**kept.builtins, "metadata": metadata, **nonsense}
        found = conditions_of(read_shown(kind, msgspec.convert(body, Carrying)), tables, NONE)
        assert [each.reason for each in found] == ["Unreadable"]
        assert "read " in found[0].message
    body = {**kept.builtins, "metadata": metadata}
    body["spec"] = {**body["spec"], "revision": 99, "sequence": 99}
    found = conditions_of(read_shown(kind, msgspec.convert(body, Carrying)), tables, NONE)
    assert "SpecDiffers" in [each.reason for each in found]


def test_a_condition_keeps_the_time_of_its_last_change_and_is_written_once() -> None:
    each = Shown(COMMUNITY, "harbour", "u", 3, "harbour")
    first = wanted(each, [Condition("Ready", True, "Granted", "1")], "2026-01-01T00:00:00Z")
    each = replace(each, written=first)
    same = wanted(each, [Condition("Ready", True, "Granted", "2")], "2026-01-02T00:00:00Z")
    other = wanted(each, [Condition("Ready", False, "Refused", "no")], "2026-01-03T00:00:00Z")

    assert same[0].since == "2026-01-01T00:00:00Z"
    assert other[0].since == "2026-01-03T00:00:00Z"
    status = status_of(each, other, 2)
    assert status["nodes"] == 2
    assert status["conditions"][0]["observedGeneration"] == status["observedGeneration"] == 3
    assert read_written(status) == other
    again = wanted(each, [Condition("Ready", True, "Granted", "1")], "2026-01-09T00:00:00Z")
    assert again == first


def test_a_person_hears_of_what_turned_for_the_worse_or_back() -> None:
    def written(status: str, reason: str) -> tuple[Written, ...]:
        return (Written("Ready", status, reason, "", ""),)

    good, bad = written("True", "Granted"), written("False", "Refused")
    assert turned((), good) == []
    assert turned((), bad) == list(bad)
    assert turned(good, bad) == list(bad)
    assert turned(bad, bad) == []
    assert turned(bad, written("False", "Unreadable")) == list(written("False", "Unreadable"))
    assert turned(bad, good) == list(good)
    assert turned(good, written("True", "Other")) == []


def test_a_status_of_nonsense_is_written_over() -> None:
    several: tuple[object, ...] = (
        *(None, 1, [], {"conditions": 1}, {"conditions": [1, {"type": 1}, {"type": "Ready"}]}),
    )
    for nonsense in several:
        assert read_written(nonsense) == ()
