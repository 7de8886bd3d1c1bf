"""The nodes of a cluster, as datapath, paths and relays look at them: documents, typed.

An index over what is known, kept up to date at the cost of what has changed. Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from operator import itemgetter

from limpet.base.addresses import Prefix, bounds_of
from limpet.base.layered_map import alter, differing
from limpet.cluster.documents import Known
from limpet.cluster.kinds import GRANT, NETWORK, PRESENCE
from limpet.cluster.kinds.grant import Grant
from limpet.cluster.kinds.network import Network
from limpet.cluster.kinds.presence import Presence


@dataclass(frozen=True, slots=True)
class NodeEntry:
    """A node's grant with its presence."""

    grant: Grant
    presence: Presence | None = None
    """None: it has said nothing of itself yet, or was removed."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The network, and the entry of every node by its uid."""

    network: Network | None = None
    nodes: Mapping[str, NodeEntry] = field(default_factory=dict)


def snapshot_of(known: Known, former: Known, before: Snapshot) -> Snapshot:
    """The nodes of `known`; `before` are those of `former`."""
    network: Network | None = known.value(NETWORK.name, NETWORK.name)
    grants, presences = known.of(GRANT.name), known.of(PRESENCE.name)
    uids = differing(former.of(GRANT.name), grants) | differing(former.of(PRESENCE.name), presences)
    if not uids:
        return before if network is before.network else replace(before, network=network)
    changed: dict[str, NodeEntry | None] = {}
    for uid in uids:
        grant, presence = grants.get(uid), presences.get(uid)
        said = presence.value if presence is not None else None
        changed[uid] = NodeEntry(grant.value, said) if grant is not None else None
    return Snapshot(network, alter(before.nodes, changed))


def effective_segments(snapshot: Snapshot) -> dict[str, tuple[Prefix, ...]]:
    """The segments of every node that is not revoked, by uid, no two overlapping.

    Where grants overlap (a cut-off node has not heard that a segment went to another) the one that
    was signed last counts; of two of one era and revision neither, since uids can be ground.
    """
    grants = [entry.grant for entry in snapshot.nodes.values() if not entry.grant.tombstone]
    if not _any_overlap(grants):
        return {grant.uid: grant.segments for grant in grants}
    newest_first = sorted(grants, key=lambda grant: grant.signed_at, reverse=True)
    taken: dict[int, list[tuple[int, int]]] = {4: [], 6: []}
    found: dict[str, tuple[Prefix, ...]] = {}
    for _, group in groupby(newest_first, key=lambda grant: grant.signed_at):
        together = [(grant, _outermost(grant.segments)) for grant in group]
        disputed = _disputed(together) if len(together) > 1 else set()
        for grant, segments in together:
            kept = [each for each in segments if each not in disputed and _take(each, taken)]
            whole = len(kept) == len(grant.segments)
            found[grant.uid] = grant.segments if whole else tuple(kept)  # one tuple less of each
        # Nobody's, and no older grant's either. The wider first: the order of nodes says nothing.
        for each in sorted(disputed, key=lambda prefix: (prefix.prefixlen, *bounds_of(prefix))):
            _take(each, taken)
    return found


def segments_after(
    snapshot: Snapshot, before: Snapshot, segments: Mapping[str, tuple[Prefix, ...]]
) -> Mapping[str, tuple[Prefix, ...]]:
    """`effective_segments`, where `segments` are those of `before`: the same object where nothing
    of them has changed."""
    if _are_the_same(snapshot, before, segments):
        return segments
    found = effective_segments(snapshot)
    return segments if found == segments else found


def _are_the_same(
    snapshot: Snapshot, before: Snapshot, segments: Mapping[str, tuple[Prefix, ...]]
) -> bool:
    """Surely so, by a glance at each grant."""
    known = before.nodes
    for uid in differing(known, snapshot.nodes):
        old, entry = known.get(uid), snapshot.nodes.get(uid)
        if old is None or entry is None:
            return False
        was, now = old.grant, entry.grant
        if was is not now and (
            (was.segments, was.tombstone) != (now.segments, now.tombstone)
            # Who has lost nothing loses nothing by a later grant, nor takes it from others.
            or segments.get(uid, ()) != (() if now.tombstone else now.segments)
            or now.signed_at < was.signed_at
        ):
            return False
    return True


def newest_grant(grants: Iterable[Grant]) -> str:
    """Uid of the one that the cluster has signed last; empty: that is not one alone."""
    held = list(grants)
    last = max(grant.signed_at for grant in held)
    uids = [grant.uid for grant in held if grant.signed_at == last]
    return uids[0] if len(uids) == 1 else ""


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


def _outermost(segments: tuple[Prefix, ...]) -> tuple[Prefix, ...]:
    """Without those that lie in another one of them."""
    spans = {each: (each.version, *bounds_of(each)) for each in segments}
    return tuple(
        each
        for each, (version, first, last) in spans.items()
        if not any(
            of == version and start <= first and last <= end and other != each
            for other, (of, start, end) in spans.items()
        )
    )


def _disputed(grants: Iterable[tuple[Grant, tuple[Prefix, ...]]]) -> set[Prefix]:
    """Segments that meet one of another of these grants."""
    found: set[Prefix] = set()
    spans = sorted(
        (each.version, *bounds_of(each), grant.uid, each)
        for grant, segments in grants
        for each in segments
    )
    for _, of_version in groupby(spans, key=itemgetter(0)):
        held = list(of_version)
        widest = held[0]
        for span in held:
            if span[1] <= widest[2] and span[3] != widest[3]:
                found |= {span[4], widest[4]}
            widest = max(widest, span, key=itemgetter(2))
    return found


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
