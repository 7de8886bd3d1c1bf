"""podCIDRs of Nodes as segments: who gets which, what is refused in which words, and that nothing
is held twice whatever Kubernetes says."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limpet.cluster.api import Code
from limpet.cluster.keys import public_key_of, uid_of
from limpet.cluster.kinds.grant import Grant
from limpet.cluster.kinds.presence import Presence
from limpet.controller.orchestrator.node_keeper.keeper import settle_cidrs
from limpet.controller.orchestrator.node_keeper.pod_cidrs import problems_of_cidrs
from limpet.controller.registry.records import RecoveryRecord, SegmentRecord
from limpet.controller.registry.refusal import RefusedError
from limpet.controller.registry.tables import Tables
from limpet.controller.state import grants, nodes, published, recovery
from limpet.controller.state.problems import problems_of
from tests.effort import examples
from tests.unit.cluster_values import node_key, seal_presence
from tests.unit.controller.orchestrator.node_keeper.node_tables import Told, tables_beside
from tests.unit.controller.state.cluster_tables import copy, join


def texts(grant: Grant) -> list[str]:
    return [str(each) for each in grant.segments]


def grant_of(tables: Tables, name: str) -> Grant:
    (uid,) = tables.uids_of(name)
    return tables.grants[uid]


def problem_of(tables: Tables, name: str, now_s: float = 0.0) -> str:
    """Of the only one that it has; nothing is granted by a look at it."""
    settled = settle_cidrs(tables, now_s)
    assert settled.granted == []
    (problem,) = problems_of_cidrs(tables, grant_of(tables, name), now_s)
    assert settled.problems.get(name, problem) == problem
    return problem


def test_a_node_gets_the_cidrs_of_its_node_of_both_families() -> None:
    told = Told()
    tables = tables_beside(told, "10.244.0.0/16", "fd00:244::/48")
    told.put("n1", "10.244.3.0/24", "fd00:244:0:3::/64")

    grant = join(tables, 1, "n1")

    assert texts(grant) == ["10.244.3.0/24", "fd00:244:0:3::/64"]
    assert problems_of_cidrs(tables, grant, 0.0) == []
    assert settle_cidrs(tables, 0.0).granted == []


def test_who_joins_before_them_gets_them_as_soon_as_they_are_there() -> None:
    told = Told(listed=False)
    tables = tables_beside(told)
    first = join(tables, 1, "n1")
    assert first.segments == ()
    with pytest.raises(RefusedError, match="no podCIDRs yet") as refused:
        grants.request_segments(tables, first.uid, first.generation, [4], 0.0)
    assert refused.value.refused.code is Code.TRY_AGAIN

    told.put("n1")
    told.listed = True
    assert "--allocate-node-cidrs" in problem_of(tables, "n1")
    told.put("n1", "10.244.3.0/24")
    ((before, after),) = settle_cidrs(tables, 0.0).granted

    assert before == first
    assert texts(after) == ["10.244.3.0/24"]
    assert after.generation == first.generation + 1


def test_a_node_that_needs_more_gets_them_of_the_controllers_own_space() -> None:
    told = Told()
    tables = tables_beside(told, "10.244.0.0/15", own=("10.245.0.0/16",))
    told.put("n1", "10.244.3.0/24")
    grant = join(tables, 1, "n1")

    grants.request_segments(tables, grant.uid, grant.generation, [4], 0.0)

    assert texts(grant_of(tables, "n1")) == ["10.244.3.0/24", "10.245.0.0/24"]
    outside = join(tables, 2, "from-outside")
    assert texts(outside) == ["10.245.1.0/24"]


def test_without_own_space_a_node_that_needs_more_is_told_what_to_do() -> None:
    told = Told()
    tables = tables_beside(told)
    told.put("n1", "10.244.3.0/24")
    grant = join(tables, 1, "n1")

    with pytest.raises(RefusedError, match="own_cidrs") as refused:
        grants.request_segments(tables, grant.uid, grant.generation, [4], 0.0)
    assert refused.value.refused.code is Code.EXHAUSTED
    assert join(tables, 2, "n2").segments == ()
    assert "there is no Node n2 in Kubernetes" in problem_of(tables, "n2")


def test_a_node_that_was_outside_first_gets_its_cidrs_beside() -> None:
    """Its agent was there before its kubelet."""
    told = Told()
    tables = tables_beside(told, "10.244.0.0/15", own=("10.245.0.0/16",))
    join(tables, 1, "n1")
    told.put("n1", "10.244.3.0/24")

    settle_cidrs(tables, 0.0)

    assert texts(grant_of(tables, "n1")) == ["10.245.0.0/24", "10.244.3.0/24"]


@pytest.mark.parametrize(
    ("cidr", "words"),
    [
        ("10.99.3.0/24", "not inside of the cluster's pod_cidrs (10.244.0.0/15)"),
        ("fd00:1::/64", "not inside of the cluster's pod_cidrs"),
        ("10.244.3.0/31", "it is a /31, and segments of this cluster are /24"),
        ("10.244.0.0/14", "it is a /14"),  # also as something that is in the way of all others
        ("10.245.7.0/24", "overlaps 10.245.0.0/16, which the controller grants from itself"),
        ("10.244.9.0/24", "10.244.9.1, an address of this Node, is in it"),
        ("10.244.21.0/24", "it is also that of Node older, which is older"),
        ("10.244.30.0/24", "it is held by node holder"),
        ("10.244.40.0/24", "it is held back since the controller was restored"),
        ("10.244.50.0/24", "it rests until 1970-01-01T00:01Z, since the removed node gone"),
    ],
)
def test_what_no_node_may_have_is_refused_in_words(cidr: str, words: str) -> None:
    told = Told()
    tables = tables_beside(told, "10.244.0.0/15", own=("10.245.0.0/16",))
    told.put("older", "10.244.21.0/24", created_at="2026-01-01T00:00:00Z")
    told.put("holder", "10.244.30.0/24")
    told.put("gone", "10.244.50.0/24")
    join(tables, 1, "holder")
    join(tables, 2, "gone")
    nodes.remove(tables, "gone", 0.0)
    del told.objects["holder"], told.objects["gone"]
    tables.put_segment(ip_network("10.244.40.0/24"), SegmentRecord(""))

    own = "192.0.2.1 10.244.9.1"
    told.put("n1", cidr, created_at="2026-01-02T00:00:00Z", addresses=own)
    grant = join(tables, 4, "n1")

    assert texts(grant) == ["10.245.0.0/24"]  # so that it has some all the same
    problem = problem_of(tables, "n1")
    assert problem.startswith(f"take podCIDR {cidr} of Node n1: ")
    assert words in problem
    assert problem.endswith(")")


def test_a_member_keeps_no_node_from_its_cidrs_by_addresses_that_it_names() -> None:
    """A person is told of it instead."""
    told = Told()
    tables = tables_beside(told, "10.244.0.0/16", own=())
    told.put("claimant", "10.244.1.0/24")
    claimant = join(tables, 1, "claimant")
    named = tuple(ip_address(f"10.244.{number}.1") for number in range(2, 34))
    said = Presence(claimant.uid, 1, "boot-1", addresses=named)
    published.publish(tables, claimant.uid, seal_presence(said, node_key(1)), 0.0)
    told.put("n2", "10.244.2.0/24")

    grant = join(tables, 2, "n2")

    assert texts(grant) == ["10.244.2.0/24"]
    assert settle_cidrs(tables, 0.0).problems == {}
    (problem,) = problems_of(tables, claimant, 0.0)
    assert problem.startswith("it names 10.244.2.1 and 31 more as addresses of its own")
    assert problems_of(tables, grant, 0.0) == []


def test_a_kubelet_keeps_no_node_from_its_cidrs_by_addresses_of_its_own_node() -> None:
    told = Told()
    tables = tables_beside(told, "10.244.0.0/16", own=())
    named = " ".join(f"10.244.{number}.1" for number in range(2, 34))
    told.put("claimant", "10.244.1.0/24", addresses=f"192.0.2.1 {named}")
    claimant = join(tables, 1, "claimant")
    told.put("n2", "10.244.2.0/24")

    grant = join(tables, 2, "n2")

    assert (texts(claimant), texts(grant)) == (["10.244.1.0/24"], ["10.244.2.0/24"])
    assert settle_cidrs(tables, 0.0).problems == {}
    (problem,) = problems_of(tables, claimant, 0.0)
    assert problem.startswith("its Node in Kubernetes names 10.244.2.1 and 31 more as addresses of")
    assert problems_of(tables, grant, 0.0) == []


def test_what_a_removed_node_had_is_granted_to_another_when_it_has_rested() -> None:
    told = Told()
    tables = tables_beside(told, quarantine_s=100.0)
    told.put("n1", "10.244.3.0/24")
    former = join(tables, 1, "n1")
    nodes.remove(tables, "n1", 0.0)
    told.objects.clear()
    told.put("n2", "10.244.3.0/24")
    assert join(tables, 2, "n2", 50.0).segments == ()

    settle_cidrs(tables, 99.0)
    assert grant_of(tables, "n2").segments == ()
    settle_cidrs(tables, 100.0)

    assert texts(grant_of(tables, "n2")) == ["10.244.3.0/24"]
    assert grant_of(tables, "n2").supersedes == (former.uid,)


def test_a_new_machine_of_the_same_node_does_not_wait_for_what_the_removed_one_had() -> None:
    """A Node is one machine: who was removed under its name is not there beside it."""
    told = Told()
    tables = tables_beside(told)
    told.put("n1", "10.244.3.0/24")
    former = join(tables, 1, "n1")
    nodes.remove(tables, "n1", 0.0)

    grant = join(tables, 2, "n1", 1.0)

    assert texts(grant) == ["10.244.3.0/24"]
    assert grant.supersedes == (former.uid,)


def test_a_node_that_was_made_anew_keeps_what_it_has_and_gets_new_ones_up_to_its_quota() -> None:
    told = Told()
    tables = tables_beside(told, segment_quota=2)
    for number in range(1, 4):
        told.put("n1", f"10.244.{number}.0/24")
        if number == 1:
            join(tables, 1, "n1")
        settle_cidrs(tables, 0.0)

    assert texts(grant_of(tables, "n1")) == ["10.244.1.0/24", "10.244.2.0/24"]
    assert "its quota" in problem_of(tables, "n1")


def test_of_two_machines_of_one_name_none_gets_what_the_node_has() -> None:
    told = Told()
    tables = tables_beside(told)
    join(tables, 1, "n1")
    join(tables, 2, "n1")
    told.put("n1", "10.244.3.0/24")

    settled = settle_cidrs(tables, 0.0)

    assert settled.granted == []
    assert "has that name too" in settled.problems["n1"]


def test_nothing_is_granted_while_the_controller_learns_what_it_had_granted() -> None:
    told = Told()
    tables = tables_beside(told)
    join(tables, 1, "n1")
    recovery.begin(tables, 4, 0.0, paused=False)
    told.put("n1", "10.244.3.0/24")

    assert "limpet controller recovery" in problem_of(tables, "n1")
    (uid,) = tables.uids_of("n1")
    recovery.note_report(tables, uid, 4)
    assert tables.state.recovery is None
    assert len(settle_cidrs(tables, 0.0).granted) == 1


def test_after_a_restore_the_controller_holds_back_what_it_may_have_granted_of_its_own() -> None:
    told = Told()
    tables = tables_beside(told, "10.244.0.0/16", own=("10.244.192.0/18",))
    told.put("n1", "10.244.3.0/24")
    join(tables, 1, "n1")
    recovery.begin(tables, 4, 0.0, paused=False)

    found = tables.state.recovery
    assert isinstance(found, RecoveryRecord)
    unknown = [str(each.prefix) for each in tables.space.holdings.values() if not each.uid]
    assert unknown == [f"10.244.{192 + number}.0/24" for number in range(4)]


NAMES = ("a", "b", "c")
CIDRS = (
    *("10.0.0.0/26", "10.0.0.64/26", "10.0.0.0/25", "10.0.3.0/26", "fd00::/64", "192.0.2.0/26"),
)
STEPS = st.one_of(
    st.tuples(
        st.just("told"), st.sampled_from(NAMES), st.lists(st.sampled_from(CIDRS), max_size=2)
    ),
    st.tuples(st.just("forgotten"), st.sampled_from(NAMES), st.none()),
    st.tuples(st.just("handed on"), st.sampled_from(NAMES), st.sampled_from(NAMES)),
    st.tuples(st.just("joins"), st.sampled_from(NAMES), st.integers(1, 3)),
    st.tuples(st.just("asks"), st.sampled_from(NAMES), st.sampled_from([(4,), (6,), (4, 6)])),
    st.tuples(st.just("removed"), st.sampled_from(NAMES), st.none()),
    st.tuples(st.just("later"), st.integers(1, 200), st.none()),
)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(STEPS, max_size=30))
def test_nothing_is_held_twice_and_all_is_pods_space_whatever_kubernetes_says(
    steps: list[Any],
) -> None:
    told, now_s = Told(), 0.0
    own = (ip_network("10.0.3.0/24"), ip_network("fd00:0:0:8::/61"))
    tables = tables_beside(
        told,
        "10.0.0.0/22",
        "fd00::/48",
        own=tuple(map(str, own)),
        segment_lengths={4: 26, 6: 64},
        segment_quota=3,
    )
    for number, name in enumerate(NAMES):
        join(tables, 10 * number, name)
    for what, name, more in steps:
        position = tables.position
        try:
            if what == "told":
                told.put(name, *more)
            elif what == "forgotten":
                told.objects.pop(name, None)
            elif what == "handed on" and name in told.objects:
                cidrs = told.objects.pop(name).pod_cidrs
                told.put(more, *map(str, cidrs))
            elif what == "joins":
                join(tables, more + 10 * NAMES.index(name), name, now_s)
            elif what == "asks":
                grant = nodes.find_node(tables, name)
                grants.request_segments(tables, grant.uid, grant.generation, more, now_s)
            elif what == "removed":
                nodes.remove(tables, name, now_s)
            elif what == "later":
                now_s += name
        except RefusedError:
            tables.undo(position)
        settle_cidrs(tables, now_s)

        live = [grant for grant in tables.grants.values() if not grant.tombstone]
        held = [each for grant in live for each in grant.segments]
        for one, other in combinations(held, 2):
            assert one.version != other.version or not one.overlaps(other)
        for grant in live:
            for segment in grant.segments:
                assert tables.space.number(segment) is not None
                assert tables.space.holdings[segment].uid == grant.uid
                assert tables.space.holdings[segment].resting_since_s is None
        assert settle_cidrs(tables, now_s).granted == []
    reread = copy(tables)
    assert reread.space.holdings.keys() == tables.space.holdings.keys()


def test_a_cidr_that_a_join_left_behind_is_its_nodes_again_when_that_machine_is_removed() -> None:
    """The first machine's join was cut off behind its segment, and its disk was emptied."""
    told = Told()
    tables = tables_beside(told, "10.244.0.0/16")
    told.put("n1", "10.244.3.0/24")
    left = uid_of(public_key_of(node_key(1)))
    tables.hold(ip_network("10.244.3.0/24"), left)

    join(tables, 2, "n1")
    assert f"limpet node remove {left}" in problem_of(tables, "n1")
    assert nodes.rest_of_unknown(tables, left, 10.0) == 1
    assert "it rests until" in problem_of(tables, "n1", 11.0)
    assert settle_cidrs(tables, 111.0).granted != []
    assert texts(grant_of(tables, "n1")) == ["10.244.3.0/24"]


def test_nothing_of_a_node_or_of_nobody_rests_as_that_of_a_machine_without_a_grant() -> None:
    told = Told()
    tables = tables_beside(told, "10.244.0.0/16")
    told.put("n1", "10.244.3.0/24")
    node = join(tables, 1, "n1")
    tables.put_segment(ip_network("10.244.4.0/24"), SegmentRecord(""))
    for uid in (node.uid, "", "n1"):
        assert nodes.rest_of_unknown(tables, uid, 10.0) == 0
