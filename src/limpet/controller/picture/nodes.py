"""Records and reports -> nodes, relays and findings of a picture. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from limpet.base.addresses import endpoint_text
from limpet.cluster.kinds.grant import Role
from limpet.cluster.nodes import NodeEntry
from limpet.cluster.topology.shown import machine_of, roles_of, segments_of
from limpet.controller.picture.reported import NodePaths
from limpet.picture.nodes import Node, NodeState, Relay, RelayLoad
from limpet.picture.pair import Pair, Reach
from limpet.picture.said import Finding, Level

SILENT_AFTER_S = 300.0
"""A node that is there reports every two minutes, whatever happens."""
_HEARD_STEP_S = 60.0


@dataclass(frozen=True, slots=True)
class NodeRecordFacts:
    """What the controller's records say of a node beside its documents."""

    joined_at_s: float | None = None
    problems: tuple[str, ...] = ()
    watches: bool = False
    """It is connected, and hears of others."""


@dataclass(frozen=True, slots=True)
class Heard:
    """Who answers, by what all nodes report."""

    reached: frozenset[str]
    lost: frozenset[str]


def heard_of(pairs: Iterable[Pair]) -> Heard:
    reached, lost = set(), set()
    for pair in pairs:
        for way, uid in ((pair.there, pair.other), (pair.back, pair.one)):
            if way.reach is Reach.REACHED:
                reached.add(uid)
            elif way.reach is Reach.LOST:
                lost.add(uid)
    return Heard(frozenset(reached), frozenset(lost))


def node_of(
    entry: NodeEntry,
    site: str,
    record: NodeRecordFacts,
    paths: NodePaths | None,
    heard: Heard,
    now_s: float,
) -> Node:
    grant = entry.grant
    state, why = _state(grant.uid, record, paths, heard, now_s)
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


def _state(
    uid: str, record: NodeRecordFacts, paths: NodePaths | None, heard: Heard, now_s: float
) -> tuple[NodeState, str]:
    if uid in heard.lost and uid not in heard.reached:
        return NodeState.SILENT, "it answers no node that has asked it"
    if uid in heard.reached or record.watches:
        return NodeState.ANSWERS, ""
    if paths is None:
        return NodeState.UNKNOWN, "it told nothing since this controller started"
    if now_s - paths.at_s > SILENT_AFTER_S:
        return NodeState.SILENT, "it told nothing for more than five minutes"
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
