"""A controller that was restored from an old back-up learns what it has granted since.

What it does not know may be in use: it grants only space that was never used, above the mark of
the back-up and a margin, and takes up the signed grants that nodes show, their own and others'.
The margin is held for whoever was not heard of, until a person gives it free.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from ipaddress import ip_network

import structlog
from msgspec.structs import replace as replace_fields

from limpet.base.addresses import Prefix
from limpet.cluster.documents import Document, Sealed
from limpet.cluster.kinds import GRANT, KINDS
from limpet.cluster.kinds.grant import Grant
from limpet.cluster.seal import check, read_sealed
from limpet.controller.communities.membership import learn_communities
from limpet.controller.communities.namesakes import settle_namesakes
from limpet.controller.registry.records import (
    NODE,
    STATE,
    TOKEN,
    NodeRecord,
    RecoveryRecord,
    SegmentRecord,
    StateRecord,
)
from limpet.controller.registry.rotation import (
    bury_forged,
    check_counts,
    is_former,
    may_be_lost,
)
from limpet.controller.registry.tables import Tables, by_name
from limpet.controller.state.grants import bury

_log = structlog.get_logger("cluster")

_JUMP = 1 << 20
"""Revisions left out at a recovery, more than can have been lost."""


def begin(
    tables: Tables, margin: int, now_s: float, *, paused: bool, former: StateRecord | None = None
) -> None:
    """From here on nothing is granted that may be in use.

    `former`: of the database that the back-up replaces, where that can still be read: what it has
    granted is held back too, so restoring one back-up again and again is safe. Tokens let in nobody
    any more, and nobody is to be replaced.
    """
    state = tables.state
    above, marks = state.revision, state.marks
    if state.recovery is not None:  # restored in the midst of one: what it knew still counts
        above, marks = state.recovery.above, state.recovery.marks
    known = former or state
    # Above what any node has reported to, too: where the state was lost, its epoch was, and an
    # epoch that comes twice takes an earlier recovery's reports for this one's.
    reported = max((record.reported_epoch for record in tables.nodes.values()), default=0)
    epoch = max(state.epoch, known.epoch, reported) + 1
    recovery = RecoveryRecord(
        epoch=epoch,
        began_at_s=now_s,
        above=above,
        below=max(state.revision, known.revision) + _JUMP,
        marks=marks,
        granted={
            version: max(_mark(tables, state, version), _mark(tables, known, version))
            for version in tables.space.versions
        },
        highest_lost=above,
        paused=paused,
    )
    begun = replace_fields(state, revision=recovery.below, recovery=recovery, epoch=epoch)
    tables.put(STATE, STATE, begun)
    for token_id, token in list(tables.tokens.items()):
        if token.used_by not in tables.grants:
            tables.put(TOKEN, token_id, None)
        elif token.held_since_s is not None:  # its node may have confirmed since
            tables.put(TOKEN, token_id, replace_fields(token, held_since_s=None))
    # Perhaps it was replaced since: a second heir would hold its segments. Or its Node came back.
    for uid, record in list(tables.nodes.items()):
        if record.awaits_replacement or record.node_gone_at_s is not None:
            tables.put_node(uid, awaits_replacement=False, node_gone_at_s=None)
    _reserve(tables, margin)


def remake_state(tables: Tables) -> None:
    """As low as it can be, where somebody took it away; `begin` has to follow."""
    tables.put(STATE, STATE, StateRecord(revision=tables.highest_revision, marks={}))


def reclaim(tables: Tables, unreadable: Iterable[str], now_s: float) -> int:
    """Segments that a node's grant names, and nobody's record: somebody took records away, so what
    is missing beside them rests, too. Returns how many of grants were missing.

    `unreadable`: names of segments whose records nobody can read.
    """
    missing = 0
    for grant in [each for each in tables.grants.values() if not each.tombstone]:
        for prefix in grant.segments:
            holding = tables.space.holdings.get(prefix)
            if tables.space.number(prefix) is not None and (holding is None or not holding.uid):
                tables.hold(prefix, grant.uid)
                missing += 1
    for name in unreadable:
        with contextlib.suppress(ValueError):
            prefix = ip_network(name.replace("_", "/"))
            if tables.space.number(prefix) is not None and prefix not in tables.space.holdings:
                tables.hold(prefix, "")
    if missing:
        for version in tables.space.versions:
            own, mark = tables.space.own(version), tables.state.marks.get(version, -1)
            for number in own[: max(0, mark + 1 - own.start)]:
                prefix = tables.space.segment(version, number)
                if prefix not in tables.space.holdings:
                    tables.put_segment(prefix, SegmentRecord("", now_s))
    return missing


def _reserve(tables: Tables, margin: int) -> None:
    """Holds what may have been granted since the back-up: a revision grants one of each family."""
    recovery = tables.state.recovery
    assert recovery is not None
    for version in tables.space.versions:
        end = min(_end(tables, recovery, version, margin), tables.space.own(version).stop)
        for number in range(_mark(tables, recovery, version) + 1, end):
            prefix = tables.space.segment(version, number)
            if prefix not in tables.space.holdings:
                tables.put_segment(prefix, SegmentRecord(""))
        tables.raise_mark(version, end - 1)


def _mark(tables: Tables, of: StateRecord | RecoveryRecord, version: int) -> int:
    """The highest number that was granted, or the one before the first that can be."""
    return max(of.marks.get(version, -1), tables.space.own(version).start - 1)


def _end(tables: Tables, recovery: RecoveryRecord, version: int, margin: int) -> int:
    """Numbers below this may be in use. Earlier recoveries left revisions out."""
    lost = (recovery.highest_lost - recovery.above) % _JUMP
    return max(recovery.granted[version] + margin, _mark(tables, recovery, version) + lost) + 1


def waiting_for(tables: Tables) -> list[Grant]:
    """Nodes that have not shown their grant since the recovery began, by name."""
    if tables.state.recovery is None:
        return []
    return by_name(
        grant
        for uid, grant in tables.grants.items()
        if not grant.tombstone
        and not grant.is_flannel  # it reports nothing
        and tables.nodes[uid].reported_epoch < tables.state.epoch
    )


def awaits(tables: Tables, uid: str) -> bool:
    """A recovery waits for this node's report."""
    return tables.state.recovery is not None and (
        tables.nodes[uid].reported_epoch < tables.state.epoch
    )


def is_clipped(tables: Tables, margin: int) -> bool:
    """The margin did not fit: used space may have been granted again, and no report tells."""
    recovery = tables.state.recovery
    return recovery is not None and any(
        _end(tables, recovery, version, margin) > tables.space.own(version).stop
        for version in tables.space.versions
        if tables.space.own(version)
    )


def note_report(tables: Tables, uid: str, margin: int) -> None:
    """The node has shown its grant; with the last one's report the recovery is over."""
    if tables.nodes[uid].reported_epoch != tables.state.epoch:
        tables.put_node(uid, reported_epoch=tables.state.epoch)
    end_if_all_reported(tables, margin)


def end_if_all_reported(tables: Tables, margin: int) -> None:
    """The recovery is over where somebody has, and nobody is waited for any more."""
    if tables.state.recovery is None or waiting_for(tables) or is_clipped(tables, margin):
        return
    if any(each.reported_epoch == tables.state.epoch for each in tables.nodes.values()):
        _log.info("every node has reported: granting as ever")
        _put(tables, None)


def resume(tables: Tables) -> None:
    """Grants from unused space, as after a restore that was declared."""
    if (recovery := tables.state.recovery) is not None:
        _put(tables, replace_fields(recovery, paused=False))


def _put(tables: Tables, recovery: RecoveryRecord | None) -> None:
    tables.put(STATE, STATE, replace_fields(tables.state, recovery=recovery))


def force(tables: Tables) -> int:
    """Ends it on a person's word and gives the margin free. Returns how many segments."""
    if tables.state.recovery is not None:
        _put(tables, None)
    unknown = [each.prefix for each in tables.space.holdings.values() if not each.uid]
    for prefix in unknown:
        tables.put_segment(prefix, None)
    return len(unknown)


# What nodes show


def absorb(tables: Tables, shown: Sequence[Sealed], margin: int, now_s: float) -> int:
    """Takes what is not known, and withdraws what only a thief of a former key has signed. Returns
    how many. Raises: SealError for what we never signed."""
    documents = [read_sealed(sealed, KINDS) for sealed in shown]
    taken = 0
    # What others are checked with first, then in the order in which they were made: a removed
    # node's segments are free for the next.
    for document in sorted(documents, key=lambda each: (KINDS.order(each.kind), each.revision)):
        known = tables.find(document.key)
        if known is not None and known.sealed == document.sealed:
            continue  # which costs no check of a signature
        if is_former(tables, document):
            if may_be_lost(tables, document):
                taken += _absorb_former(tables, document, margin, now_s)
            else:
                taken += bury_forged(tables, document, now_s)
            continue
        check_counts(document)
        check(document, tables)
        if document.kind == NODE:
            taken += _absorb_grant(tables, document, margin, now_s)
        elif document.is_newer(known) and not KINDS[document.kind].under:
            _note_lost(tables, document.revision, margin, now_s)
            tables.put_document(document)
            taken += not KINDS[document.kind].root
    if (recovery := tables.state.recovery) is not None:
        revisions = (each.revision for each in documents if not is_former(tables, each))
        if (heard := recovery.having_heard(revisions)) != recovery:
            _put(tables, heard)
    return taken


def _absorb_former(tables: Tables, document: Document, margin: int, now_s: float) -> bool:
    """What may be lost, and may be a thief's: a removal counts; of a grant nobody becomes a member
    or gets a segment, and what it names is kept from others until a person ends the recovery."""
    if document.kind != NODE:
        return False
    grant: Grant = document.value
    known = tables.grants.get(grant.uid)
    if known is not None and known.tombstone:
        return False
    if grant.tombstone:
        if known is None:
            return bury_forged(tables, document, now_s)
        _note_lost(tables, grant.revision, margin, now_s)
        tombstone = replace(grant, generation=known.generation + 1, revision=tables.next_revision())
        _rest_segments(tables, known, now_s)
        tables.sign(GRANT, tombstone, awaits_replacement=False, communities=())
        settle_namesakes(tables, known.name)
        return True
    lost = [each for each in grant.segments if known is None or each not in known.segments]
    if known is not None and not lost:
        return False
    _note_lost(tables, grant.revision, margin, now_s)
    free = [
        each
        for each in lost
        if tables.space.number(each) is not None and each not in tables.space.holdings
    ]
    for prefix in free:
        tables.put_segment(prefix, SegmentRecord(""))
    if free or known is None:
        _log.error(
            "a former key of the cluster has signed what the back-up does not know: a grant that "
            "is lost, or a thief's; its segments are held back, and it is not granted anew",
            node=grant.name,
            uid=grant.uid,
            revision=grant.revision,
            segments=list(map(str, lost)),
        )
    return bool(free)


def _absorb_grant(tables: Tables, document: Document, margin: int, now_s: float) -> bool:
    grant: Grant = document.value
    known = tables.grants.get(grant.uid)
    if known == grant or (known is not None and known.tombstone):
        return False
    _note_lost(tables, grant.revision, margin, now_s)
    if known is None and not grant.tombstone and tables.space.is_resting(grant.uid):
        _remove_shown(tables, document, now_s)
        return True
    if grant.tombstone:
        _absorb_tombstone(tables, known, document, now_s)
        return True
    had = known.segments if known else ()
    more = tuple(each for each in grant.segments if each not in had)
    taken = tuple(each for each in more if _claim(tables, each, grant))
    newest = grant if known is None or grant.generation > known.generation else known
    segments = tuple(dict.fromkeys((*had, *taken)))
    if newest is known and not taken and grant.generation < known.generation:
        return False
    for prefix in taken:
        tables.hold(prefix, grant.uid)
    record = tables.nodes.get(grant.uid) or NodeRecord(document.sealed, now_s)
    if newest is grant:
        named = learn_communities(tables, grant, record.communities)
        record = replace_fields(record, communities=named)
    if newest is grant and set(segments) == set(grant.segments):
        tables.put_document(document, record)
        return True
    merged = replace(
        newest,
        generation=max(grant.generation, known.generation if known else 0) + 1,
        revision=tables.next_revision(),
        segments=segments,
        supersedes=tuple(dict.fromkeys((*(known.supersedes if known else ()), *grant.supersedes))),
    )
    tables.sign(GRANT, merged, record)
    return True


def _remove_shown(tables: Tables, document: Document, now_s: float) -> None:
    """It was removed when its grant was not known here, or somebody took its tombstone away."""
    grant: Grant = document.value
    bury(tables, grant, record=NodeRecord(document.sealed, now_s))
    _rest_segments(tables, grant, now_s)
    for prefix in grant.segments:
        if tables.space.number(prefix) is not None and prefix not in tables.space.holdings:
            tables.put_segment(prefix, SegmentRecord(grant.uid, now_s))


def _absorb_tombstone(
    tables: Tables, known: Grant | None, document: Document, now_s: float
) -> None:
    uid = document.name
    if known is not None:
        _rest_segments(tables, known, now_s)
    record = tables.nodes.get(uid) or NodeRecord(document.sealed, now_s)
    tables.put_document(document, record, awaits_replacement=False, communities=())
    if known is not None:
        settle_namesakes(tables, known.name)


def _rest_segments(tables: Tables, removed: Grant, now_s: float) -> None:
    for prefix in removed.segments:
        holding = tables.space.holdings.get(prefix)
        if holding is not None and holding.uid == removed.uid:
            tables.put_segment(prefix, SegmentRecord(removed.uid, now_s))


def _claim(tables: Tables, prefix: Prefix, grant: Grant) -> bool:
    """Whether the node may have it. Where another holds it, the higher revision counts."""
    if tables.space.number(prefix) is None:
        return False
    holding = tables.space.holdings.get(prefix)
    if holding is None or not holding.uid or holding.resting_since_s is not None:
        return True
    other = tables.grants.get(holding.uid)
    if other is None or other.tombstone or prefix not in other.segments:
        return True
    if other.revision > grant.revision and other.uid not in grant.supersedes:
        return False
    loser = replace(
        other,
        generation=other.generation + 1,
        revision=tables.next_revision(),
        segments=tuple(each for each in other.segments if each != prefix),
    )
    tables.sign(GRANT, loser)
    return True


def _note_lost(tables: Tables, revision: int, margin: int, now_s: float) -> None:
    """Something we signed and do not know: we are behind, and by how much at least."""
    if tables.state.recovery is None:
        if revision <= tables.state.revision:
            return
        begin(tables, margin, now_s, paused=True)
    state, recovery = tables.state, tables.state.recovery
    assert recovery is not None
    if revision > state.revision:  # lost in a later life than the back-up's
        state = replace_fields(state, revision=revision + _JUMP)
        recovery = replace_fields(recovery, below=revision + _JUMP)
    if recovery.highest_lost < revision <= recovery.below:
        recovery = replace_fields(recovery, highest_lost=revision)
    if recovery != tables.state.recovery:
        tables.put(STATE, STATE, replace_fields(state, recovery=recovery))
        _reserve(tables, margin)
