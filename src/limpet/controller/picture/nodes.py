"""Records and reports -> nodes, relays and findings of a picture. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from limpet.base.addresses import endpoint_text
from limpet.cluster.kinds.grant import Role
from limpet.cluster.nodes import NodeEntry
from limpet.cluster.topology.shown import machine_of, roles_of, segments_of
from limpet.controller.picture.reported import NodePaths
from limpet.picture.nodes import Node, NodeState, Relay, RelayLoad
from limpet.picture.pair import Reach
from limpet.picture.said import Finding, Level

_HEARD_STEP_S = 60.0


@dataclass(frozen=True, slots=True)
class NodeRecordFacts:
    """What the controller's records say of a node beside its documents."""

    joined_at_s: float | None = None
    problems: tuple[str, ...] = ()
    watches: bool = False
    """It is connected, and hears of others."""


@dataclass(frozen=True, slots=True)
class HeardNodes:
    """Who answers, by what all nodes report."""

    reached: frozenset[str]
    lost: frozenset[str]


def present(
    reported: Mapping[str, NodePaths], watching: Collection[str], since_s: float
) -> dict[str, NodePaths]:
    """Reports of nodes that are there: what one said that is silent since counts no more, or two
    nodes that went together would vouch for each other for ever. `since_s`: what was told before
    is too old, unless who told it is connected."""
    return {
        uid: paths for uid, paths in reported.items() if uid in watching or paths.at_s >= since_s
    }


def heard_of(present: Mapping[str, NodePaths]) -> HeardNodes:
    reached, lost = set(), set()
    for uid, paths in present.items():
        for peer, pair in paths.pairs.items():
            if peer == uid:
                continue
            reach = pair.direction.way.reach
            if reach is Reach.REACHED:
                reached.add(peer)
            elif reach is Reach.LOST:
                lost.add(peer)
    return HeardNodes(frozenset(reached), frozenset(lost))


def node_of(
    entry: NodeEntry,
    site: str,
    record: NodeRecordFacts,
    paths: NodePaths | None,
    heard: HeardNodes,
    since_s: float,
) -> Node:
    grant = entry.grant
    state, why = state_of(grant.uid, record.watches, paths, heard, since_s)
    heard_at_s = None
    if paths is not None and state is not NodeState.ANSWERS:
        heard_at_s = paths.at_s // _HEARD_STEP_S * _HEARD_STEP_S
    said = paths.node if paths is not None else None
    return Node(
        uid=grant.uid,
        name=grant.name,
        site=site,
        roles=roles_of(grant),
        communities=tuple(sorted(grant.communities)),
        labels=dict(sorted(grant.labels.items())),
        state=state,
        why=why,
        segments=said.segments if said is not None and said.segments else segments_of(grant),
        pods=said.pods if said is not None else None,
        machine=machine_of(
            entry.presence,
            nat=dict(sorted(said.nat.items())) if said is not None else {},
            version=said.version if said is not None else "",
            backend=said.backend if said is not None else "",
            joined_at_s=record.joined_at_s,
            heard_at_s=heard_at_s,
        ),
    )


def state_of(
    uid: str, watches: bool, paths: NodePaths | None, heard: HeardNodes, since_s: float
) -> tuple[NodeState, str]:
    """And why, in words, if it does not answer. `watches`: it is connected."""
    if uid in heard.lost and uid not in heard.reached:
        return NodeState.SILENT, "it answers no node that has asked it"
    if uid in heard.reached or watches:
        return NodeState.ANSWERS, ""
    if paths is None:
        return NodeState.UNKNOWN, "it told nothing since this controller started"
    if paths.at_s < since_s:
        return NodeState.SILENT, "it tells nothing any more, and nobody reaches it"
    return NodeState.ANSWERS, ""


def relays_of(
    nodes: Mapping[str, NodeEntry], reported: Mapping[str, NodePaths]
) -> tuple[Relay, ...]:
    return tuple(
        _relay(nodes[uid], reported.get(uid))
        for uid in sorted(nodes)
        if Role.RELAY in nodes[uid].grant.roles
    )


def _relay(entry: NodeEntry, paths: NodePaths | None) -> Relay:
    presence = entry.presence
    named = presence.endpoints if presence is not None else ()
    tls = presence.relay_tls_port if presence is not None else 0
    load = paths.node.relay if paths is not None else None
    return Relay(
        uid=entry.grant.uid,
        endpoint=endpoint_text(named[0]) if named else "",
        tls=endpoint_text((named[0][0], tls)) if tls and named else "",
        load=load or RelayLoad(),
    )


def findings_of(records: Mapping[str, NodeRecordFacts]) -> tuple[Finding, ...]:
    """What the controller finds wrong with nodes, by their uids."""
    return tuple(
        Finding(level=Level.WARN, what=problem, node=uid)
        for uid in sorted(records)
        for problem in records[uid].problems
    )
