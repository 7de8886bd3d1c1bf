"""explain_path: which way packets between two addresses take, both ways, or why there is none.

Made by the planner itself, so that what is explained is what the nodes do. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from limpet.base.addresses import Address, Endpoint, Prefix
from limpet.cluster.documents import Snapshot
from limpet.cluster.merge import effective_segments
from limpet.cluster.topology.paths import OwnSide, PeerPath
from limpet.cluster.topology.transports import ProbeKind, Transport
from limpet.cluster.topology.view import view_of
from limpet.datapath.overlay.plan import plan_overlay, transport_of
from limpet.datapath.overlay.state import PeerRoute


@dataclass(frozen=True, slots=True)
class NodeSide:
    """What a node knows of itself and of its paths; of another node only if that was asked."""

    own: OwnSide
    paths: Mapping[str, PeerPath]


@dataclass(frozen=True, slots=True)
class Leg:
    """One direction. Known and without a `reason`: the packets get there."""

    origin: Address
    target: Address
    origin_node: str = ""
    """Name; empty: no node of the cluster has the address."""
    target_node: str = ""
    rung: Transport | None = None
    """None, with no reason: both are on one node."""
    device: str = ""
    next_hop: Address | None = None
    underlay: Address | None = None
    """Where packets are sent that are proven by SITE."""
    mtu_bytes: int | None = None
    reason: str = ""
    known: bool = True
    """False: it is the choice of a node that was not asked; `reason` says so."""
    endpoint: Endpoint | None = None
    """Tunnelled: where the encrypted packets are sent."""
    relay: str = ""
    """Name of the relay that they go by."""


@dataclass(frozen=True, slots=True)
class PathAnswer:
    there: Leg
    back: Leg


def explain_path(
    snapshot: Snapshot, sides: Mapping[str, NodeSide], origin: Address, target: Address
) -> PathAnswer:
    """From what is known: `sides` holds, by uid, this node and every other that was asked."""
    there = _leg(snapshot, sides, origin, target)
    return PathAnswer(there, _leg(snapshot, sides, target, origin))


def _leg(
    snapshot: Snapshot, sides: Mapping[str, NodeSide], origin: Address, target: Address
) -> Leg:
    of_origin, of_target = holder_of(snapshot, origin), holder_of(snapshot, target)
    leg = Leg(origin, target, name_of(snapshot, of_origin), name_of(snapshot, of_target))
    if origin.version != target.version:
        return _without(leg, f"{origin} and {target} are not of the same IP version")
    for address, uid in ((origin, of_origin), (target, of_target)):
        if uid is None:
            return _without(leg, f"{address} is in no segment of a node that is known here")
    if of_origin == of_target:
        return leg
    side = sides.get(of_origin or "")
    if side is None:
        unknown = _without(leg, f"what {leg.origin_node} does is known there: ask it")
        return replace(unknown, known=False)
    view = view_of(snapshot, of_origin or "", side.paths, side.own)
    plan = plan_overlay(view)
    part = plan.parts.get(of_target or "")
    if part is None:
        return _without(leg, f"{leg.origin_node} has no segment of its own")
    route = _longest(plan.state.routes.values(), target)
    if route is None or route not in part.routes:
        lost = [why for prefix, why in part.without if target in prefix]
        words = part.refused or (lost[0] if lost else "")
        if route is not None or not words:
            words = "another node has the more specific prefix"
        return _without(leg, f"{leg.target_node}: {words}")
    fdb = part.fdb[0] if part.fdb and part.fdb[0].device == route.device else None
    if fdb is not None and plan.state.fdb[fdb.device, fdb.mac] != fdb:
        return _without(leg, f"{leg.target_node}: another node announces its MAC, a clone of it")
    path = side.paths[of_target or ""]
    rung = transport_of(route, path, plan.state.devices)
    return Leg(
        origin,
        target,
        leg.origin_node,
        leg.target_node,
        rung,
        route.device,
        route.next_hop,
        path.underlay if rung.proof is ProbeKind.SITE else None,
        route.mtu_bytes,
        endpoint=path.endpoint,
        relay=name_of(snapshot, path.relay or None),
    )


def _without(leg: Leg, reason: str) -> Leg:
    return Leg(leg.origin, leg.target, leg.origin_node, leg.target_node, reason=reason)


def name_of(snapshot: Snapshot, uid: str | None) -> str:
    """Of a node; the uid itself where none is known, empty for None."""
    if uid is None:
        return ""
    return snapshot.nodes[uid].grant.name if uid in snapshot.nodes else uid


def holder_of(snapshot: Snapshot, address: Address) -> str | None:
    """Uid of the node that has the address: in a segment, else in what is behind it."""
    for uid, segments in effective_segments(snapshot).items():
        if any(address in prefix for prefix in segments):
            return uid
    behind: dict[str, Prefix] = {}
    for uid in sorted(snapshot.nodes):
        grant = snapshot.nodes[uid].grant
        for prefix in () if grant.tombstone else grant.prefixes_behind:
            known = behind.get(uid)
            if address in prefix and (known is None or prefix.prefixlen > known.prefixlen):
                behind[uid] = prefix
    # Of several the longest prefix, then the lowest uid: as routes go.
    return min(behind, key=lambda uid: (-behind[uid].prefixlen, uid), default=None)


def _longest(routes: Iterable[PeerRoute], target: Address) -> PeerRoute | None:
    found: PeerRoute | None = None
    for route in routes:
        better = found is None or (route.prefix.prefixlen, -route.metric) > (
            found.prefix.prefixlen,
            -found.metric,
        )
        if better and target in route.prefix:
            found = route
    return found
