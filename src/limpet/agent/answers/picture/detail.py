"""One pair that somebody looks at: all that is known of both directions. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from msgspec.structs import replace

from limpet.agent.answers.picture.ways import WaySeen, outward_of, pair_of, probes_of
from limpet.base.addresses import endpoint_text
from limpet.cluster.nodes import NodeEntry
from limpet.cluster.topology.reach import why_apart
from limpet.cluster.topology.view import View
from limpet.datapath.overlay.state import PeerPart
from limpet.datapath.tunnel.state import PeerReading
from limpet.paths.summary import CandidateSummary, Indirect
from limpet.picture.pair import Direction, PairDetail, Traffic


@dataclass(frozen=True, slots=True)
class PairFacts:
    """What this node knows of itself and a peer."""

    own: str
    peer: str
    seen: WaySeen
    asked: Collection[CandidateSummary]
    indirect: Indirect | None
    part: PeerPart
    """What the peer adds to this node's plan."""
    reading: PeerReading | None
    """Reading of the tunnel's device."""
    nat: str
    """Kind of NAT in front of this node."""
    lacking: str
    """Why no tunnel to the peer comes about."""


def pair_detail(facts: PairFacts, view: View, *, now_s: float, as_of_s: float) -> PairDetail:
    """`now_s` of the monotonic clock is `as_of_s` of the wall clock."""
    nodes = view.snapshot.nodes
    mine, theirs = nodes[facts.own], nodes[facts.peer]
    why_not = why_apart(view.network, mine.grant, theirs.grant) if view.network is not None else ""
    here = replace(
        direction_here(facts, view),
        probes=probes_of(facts.asked, nodes, now_s=now_s, as_of_s=as_of_s),
    )
    there = _told(facts, theirs) if facts.seen.has_told else None
    first = facts.own < facts.peer
    one, other = sorted((facts.own, facts.peer))
    return PairDetail(
        one=one,
        other=other,
        there=here if first else there,
        back=there if first else here,
        communities=tuple(sorted(set(mine.grant.communities) & set(theirs.grant.communities))),
        why_not_allowed=why_not,
        why_unknown="" if there is not None or why_not else _why_unknown(facts, theirs),
        as_of_s=round(as_of_s, 1),
    )


def _why_unknown(facts: PairFacts, theirs: NodeEntry) -> str:
    if theirs.grant.is_flannel:
        return f"{theirs.grant.name} is run by flannel, which answers no probe"
    return f"{theirs.grant.name} has answered no probe since this agent started"


def direction_here(facts: PairFacts, view: View) -> Direction:
    """From this node, without its probes."""
    pair = pair_of(facts.own, facts.peer, facts.seen, None)
    way = pair.there if pair.one == facts.own else pair.back
    routes = facts.part.routes
    path = facts.seen.here.path if facts.seen.here is not None else None
    entry = view.snapshot.nodes[facts.own]
    endpoints = entry.presence.endpoints if entry.presence is not None else ()
    reading = facts.reading
    notes = [facts.part.refused, facts.lacking]
    notes += [f"{prefix}: {why}" for prefix, why in facts.part.without]
    if facts.part.claims:
        notes.append(f"it announces as its own what is not: {facts.part.claims}")
    return Direction(
        way=way,
        outward=outward_of(
            path if routes else None,
            (route.device for route in routes),
            min((route.mtu_bytes for route in routes), default=None),
        ),
        traffic=Traffic(
            sent_bytes=reading.sent_bytes,
            received_bytes=reading.received_bytes,
            handshake_at_s=reading.last_handshake_ns / 1e9 if reading.last_handshake_ns else None,
        )
        if reading is not None
        else Traffic(),
        nat=facts.nat,
        endpoints=tuple(map(endpoint_text, endpoints)),
        why_not_direct=facts.indirect.why if facts.indirect is not None else "",
        mend=facts.indirect.mend if facts.indirect is not None else (),
        notes=tuple(filter(None, notes)),
    )


def _told(facts: PairFacts, theirs: NodeEntry) -> Direction:
    pair = pair_of(facts.own, facts.peer, facts.seen, None)
    way = pair.back if pair.one == facts.own else pair.there
    told = facts.seen.told
    endpoints = theirs.presence.endpoints if theirs.presence is not None else ()
    return Direction(
        way=way,
        outward=outward_of(told, (), told.mtu_bytes if told is not None else None),
        endpoints=tuple(map(endpoint_text, endpoints)),
        notes=("as the peer has told with its last answer; its own page says more",),
    )
