"""Merging what is known of the cluster."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import reduce
from ipaddress import ip_network
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from limpet.cluster.documents import Known
from limpet.cluster.merge import merge
from limpet.cluster.nodes import Snapshot, effective_segments, newest_grant, snapshot_of
from limpet.cluster.topology.paths import OwnSide
from limpet.cluster.topology.view import view_of
from tests.effort import examples
from tests.unit.cluster_values import (
    NOTHING,
    documents,
    entry,
    grant,
    knowledge,
    known_of,
    merged,
)


@given(knowledge(), knowledge(), knowledge())
def test_order_grouping_and_repetition_do_not_matter(a: Known, b: Known, c: Known) -> None:
    assert merged(a, a) == a
    assert merged(a, b) == merged(b, a)
    assert merged(a, merged(b, c)) == merged(merged(a, b), c)
    assert merged(merged(a, b), b) == merged(a, b)


@settings(max_examples=examples(60))
@given(st.lists(knowledge(), min_size=1, max_size=6), st.data())
def test_any_delivery_of_the_same_parts_gives_the_same(parts: list[Known], data: Any) -> None:
    split = [merge(NOTHING, part.lineage(document.key))[0] for part in parts for document in part]
    deliveries = data.draw(st.permutations(split + split[: len(split) // 2]))

    assert reduce(merged, deliveries, NOTHING) == reduce(merged, parts, NOTHING)


def test_a_tombstone_is_for_ever_and_silences_what_stands_under_it() -> None:
    revoked = known_of(documents(1, generation=2, tombstone=True))
    later = known_of(documents(1, generation=9, sequence=9))

    (left,) = merged(later, revoked)

    assert left.tombstone
    assert merged(revoked, later) == merged(later, revoked)


def test_the_newest_presence_goes_with_the_newest_grant() -> None:
    one = known_of(documents(1, generation=2, sequence=1))
    other = known_of(documents(1, generation=1, sequence=5))

    assert [document.version for document in merged(one, other)] == [2, 5]


def test_what_stands_under_nothing_that_is_known_does_not_count() -> None:
    _, alone = documents(1, sequence=1)

    assert list(merge(NOTHING, [alone])[0]) == []


@given(st.lists(knowledge(), max_size=4))
def test_an_index_of_nodes_that_was_updated_equals_one_made_anew(parts: list[Known]) -> None:
    known, snapshot = NOTHING, Snapshot()
    for part in parts:
        news = merged(known, part)
        snapshot, known = snapshot_of(news, known, snapshot), news
    assert snapshot == snapshot_of(known, NOTHING, Snapshot())
    assert all(
        not entry.grant.tombstone or entry.presence is None for entry in snapshot.nodes.values()
    )


@given(
    st.lists(
        st.tuples(
            st.integers(1, 6),
            st.integers(1, 5),
            st.sampled_from(["10.0.0.0/24", "10.0.0.0/25", "10.0.0.128/25", "10.0.1.0/24"]),
        ),
        max_size=6,
        unique_by=lambda row: row[0],
    )
)
def test_effective_segments_never_overlap_and_the_newest_grant_has_its_own(
    rows: list[tuple[int, int, str]],
) -> None:
    entries = [entry(n, revision=r, segments=(ip_network(segment),)) for n, r, segment in rows]
    known = Snapshot(nodes={each.grant.uid: each for each in entries})

    effective = effective_segments(known)

    held = [segment for segments in effective.values() for segment in segments]
    assert not any(a.overlaps(b) for a, b in itertools.combinations(held, 2))
    if rows:
        newest = max(revision for _, revision, _ in rows)
        last = [each.grant for each in entries if each.grant.revision == newest]
        for one in last:  # of two of one revision neither: a uid can be ground
            others = [each for other in last if other is not one for each in other.segments]
            kept = [each for each in one.segments if not any(map(each.overlaps, others))]
            assert effective[one.uid] == tuple(kept)


@given(
    st.dictionaries(
        st.integers(1, 4),
        st.tuples(
            st.integers(1, 2),
            st.lists(
                st.sampled_from(["0.0.0.0/0", "10.0.0.0/24", "10.0.0.128/25", "10.0.1.0/24"]),
                min_size=1,
                max_size=2,
                unique=True,
            ),
        ),
        min_size=1,
    ),
)
@example({1: (1, ["0.0.0.0/0", "10.0.0.0/24"]), 2: (1, ["10.0.1.0/24"])})
def test_in_which_order_nodes_are_known_decides_nothing_of_segments(
    rows: dict[int, tuple[int, list[str]]],
) -> None:
    entries = [
        entry(number, revision=revision, segments=tuple(map(ip_network, segments)))
        for number, (revision, segments) in rows.items()
    ]
    one, *others = (
        effective_segments(Snapshot(nodes={each.grant.uid: each for each in known}))
        for known in itertools.permutations(entries)
    )

    assert all(other == one for other in others)
    held = [segment for segments in one.values() for segment in segments]
    assert not any(a.overlaps(b) for a, b in itertools.combinations(held, 2))


def test_a_revoked_node_holds_nothing() -> None:
    known = Snapshot(nodes={grant(1).uid: entry(1, tombstone=True)})
    assert effective_segments(known) == {}


def test_a_thief_of_a_former_key_takes_no_segment_by_a_higher_revision() -> None:
    ours = entry(1, era=1, revision=12)
    thiefs = entry(9, era=0, revision=(1 << 47) - 1, segments=ours.grant.segments)
    known = Snapshot(nodes={each.grant.uid: each for each in (thiefs, ours)})

    assert effective_segments(known) == {
        ours.grant.uid: ours.grant.segments,
        thiefs.grant.uid: (),
    }
    assert newest_grant(each.grant for each in (thiefs, ours)) == ours.grant.uid


def test_a_victims_segments_are_its_own_again_with_its_grant_by_the_next_key() -> None:
    before = entry(1, revision=12)
    thiefs = entry(9, revision=(1 << 47) - 1, segments=before.grant.segments)
    after = entry(1, generation=2, era=1, revision=13)
    uid, own = before.grant.uid, OwnSide()
    known = Snapshot(nodes={uid: before, thiefs.grant.uid: thiefs})
    robbed = view_of(known, uid, {}, own)

    mended = view_of(replace(known, nodes={**known.nodes, uid: after}), uid, {}, own, before=robbed)

    assert robbed.segments[uid] == ()
    assert mended.segments[uid] == after.grant.segments
