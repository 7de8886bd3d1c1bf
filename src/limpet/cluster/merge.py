"""Merging what is known of the cluster: a join-semilattice, so order and repetition do not matter.

A tombstone beats every grant; else the higher generation, then the higher digest. Of presences the
higher sequence, then the higher digest. What came from the cloud, from the node's own disk or from
a neighbour is merged alike, since every part was signed and checked before.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

from limpet.base.addresses import Prefix, bounds_of
from limpet.cluster.documents import NodeEntry, Sealed, Snapshot
from limpet.cluster.kinds.grant import Grant


def merge_snapshots(one: Snapshot, other: Snapshot) -> Snapshot:
    """All that either knows, each part in its newest form."""
    nodes = dict(one.nodes)
    for uid, entry in other.nodes.items():
        known = nodes.get(uid)
        nodes[uid] = entry if known is None else merge_entries(known, entry)
    newest = max((one, other), key=_network_rank)
    return Snapshot(newest.network, newest.sealed_network, nodes)


def merge_entries(one: NodeEntry, other: NodeEntry) -> NodeEntry:
    """Of the same uid, and so of the same key. What is revoked has no presence."""
    granted = max((one, other), key=_grant_rank)
    if granted.grant.tombstone:
        return NodeEntry(granted.grant, granted.sealed_grant)
    present = max((one, other), key=_presence_rank)
    return replace(granted, presence=present.presence, sealed_presence=present.sealed_presence)


def _network_rank(snapshot: Snapshot) -> tuple[int, bytes]:
    if snapshot.network is None:
        return (-1, b"")
    return (snapshot.network.generation, _digest(snapshot.sealed_network))


def _grant_rank(entry: NodeEntry) -> tuple[bool, int, bytes]:
    grant = entry.grant
    return (grant.tombstone, grant.generation, _digest(entry.sealed_grant))


def _presence_rank(entry: NodeEntry) -> tuple[int, bytes]:
    if entry.presence is None:
        return (-1, b"")
    return (entry.presence.sequence, _digest(entry.sealed_presence))


def _digest(sealed: Sealed | None) -> bytes:
    """Of body and signature: equal ranks are equal documents."""
    if sealed is None:
        return b""
    return hashlib.sha256(sealed.body + sealed.signature).digest()


def effective_segments(snapshot: Snapshot) -> dict[str, tuple[Prefix, ...]]:
    """The segments of every node that is not revoked, by uid, no two overlapping.

    Where grants overlap (a cut-off node has not heard that a segment went to another) the one of
    the higher revision counts, then that of the higher uid.
    """
    grants = [entry.grant for entry in snapshot.nodes.values() if not entry.grant.tombstone]
    if not _any_overlap(grants):
        return {grant.uid: grant.segments for grant in grants}
    newest_first = sorted(grants, key=lambda grant: (grant.revision, grant.uid), reverse=True)
    taken: dict[int, list[tuple[int, int]]] = {4: [], 6: []}
    found: dict[str, tuple[Prefix, ...]] = {}
    for grant in newest_first:
        kept = [each for each in grant.segments if _take(each, taken)]
        whole = len(kept) == len(grant.segments)
        found[grant.uid] = grant.segments if whole else tuple(kept)  # one tuple less of each
    return found


def _any_overlap(grants: Iterable[Grant]) -> bool:
    """Mostly none do, and then nothing has to be decided."""
    spans: dict[int, list[tuple[int, int]]] = {4: [], 6: []}
    for grant in grants:
        for prefix in grant.segments:
            spans[prefix.version].append(bounds_of(prefix))
    for held in spans.values():
        held.sort()
        if any(before[1] >= after[0] for before, after in pairwise(held)):
            return True
    return False


def _take(prefix: Prefix, taken: dict[int, list[tuple[int, int]]]) -> bool:
    """Puts the prefix among the intervals of its family, unless it meets one of them."""
    first, last = bounds_of(prefix)
    intervals = taken[prefix.version]
    at = bisect_left(intervals, (first, first))
    if at < len(intervals) and intervals[at][0] <= last:
        return False
    if at and intervals[at - 1][1] >= first:
        return False
    intervals.insert(at, (first, last))
    return True
