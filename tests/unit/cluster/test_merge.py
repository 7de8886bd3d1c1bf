"""Merging what is known of the cluster."""

from __future__ import annotations

import itertools
from functools import reduce
from ipaddress import ip_network
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from limpet.cluster.documents import Snapshot
from limpet.cluster.merge import effective_segments, merge_snapshots
from tests.unit.cluster_values import entry, snapshot_of, snapshots


@given(snapshots(), snapshots(), snapshots())
def test_order_grouping_and_repetition_do_not_matter(a: Snapshot, b: Snapshot, c: Snapshot) -> None:
    assert merge_snapshots(a, a) == a
    assert merge_snapshots(a, b) == merge_snapshots(b, a)
    assert merge_snapshots(merge_snapshots(a, b), c) == merge_snapshots(a, merge_snapshots(b, c))
    assert merge_snapshots(merge_snapshots(a, b), b) == merge_snapshots(a, b)


@settings(max_examples=60)
@given(st.lists(snapshots(), min_size=1, max_size=6), st.data())
def test_any_delivery_of_the_same_parts_gives_the_same_snapshot(
    parts: list[Snapshot], data: Any
) -> None:
    split = [Snapshot(p.network, p.sealed_network) for p in parts]
    split += [Snapshot(nodes={uid: e}) for p in parts for uid, e in p.nodes.items()]
    deliveries = data.draw(st.permutations(split + split[: len(split) // 2]))

    assert reduce(merge_snapshots, deliveries, Snapshot()) == reduce(
        merge_snapshots, parts, Snapshot()
    )


def test_a_tombstone_is_for_ever() -> None:
    revoked = snapshot_of(entry(1, generation=2, tombstone=True))
    later = snapshot_of(entry(1, generation=9, sequence=9))

    (merged,) = merge_snapshots(later, revoked).nodes.values()

    assert merged.grant.tombstone
    assert merged.presence is None


def test_the_newest_presence_goes_with_the_newest_grant() -> None:
    one = snapshot_of(entry(1, generation=2, sequence=1))
    other = snapshot_of(entry(1, generation=1, sequence=5))

    (merged,) = merge_snapshots(one, other).nodes.values()

    assert merged.grant.generation == 2
    assert merged.presence is not None
    assert merged.presence.sequence == 5


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
    known = snapshot_of(
        *(entry(n, revision=r, segments=(ip_network(segment),)) for n, r, segment in rows)
    )

    effective = effective_segments(known)

    held = [segment for segments in effective.values() for segment in segments]
    assert not any(a.overlaps(b) for a, b in itertools.combinations(held, 2))
    if rows:
        newest = max(known.nodes.values(), key=lambda e: (e.grant.revision, e.grant.uid)).grant
        assert effective[newest.uid] == newest.segments


def test_a_revoked_node_holds_nothing() -> None:
    known = snapshot_of(entry(1, tombstone=True))
    assert effective_segments(known) == {}
