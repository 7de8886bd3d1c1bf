"""Grants, whatever is asked in whatever order, and over restores from old back-ups."""

from __future__ import annotations

import contextlib
from itertools import combinations
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from limpet.cluster.api import Code
from limpet.cluster.documents import Sealed
from limpet.cluster.keys import SealError, public_key_of, uid_of
from limpet.cluster.kinds.grant import Grant
from limpet.controller.registry.records import NODE
from limpet.controller.registry.refusal import RefusedError
from limpet.controller.registry.tables import Tables
from limpet.controller.state import grants, nodes, published, recovery
from tests.effort import examples
from tests.unit.cluster_values import node_key, presence, seal_presence
from tests.unit.controller.state.cluster_tables import copy, join, new_tables

MARGIN = 2
NAMES = st.sampled_from(["a", "b"])


class _Life(RuleBasedStateMachine):
    """What every node was answered, kept as the node keeps it, over everything that happens."""

    @initialize()
    def begin(self) -> None:
        self.tables = new_tables("10.0.0.0/14", "fd00::/56", quarantine_s=10.0, segment_quota=4)
        self.backup = copy(self.tables, 10.0)
        self.held: dict[str, tuple[Grant, Sealed]] = {}
        """By uid: the last grant that a node was answered, of nodes that were not removed."""
        self.tombstones: list[Sealed] = []
        self.numbers = 0
        self.now_s = 0.0

    def answered(self, uid: str) -> None:
        self.tables.commit()
        self.held[uid] = (self.tables.grants[uid], self.tables.nodes[uid].sealed)

    def attempt(self, work: Any) -> bool:
        with contextlib.suppress(RefusedError):
            work()
            return True
        self.tables.undo(0)
        return False

    @rule(name=NAMES)
    def a_node_joins(self, name: str) -> None:
        self.numbers += 1
        number = self.numbers
        if number < 200 and self.attempt(lambda: join(self.tables, number, name, self.now_s)):
            uid = uid_of(public_key_of(node_key(number)))
            for former in self.tables.grants[uid].supersedes:
                if former in self.held and self.tables.grants[former].tombstone:
                    del self.held[former]
                    self.tombstones.append(self.tables.nodes[former].sealed)
            self.answered(uid)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), versions=st.sets(st.sampled_from([4, 6]), min_size=1))
    def a_node_grows(self, data: Any, versions: set[int]) -> None:
        uid = data.draw(st.sampled_from(sorted(self.held)))
        generation = self.held[uid][0].generation
        if uid in self.tables.grants and self.attempt(
            lambda: grants.request_segments(
                self.tables, uid, generation, tuple(versions), self.now_s
            )
        ):
            before = self.held[uid][0]
            self.answered(uid)
            assert set(before.segments) <= set(self.held[uid][0].segments)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def a_node_is_removed(self, data: Any) -> None:
        uid = data.draw(st.sampled_from(sorted(self.held)))
        if uid in self.tables.grants:
            nodes.remove(self.tables, uid, self.now_s)
            self.tables.commit()
            del self.held[uid]
            self.tombstones.append(self.tables.nodes[uid].sealed)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def a_node_is_to_be_replaced(self, data: Any) -> None:
        uid = data.draw(st.sampled_from(sorted(self.held)))
        if uid in self.tables.grants:
            nodes.await_replacement(self.tables, uid, wanted=True)
            self.tables.commit()

    @rule(seconds=st.floats(0, 20))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds

    @rule()
    def a_back_up_is_made(self) -> None:
        self.backup = copy(self.tables, 10.0)

    @rule()
    def the_back_up_is_restored(self) -> None:
        former = self.tables.state
        self.tables = copy(self.backup, 10.0)
        recovery.begin(self.tables, MARGIN, self.now_s, paused=False, former=former)
        self.tables.commit()

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def a_node_says_hello(self, data: Any) -> None:
        uid = data.draw(st.sampled_from(sorted(self.held)))
        before, sealed = self.held[uid]
        recovery.absorb(self.tables, [sealed], MARGIN, self.now_s)
        recovery.note_report(self.tables, uid, MARGIN)
        after = self.tables.grants[uid]
        assert not after.tombstone
        assert set(before.segments) <= set(after.segments)
        assert after.generation >= before.generation
        self.answered(uid)

    @precondition(lambda self: self.tombstones)
    @rule()
    def peers_show_who_was_removed(self) -> None:
        recovery.absorb(self.tables, self.tombstones, MARGIN, self.now_s)
        self.tables.commit()

    @invariant()
    def no_two_nodes_hold_the_same(self) -> None:
        if hasattr(self, "held"):
            taken = [each for grant, _ in self.held.values() for each in grant.segments]
            assert len(taken) == len(set(taken))
            assert not any(
                a.version == b.version and a.overlaps(b) for a, b in combinations(taken, 2)
            )

    @invariant()
    def the_controllers_own_books_agree(self) -> None:
        if hasattr(self, "tables"):
            for uid, grant in self.tables.grants.items():
                for segment in grant.segments:
                    holding = self.tables.space.holdings[segment]
                    assert (holding.uid, holding.resting_since_s) == (uid, None)


_Life.TestCase.settings = settings(max_examples=examples(80), stateful_step_count=30, deadline=None)
TestWhateverHappensNoSegmentIsHeldTwice = _Life.TestCase


# A store writes a segment before the grant that names it; whoever wrote may have been stopped then


def test_a_node_whose_join_was_cut_off_gets_the_segments_that_were_held_for_it() -> None:
    tables = new_tables("10.0.0.0/16", "fd00::/56")
    grant = join(tables, 1, "a")
    tables.put(NODE, grant.uid, None)
    tables = copy(tables)

    again = join(tables, 1, "a")

    assert again.segments == grant.segments
    assert set(tables.space.holdings) == set(grant.segments)
    assert set(join(tables, 2, "b").segments).isdisjoint(grant.segments)


def test_a_node_whose_further_segment_was_cut_off_gets_that_one_and_then_new_ones() -> None:
    tables = new_tables("10.0.0.0/16", "fd00::/56")
    grant = join(tables, 1, "a")
    before = tables.nodes[grant.uid]
    grants.request_segments(tables, grant.uid, grant.generation, [4], 0.0)
    (left,) = set(tables.grants[grant.uid].segments) - set(grant.segments)
    tables.put(NODE, grant.uid, before)
    tables = copy(tables)
    other = join(tables, 2, "b")

    grants.request_segments(tables, grant.uid, grant.generation, [4], 0.0)
    once = tables.grants[grant.uid]
    assert once.segments == (*grant.segments, left)

    grants.request_segments(tables, grant.uid, once.generation, [4, 6], 0.0)
    fresh = set(tables.grants[grant.uid].segments) - set(once.segments)
    assert {prefix.version for prefix in fresh} == {4, 6}
    assert fresh.isdisjoint(other.segments)
    assert set(tables.space.holdings) == {*other.segments, *tables.grants[grant.uid].segments}


def test_a_segment_that_was_cut_off_from_its_grant_goes_over_with_the_others() -> None:
    """Else it would be held for ever by a node that is no more, and rest for nobody."""
    tables = new_tables("10.0.0.0/16")
    grant = join(tables, 1, "a")
    before = tables.nodes[grant.uid]
    grants.request_segments(tables, grant.uid, grant.generation, [4], 0.0)
    (left,) = set(tables.grants[grant.uid].segments) - set(grant.segments)
    tables.put(NODE, grant.uid, before)
    tables = copy(tables)
    nodes.await_replacement(tables, "a", wanted=True)

    after = join(tables, 2, "a")

    assert after.segments == grant.segments
    assert {each.uid for each in tables.space.holdings.values()} == {after.uid}
    grants.request_segments(tables, after.uid, after.generation, [4], 0.0)
    assert tables.grants[after.uid].segments == (*grant.segments, left)


def test_what_rests_after_a_removal_is_nobodys_left_over() -> None:
    """The same machine that comes back under a new key gets what is free."""
    tables = new_tables("10.0.0.0/16", quarantine_s=1000.0)
    grant = join(tables, 1, "a")
    nodes.remove(tables, "a", 0.0)
    (held,) = grant.segments

    assert tables.space.holdings[held].resting_since_s == 0.0
    assert tables.space.left_over(4, grant.uid, ()) is None
    assert held not in join(tables, 2, "a").segments


def test_what_was_refused_leaves_no_trace() -> None:
    tables = new_tables("10.0.0.0/24", "fd00::/56")
    join(tables, 1, "a")
    tables.commit()
    before = (tables.state, dict(tables.space.holdings), dict(tables.tokens))

    with pytest.raises(RefusedError) as caught:
        join(tables, 2, "b")
    tables.undo(0)

    assert caught.value.refused.code is Code.EXHAUSTED
    assert (tables.state, dict(tables.space.holdings), dict(tables.tokens)) == before
    assert tables.uids_of("b") == []


def test_what_the_cluster_has_not_signed_is_not_absorbed() -> None:
    ours, theirs = new_tables(), new_tables()
    join(theirs, 1, "a")
    (record,) = theirs.nodes.values()
    with pytest.raises(SealError):
        recovery.absorb(ours, [record.sealed], MARGIN, 0.0)


def test_a_stale_grant_of_a_removed_node_is_not_absorbed() -> None:
    tables = new_tables()
    grant = join(tables, 1, "a")
    sealed = tables.nodes[grant.uid].sealed
    nodes.remove(tables, "a", 0.0)
    assert recovery.absorb(tables, [sealed], MARGIN, 0.0) == 0
    assert tables.grants[grant.uid].tombstone


def test_a_presence_of_another_boot_that_comes_back_is_a_clone() -> None:
    tables = new_tables()
    uid = join(tables, 1, "a").uid
    for sequence, boot in ((1, "x"), (2, "y"), (3, "z")):
        sealed = seal_presence(presence(1, sequence, boot_id=boot), node_key(1))
        assert published.publish(tables, uid, sealed, 0.0) == sequence
    sealed = seal_presence(presence(1, 4, boot_id="x"), node_key(1))
    with pytest.raises(RefusedError) as caught:
        published.publish(tables, uid, sealed, 0.0)
    assert caught.value.refused.code is Code.CLONED


def test_a_clone_is_over_with_a_boot_never_seen_and_told_again_if_it_goes_on() -> None:
    tables = new_tables()
    uid = join(tables, 1, "a").uid

    def publish(sequence: int, boot: str) -> None:
        sealed = seal_presence(presence(1, sequence, boot_id=boot), node_key(1))
        published.publish(tables, uid, sealed, 0.0)

    def is_refused(sequence: int, boot: str) -> bool:
        """Notes it, as the controller does."""
        with pytest.raises(RefusedError) as caught:
            publish(sequence, boot)
        published.note_clone(tables, uid, 5.0)
        return caught.value.refused.code is Code.CLONED

    publish(1, "original")
    publish(2, "copy")
    assert is_refused(3, "original")
    publish(4, "copy")
    assert tables.presences[uid].cloned_at_s == 5.0, "the copy is still there"
    publish(5, "original after a reboot")
    assert tables.presences[uid].cloned_at_s is None
    assert is_refused(6, "copy")
    assert tables.presences[uid].cloned_at_s == 5.0


def test_records_are_the_same_after_the_disk() -> None:
    tables = new_tables()
    join(tables, 1, "a")
    nodes.remove(tables, "a", 5.0)
    join(tables, 2, "a")
    copied = copy(tables)
    assert copied.grants == tables.grants
    assert dict(copied.space.holdings) == dict(tables.space.holdings)
    assert copied.state == tables.state
    assert isinstance(copied, Tables)


def test_no_node_joins_under_the_uid_of_another() -> None:
    """`limpet node remove` of that name would remove the other."""
    tables = new_tables()
    other = join(tables, 1, "n1")
    nobodys = uid_of(public_key_of(node_key(9)))

    for name in (other.uid, nobodys):
        with pytest.raises(RefusedError, match="it is a uid"):
            join(tables, 2, name)
    own = uid_of(public_key_of(node_key(3)))
    assert join(tables, 3, own).uid == own
