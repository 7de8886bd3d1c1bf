"""Communities that a node is in: those it was put into by name, and those that choose it.

A grant tells both alike; who is in a community by name, the node's record says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from limpet.base.bounds.administrators import COMMUNITIES
from limpet.cluster.api import Code
from limpet.cluster.kinds.grant import Grant
from limpet.controller.communities.selectors import parse_selector
from limpet.controller.registry.records import COMMUNITY, CommunityRecord
from limpet.controller.registry.refusal import RefusedError
from limpet.controller.registry.tables import Tables

_parsed = lru_cache(maxsize=1_024)(parse_selector)


def chooses(record: CommunityRecord, labels: Mapping[str, str]) -> bool:
    """Whether the community takes in a node by these labels."""
    return bool(record.selector) and _parsed(record.selector).matches(labels)


def takes_in(
    tables: Tables, community: str, uid: str, node: str, labels: Mapping[str, str]
) -> bool:
    """Whether the community says by itself that the machine `uid` of the name `node` and with these
    labels is in it, or a label of the node names it."""
    record = tables.communities[community]
    return (
        is_declared(tables, record, uid, node)
        or chooses(record, labels)
        or names(tables, community, labels)
    )


def is_declared(tables: Tables, record: CommunityRecord, uid: str, node: str) -> bool:
    """Whether the community's object names the machine: of several with one name it means the one
    that had it first and is not removed, or took that one's place."""
    if node not in record.members:
        return False
    others = [each for each in tables.uids_of(node) if each != uid]
    if not others:
        return True
    if uid not in tables.grants:  # it is about to join
        return False
    return all(_since(tables, uid) <= _since(tables, each) for each in others)


def _since(tables: Tables, uid: str) -> tuple[float, str]:
    """When the machine joined, or the first of those whose place it has."""
    line = [uid]
    for former in reversed(tables.grants[uid].supersedes):
        record = tables.nodes.get(former)
        if record is not None and record.replaced_by in line:
            line.append(former)
    return min((tables.nodes[each].joined_at_s, each) for each in line)


def names(tables: Tables, community: str, labels: Mapping[str, str]) -> bool:
    """Whether a label that is for that names the community."""
    return any(labels.get(key) == community for key in tables.source.community_labels)


def communities_of(
    tables: Tables, uid: str, node: str, named: Iterable[str], labels: Mapping[str, str]
) -> tuple[str, ...]:
    """What the grant of a node says, in order. `node`: its name. Raises: RefusedError."""
    chosen = (name for name in tables.communities if takes_in(tables, name, uid, node, labels))
    found = tuple(sorted({*named, *chosen}))
    if len(found) > COMMUNITIES.most:
        raise RefusedError(
            Code.BAD_REQUEST,
            f"put node {node} into its communities: they would be {len(found)}, and a node is in "
            f"{COMMUNITIES.most} at most (choose with narrower selectors, or take it out of some)",
        )
    return found


def learn_communities(tables: Tables, grant: Grant, named: Iterable[str]) -> tuple[str, ...]:
    """Communities that a node is in by name, judged by a grant that was not known before.

    A community that nobody knows is made; what it chose by is not in the grants of its nodes.
    """
    for name in grant.communities:
        if name not in tables.communities:
            tables.put(COMMUNITY, name, CommunityRecord())
    known = frozenset(named)
    return tuple(
        name
        for name in grant.communities
        if name in known or not takes_in(tables, name, grant.uid, grant.name, grant.labels)
    )
