"""Segments that a node is granted: podCIDRs of its Node, or of the controller's own space.
Operations on the tables, as those of state/grants.py."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from limpet.base.addresses import Prefix
from limpet.base.errors import ExhaustedError
from limpet.cluster.api import Code
from limpet.cluster.kinds.grant import Grant
from limpet.controller.orchestrator.node_keeper.pod_cidrs import offer, waiting_words
from limpet.controller.registry.records import SegmentRecord
from limpet.controller.registry.refusal import RefusedError
from limpet.controller.registry.tables import Tables, live_uids

Taken = tuple[Prefix, str]
"""A segment that is the node's now, and the uid of who had it before; empty: nobody."""


def first_segments(
    tables: Tables, name: str, uid: str, had: Sequence[Prefix], now_s: float
) -> list[Taken]:
    """For a node that is let in: one of each IP version, if there is no reason to wait.

    `had`: those that it has taken over.

    A node whose Node has no podCIDRs yet is let in without segments, and gets them as soon as they
    are there: who it is and whom it may talk to is known by then, and nobody has to ask twice.
    Raises: RefusedError.
    """
    if not tables.source.from_nodes:
        return [_take(tables, uid, version, now_s) for version in _lacking(tables, had)]
    found = offer(tables, name, uid, now_s, had)
    taken = [hold_cidr(tables, prefix, uid) for prefix in found.prefixes]
    if found.is_awaited:
        return taken
    for version in _lacking(tables, [*had, *(each for each, _ in taken)]):
        if tables.space.own(version):
            taken.append(_take(tables, uid, version, now_s))
    return taken


def _lacking(tables: Tables, had: Sequence[Prefix]) -> list[int]:
    return sorted(set(tables.space.versions) - {each.version for each in had})


def more_segments(
    tables: Tables, grant: Grant, versions: Sequence[int], now_s: float
) -> list[Taken]:
    """One more of each of these versions. Raises: RefusedError, and then it has none of them."""
    if not tables.source.from_nodes:
        return [_take(tables, grant.uid, version, now_s) for version in versions]
    found = offer(tables, grant.name, grant.uid, now_s)
    taken = [hold_cidr(tables, prefix, grant.uid) for prefix in found.prefixes]
    refused: RefusedError | None = None
    for version in versions:
        if any(each.version == version for each, _ in taken):
            continue
        has_some = any(each.version == version for each in grant.segments)
        try:
            if found.is_awaited and not has_some:
                raise RefusedError(Code.TRY_AGAIN, waiting_words(grant.name))
            taken.append(_take(tables, grant.uid, version, now_s))
        except RefusedError as error:
            refused = error if not found.problems else _with(error, found.problems)
    if refused is not None and not taken:
        raise refused
    return taken


def _with(error: RefusedError, problems: Sequence[str]) -> RefusedError:
    return RefusedError(error.refused.code, "; ".join([*problems, str(error)]))


def hold_cidr(tables: Tables, prefix: Prefix, uid: str) -> Taken:
    """The podCIDR is the node's, as `offer` found that it may be."""
    before = tables.space.holdings.get(prefix)
    tables.hold(prefix, uid)
    return prefix, before.uid if before is not None and before.uid != uid else ""


def give_back(tables: Tables, uids: Collection[str] | None = None) -> int:
    """What is held for a machine that is no node, and named by a node's grant, is that node's: a
    writer was stopped when the machine was about to take the node's place. Returns how many
    segments.

    `uids`: of those machines; None: of all.
    """
    live = set(live_uids(tables))
    lost = [
        each.prefix
        for each in tables.space.holdings.values()
        if each.resting_since_s is None
        and each.uid not in live
        and (uids is None or each.uid in uids)
    ]
    named = {prefix: uid for uid in live for prefix in tables.grants[uid].segments} if lost else {}
    found = [prefix for prefix in lost if prefix in named]
    for prefix in found:
        tables.hold(prefix, named[prefix])
    return len(found)


def disown_resting(tables: Tables, uid: str) -> None:
    """What rests of an earlier join of the machine, which was cut off, rests on as nobody's: a node
    of which something rests was removed."""
    for each in list(tables.space.holdings.values()):
        if each.uid == uid and each.resting_since_s is not None:
            tables.put_segment(each.prefix, SegmentRecord("", each.resting_since_s))


def _take(tables: Tables, uid: str, version: int, now_s: float) -> Taken:
    """A segment of the controller's space. Raises: RefusedError."""
    state, source = tables.state, tables.source
    if state.recovery is not None and state.recovery.paused:
        raise RefusedError(
            Code.RECOVERING,
            "the controller was restored from an old back-up and grants nothing until its nodes "
            "have reported (a person can tell more: limpet controller recovery)",
        )
    grant = tables.grants.get(uid)
    named = grant.segments if grant is not None else ()
    if (left := tables.space.left_over(version, uid, named)) is not None:
        return left, ""
    mark = state.marks.get(version, -1)
    avoid = (
        {cidr for node in source.nodes.objects.values() for cidr in node.pod_cidrs}
        if source.from_nodes
        else ()
    )
    try:
        prefix = tables.space.next_free(
            version, mark, now_s, only_unused=state.recovery is not None, avoid=avoid
        )
    except ExhaustedError as error:
        raise RefusedError(Code.EXHAUSTED, str(error)) from error
    before = tables.space.holdings.get(prefix)
    tables.hold(prefix, uid)
    return prefix, before.uid if before else ""
