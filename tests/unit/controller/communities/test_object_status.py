"""What a Community's object says of itself."""

from __future__ import annotations

import msgspec

from limpet.controller.communities import communities
from limpet.controller.communities.object_status import CommunityObject, Finding, find, status_of
from limpet.controller.state.records import COMMUNITY, CommunityRecord
from tests.unit.controller.state.cluster_tables import join, new_tables


def declared(generation: int, status: object = None) -> CommunityObject:
    metadata = {"name": "harbour", "generation": generation}
    return msgspec.convert({"metadata": metadata, "status": status}, CommunityObject)


def test_members_are_in_it_also_those_that_join_later_and_absent_ones_are_named() -> None:
    tables = new_tables()
    join(tables, 1, "n1")
    tables.put(COMMUNITY, "harbour", CommunityRecord(members=("n1", "n2", "n3")))
    assert communities.declare(tables, "harbour") == 1
    join(tables, 2, "n2")

    finding = find("harbour", tables, {})

    assert finding == Finding(2, "Granted", "2 nodes have it in their grants; not joined yet: n3")
    assert find("other", tables, {}).reason == "NotRead"
    assert find("harbour", tables, {"harbour": "too many"}) == Finding(2, "Refused", "too many")


def test_a_community_that_is_gone_leaves_nothing() -> None:
    tables = new_tables()
    grant = join(tables, 1, "n1")
    communities.create(tables, "harbour", ["n1"])
    tables.put(COMMUNITY, "harbour", None)

    assert communities.declare(tables, "harbour") == 1
    assert tables.grants[grant.uid].communities == ()
    assert tables.nodes[grant.uid].communities == ()


def test_a_condition_keeps_the_time_of_its_last_change() -> None:
    first = status_of(Finding(1, "Granted", "1"), declared(1), "2026-01-01T00:00:00Z")
    same = status_of(Finding(2, "Granted", "2"), declared(2, first), "2026-01-02T00:00:00Z")
    other = status_of(Finding(2, "Refused", "no"), declared(3, same), "2026-01-03T00:00:00Z")

    assert same["nodes"] == same["observedGeneration"] == 2
    assert same["conditions"][0]["lastTransitionTime"] == "2026-01-01T00:00:00Z"
    assert other["conditions"][0]["lastTransitionTime"] == "2026-01-03T00:00:00Z"
    assert other["conditions"][0]["status"] == "False"


def test_a_status_of_nonsense_is_written_over() -> None:
    several: tuple[object, ...] = (1, [], {"conditions": 1}, {"conditions": [1]})
    for nonsense in several:
        status = status_of(Finding(1, "Granted", "1"), declared(1, nonsense), "now")
        assert status["conditions"][0]["lastTransitionTime"] == "now"
