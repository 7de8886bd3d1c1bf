"""Nodes whose Node was deleted: who is removed, when, and who never is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.controller.node_objects.node import REPLACE_LABEL, NodeObject
from limpet.controller.orchestrator.node_keeper.keeper import settle_cidrs
from limpet.controller.orchestrator.node_keeper.lifecycle import (
    MOST_AT_ONCE,
    Fates,
    problems_of_node,
    settle_fates,
)
from limpet.controller.registry.refusal import RefusedError
from limpet.controller.registry.tables import Tables
from limpet.controller.state import nodes, recovery
from tests.unit.controller.orchestrator.node_keeper.node_tables import Told, tables_beside
from tests.unit.controller.state.cluster_tables import join

GRACE_S = 1000.0
Deleted = dict[str, tuple[NodeObject, float]]


def delete(told: Told, name: str, at_s: float) -> Deleted:
    """As the API server says it."""
    return {name: (told.objects.pop(name), at_s)}


def settle(
    tables: Tables,
    deleted: Deleted | None = None,
    *,
    now_s: float,
    led_since_s: float = -1e6,
    set_at_s: float | None = None,
) -> Fates:
    return settle_fates(
        tables,
        deleted or {},
        grace_s=GRACE_S,
        led_since_s=led_since_s,
        now_s=now_s,
        set_at_s=set_at_s,
    )


def due(fates: Fates) -> list[str]:
    return [grant.name for grant in fates.due]


def beside_n1() -> tuple[Told, Tables]:
    """One node, which is the Node n1."""
    told = Told()
    tables = tables_beside(told, "10.244.0.0/15", own=("10.245.0.0/16",))
    told.put("n1", "10.244.3.0/24")
    join(tables, 1, "n1")
    return told, tables


def test_a_node_is_removed_when_its_node_was_deleted_and_the_grace_time_is_over() -> None:
    told, tables = beside_n1()
    deleted = delete(told, "n1", 5.0)

    fates = settle(tables, deleted, now_s=6.0)
    assert [(grant.name, at_s) for grant, at_s in fates.gone] == [("n1", 1005.0)]
    assert fates.next_at_s == 1005.0
    assert due(fates) == []
    assert settle(tables, deleted, now_s=7.0).gone == []

    assert due(settle(tables, {}, now_s=1004.0)) == []
    assert due(settle(tables, {}, now_s=1005.0)) == ["n1"]  # remembered, whoever leads


def test_one_that_comes_back_in_time_keeps_what_it_has() -> None:
    told, tables = beside_n1()
    settle(tables, delete(told, "n1", 0.0), now_s=0.0)

    told.objects["n1"] = NodeObject("n1", uid="another")
    fates = settle(tables, now_s=900.0)

    assert [grant.name for grant in fates.back] == ["n1"]
    assert due(settle(tables, now_s=5000.0)) == []
    (uid,) = tables.uids_of("n1")
    assert tables.nodes[uid].node_uid == "another"


def test_a_list_that_lacks_nodes_removes_none_of_them() -> None:
    """An API server that was put back from a copy, or has lost all it had."""
    told, tables = beside_n1()
    settle(tables, now_s=0.0)
    told.objects.clear()

    for now_s in (0.0, 1e9):
        fates = settle(tables, now_s=now_s)
        assert (fates.gone, fates.due) == ([], [])
    (uid,) = tables.uids_of("n1")
    (problem,) = problems_of_node(tables, tables.grants[uid])
    assert "nobody has told that it was deleted" in problem


def test_a_node_that_never_was_one_of_kubernetes_stays() -> None:
    _, tables = beside_n1()
    join(tables, 2, "outside")
    other = Told()
    other.put("outside")

    fates = settle(tables, delete(other, "outside", 0.0), now_s=1e9)

    assert (fates.gone, fates.due) == ([], [])


def test_nothing_is_removed_before_nodes_could_say_that_the_store_is_an_old_copy() -> None:
    """What it remembers of a deletion may be older than the Node's coming back."""
    told, tables = beside_n1()
    settle(tables, delete(told, "n1", 0.0), now_s=0.0)

    assert due(settle(tables, now_s=9000.0, led_since_s=9000.0)) == []
    recovery.begin(tables, 4, 9001.0, paused=True)
    fates = settle(tables, now_s=1e9, led_since_s=9000.0)
    assert due(fates) == []
    recovery.force(tables)
    assert due(settle(tables, now_s=1e9)) == []


def test_a_clock_that_is_set_forward_begins_the_grace_time_whoever_leads() -> None:
    told, tables = beside_n1()
    settle(tables, delete(told, "n1", 5.0), now_s=6.0)

    assert due(settle(tables, now_s=20_010.0, set_at_s=20_000.0)) == []
    assert due(settle(tables, now_s=20_999.0, set_at_s=20_000.5)) == []
    assert due(settle(tables, now_s=20_999.0)) == []
    assert due(settle(tables, now_s=21_000.0)) == ["n1"]


def test_before_all_nodes_were_told_nobody_is_removed() -> None:
    told, tables = beside_n1()
    settle(tables, delete(told, "n1", 0.0), now_s=0.0)
    told.listed = False

    assert due(settle(tables, now_s=1e9)) == []


def test_a_new_machine_under_a_nodes_name_needs_an_administrators_word() -> None:
    told, tables = beside_n1()
    (uid,) = tables.uids_of("n1")
    segments = tables.grants[uid].segments
    with pytest.raises(RefusedError, match=f"{REPLACE_LABEL}={uid}"):
        join(tables, 2, "n1")

    node = told.objects["n1"]
    told.objects["n1"] = NodeObject("n1", node.uid, labels={REPLACE_LABEL: "another"})
    with pytest.raises(RefusedError, match="limpet node replace n1"):
        join(tables, 2, "n1")
    told.objects["n1"] = NodeObject("n1", node.uid, labels={REPLACE_LABEL: uid})
    grant = join(tables, 2, "n1")

    assert grant.segments == segments
    assert tables.nodes[uid].replaced_by == grant.uid
    with pytest.raises(RefusedError, match=f"{REPLACE_LABEL}={grant.uid}"):
        join(tables, 3, "n1")  # the label is there still, and counts once


def test_of_two_machines_of_one_name_none_is_removed() -> None:
    told = Told()
    tables = tables_beside(told, "10.244.0.0/16", own=("10.244.0.0/16",))
    join(tables, 1, "n1")
    join(tables, 2, "n1")
    told.put("n1")
    settle(tables, now_s=0.0)

    assert settle(tables, delete(told, "n1", 0.0), now_s=1e9).gone == []
    assert due(settle(tables, now_s=1e9)) == []


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["made", "deleted", "lost", "listed anew", "led by another", "later"]),
        st.sampled_from(["n1", "n2", "outside"]),
    ),
    max_size=30,
)


@given(STEPS)
def test_who_is_removed_was_told_deleted_for_the_whole_grace_time(
    steps: list[tuple[str, str]],
) -> None:
    told = Told()
    tables = tables_beside(told, "10.244.0.0/16", own=("10.244.0.0/16",))
    for number, name in enumerate(("n1", "n2", "outside"), 1):
        join(tables, number, name)
    now_s, led_since_s = 0.0, 0.0
    deleted: Deleted = {}
    gone_since: dict[str, float] = {}
    seen: set[str] = set()
    for count, (what, name) in enumerate(steps):
        if what == "made" and name != "outside":
            told.objects[name] = NodeObject(name, f"uid-{count}")
            deleted.pop(name, None)
            gone_since.pop(name, None)
            seen.add(name)
        elif what == "deleted" and name in told.objects:
            deleted |= delete(told, name, now_s)
            gone_since[name] = now_s
        elif what == "lost":
            told.objects.clear()
        elif what == "led by another":
            led_since_s, deleted = now_s, {}
        elif what == "later":
            now_s += GRACE_S / 2
        for grant in settle(tables, deleted, now_s=now_s, led_since_s=led_since_s).due:
            assert grant.name in seen
            assert now_s - gone_since[grant.name] >= GRACE_S
            nodes.remove(tables, grant.uid, now_s)
    assert tables.uids_of("outside")


def test_many_nodes_are_taken_note_of_a_part_at_a_time() -> None:
    """Each is written by itself, and a node that asks for something would wait for all of them."""
    told = Told()
    tables = tables_beside(told)
    count = 2 * MOST_AT_ONCE + 1
    for number in range(count):
        join(tables, number, f"n{number}")
    for number in range(count):
        told.put(f"n{number}", f"10.244.{number}.0/24")

    for left in (count - MOST_AT_ONCE, 1, 0):
        assert (settle(tables, now_s=0.0).next_at_s == 0.0) is bool(left)
        assert sum(not record.node_uid for record in tables.nodes.values()) == left
        assert settle_cidrs(tables, 0.0).is_cut is bool(left)
        assert sum(not grant.segments for grant in tables.grants.values()) == left
