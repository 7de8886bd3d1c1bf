"""Records and reports -> nodes, relays and findings of a picture. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from limpet.base.addresses import endpoint_text
from limpet.cluster.kinds.grant import Grant, Role
from limpet.cluster.kinds.network import Network
from limpet.cluster.nodes import NodeEntry
from limpet.cluster.topology.reach import may_talk
from limpet.cluster.topology.shown import machine_of, roles_of, segments_of
from limpet.controller.picture.reported import NodePaths
from limpet.picture.nodes import Node, NodeState, Relay, RelayLoad, Segment
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
    """How many nodes say of another, by its uid, that they reach it, or reach it no more."""

    reached: Mapping[str, int]
    lost: Mapping[str, int]


def present(
    reported: Mapping[str, NodePaths], watching: Collection[str], since_s: float
) -> dict[str, NodePaths]:
    """Reports of nodes that are there: what one said that is silent since counts no more, or two
    nodes that went together would vouch for each other for ever. `since_s`: what was told before
    is too old, unless who told it is connected."""
    return {
        uid: paths for uid, paths in reported.items() if uid in watching or paths.at_s >= since_s
    }


def heard_of(
    present: Mapping[str, NodePaths], grants: Mapping[str, Grant], network: Network
) -> HeardNodes:
    """`grants`: of all nodes that there are. Of a node that it may not reach nobody can know."""
    reached, lost = Counter[str](), Counter[str]()
    for uid, paths in present.items():
        for peer, pair in paths.pairs.items():
            reach = pair.direction.way.reach
            if reach not in (Reach.REACHED, Reach.LOST):
                continue
            if uid in grants and peer in grants and may_talk(network, grants[uid], grants[peer]):
                (reached if reach is Reach.REACHED else lost)[peer] += 1
    return HeardNodes(reached, lost)


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
        segments=_segments(grant, said.segments if said is not None else ()),
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


def _segments(grant: Grant, said: Collection[Segment]) -> tuple[Segment, ...]:
    """Those of the grant, with what the node says of how full they are: it may name others'."""
    known = {each.prefix: each for each in said}
    return tuple(known.get(each.prefix, each) for each in segments_of(grant))


def state_of(
    uid: str, watches: bool, paths: NodePaths | None, heard: HeardNodes, since_s: float
) -> tuple[NodeState, str]:
    """And why, in words, if it does not answer, or one node's word is all that says it does.

    `watches`: it is connected.
    """
    is_reached, lost_by = uid in heard.reached, heard.lost.get(uid, 0)
    # One member that says so could lie, of a node that this controller hears itself.
    if lost_by > (1 if watches else 0) and not is_reached:
        return NodeState.SILENT, "it answers no node that has asked it"
    if watches or heard.reached.get(uid, 0) > 1:
        return NodeState.ANSWERS, ""
    if is_reached:
        is_heard = paths is not None and paths.at_s >= since_s
        return NodeState.ANSWERS, "" if is_heard else "so one node says; it tells nothing itself"
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
