"""The cluster's nodes as this one sees them: documents -> nodes, relays, communities. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from limpet.base.addresses import endpoint_text
from limpet.cluster.kinds.grant import Role
from limpet.cluster.nodes import NodeEntry
from limpet.cluster.segments import SegmentUse
from limpet.cluster.topology.shown import machine_of, roles_of, segments_of
from limpet.picture.nodes import Node, NodeState, Relay, RelayLoad, Segment
from limpet.relay.status import Relaying, RelayStatus


def own_segments(usage: Iterable[SegmentUse]) -> tuple[Segment, ...]:
    return tuple(
        Segment(
            prefix=str(each.prefix),
            size=each.size,
            free=each.size - each.live - each.bound,
            live=each.live,
            resting=each.resting,
            bound=each.bound,
        )
        for each in usage
    )


@dataclass(frozen=True, slots=True)
class PeerFacts:
    """What this node knows of another beside its documents."""

    state: NodeState = NodeState.UNKNOWN
    why: str = ""
    heard_at_s: float | None = None


def node_of(entry: NodeEntry, site: str, facts: PeerFacts) -> Node:
    """A peer of the node that looks."""
    grant = entry.grant
    return Node(
        uid=grant.uid,
        name=grant.name,
        site=site,
        roles=roles_of(grant),
        communities=tuple(sorted(grant.communities)),
        labels=dict(sorted(grant.labels.items())),
        state=facts.state,
        why=facts.why,
        segments=segments_of(grant),
        machine=machine_of(entry.presence, heard_at_s=facts.heard_at_s),
    )


def relays_of(
    nodes: Mapping[str, NodeEntry],
    known: Iterable[RelayStatus],
    *,
    own: str,
    relaying: Relaying | None,
    tls_nodes: Collection[str] = (),
) -> tuple[Relay, ...]:
    """All of the cluster. `known`: those that this node uses, as it finds them. `relaying`: what it
    relays itself."""
    found = {each.uid: each for each in known}
    return tuple(
        _relay(
            nodes[uid],
            found.get(uid),
            load_of(relaying, tls_nodes) if uid == own and relaying is not None else RelayLoad(),
            trouble=relaying.trouble if uid == own and relaying is not None else "",
        )
        for uid in sorted(nodes)
        if Role.RELAY in nodes[uid].grant.roles and not nodes[uid].grant.tombstone
    )


def _relay(entry: NodeEntry, known: RelayStatus | None, load: RelayLoad, *, trouble: str) -> Relay:
    presence = entry.presence
    endpoint = known.endpoint if known is not None else None
    named = presence.endpoints if presence is not None else ()
    tls = presence.relay_tls_port if presence is not None else 0
    return Relay(
        uid=entry.grant.uid,
        endpoint=endpoint or (endpoint_text(named[0]) if named else ""),
        tls=endpoint_text((named[0][0], tls)) if tls and named else "",
        answers=known.answers if known is not None else None,
        rtt_ms=known.rtt_ms if known is not None else None,
        trouble=trouble,
        load=load,
    )


def load_of(relaying: Relaying, tls_nodes: Collection[str]) -> RelayLoad:
    """`tls_nodes`: that are connected in TLS."""
    first, last = relaying.ports
    return RelayLoad(
        pairs=len(relaying.pairs),
        connections=len(tls_nodes),
        bytes_per_s=relaying.bytes_per_s,
        most_pairs=(last - first + 1) // 2 if relaying.active else None,
        node_most_bytes_per_s=relaying.node_bytes_per_s or None,
    )
