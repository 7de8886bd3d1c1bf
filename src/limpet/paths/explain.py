"""explain_path: which way packets between two addresses take, both ways, or why there is none.

Read from the plans that the nodes go by, so that what is explained is what they do. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from limpet.base.addresses import Address, Endpoint
from limpet.base.ownership import BEHIND_METRIC, PEER_METRIC
from limpet.cluster.nodes import Snapshot
from limpet.cluster.topology.paths import OwnSide, PeerPath
from limpet.cluster.topology.transports import ProbeKind, Transport
from limpet.cluster.topology.view import View, view_of
from limpet.datapath.overlay.plan import assemble, plan_peer, transport_of
from limpet.datapath.overlay.state import ROUTE, OverlayPlan, OverlayState, PeerRoute


@dataclass(frozen=True, slots=True)
class NodeSide:
    """What a node does for its peers, or for one of them, as far as it is known here."""

    view: View
    plan: OverlayPlan


@dataclass(frozen=True, slots=True)
class Ends:
    origin: Address
    target: Address
    origin_node: str = ""
    """Name; empty: no node of the cluster has the address."""
    target_node: str = ""


@dataclass(frozen=True, slots=True)
class Way:
    """What packets of one direction go by, between two nodes."""

    rung: Transport
    device: str
    next_hop: Address | None
    mtu_bytes: int
    underlay: Address | None = None
    """Proven by SITE: where packets are sent."""
    endpoint: Endpoint | None = None
    """Encrypted: where packets are sent."""
    relay: str = ""
    """Name of the relay that they go by."""


@dataclass(frozen=True, slots=True)
class Leg:
    """One direction. Known and without a `reason`: the packets get there."""

    ends: Ends
    way: Way | None = None
    """None, with no reason: both ends are on one node."""
    reason: str = ""
    known: bool = True
    """False: it is the choice of another node; `reason` says so."""
    told: bool = False
    """The other node has told that it has no way: some time ago, so it may have one by now."""


@dataclass(frozen=True, slots=True)
class PathAnswer:
    there: Leg
    back: Leg


def told_side(view: View, uid: str, own: OwnSide, path: PeerPath) -> NodeSide:
    """What the peer does for this node, whose view is `view`, by the path that it has told."""
    theirs = view_of(view.snapshot, uid, {view.uid: path}, own, before=view)
    if theirs.network is None or theirs.grant is None or not theirs.sources:
        return NodeSide(theirs, OverlayPlan())
    devices = {device.ifname: device for device in theirs.devices.values()}
    parts = {view.uid: plan_peer(theirs, view.uid)}
    return NodeSide(theirs, assemble(view.snapshot.nodes, devices, own.links, parts))


def explain_path(
    view: View, sides: Mapping[str, NodeSide], origin: Address, target: Address
) -> PathAnswer:
    """From what is known: `sides` holds, by uid, this node and every other that has told its."""
    return PathAnswer(_leg(view, sides, origin, target), _leg(view, sides, target, origin))


def _leg(view: View, sides: Mapping[str, NodeSide], origin: Address, target: Address) -> Leg:
    of_origin, of_target = holder_of(view, origin), holder_of(view, target)
    snapshot = view.snapshot
    ends = Ends(origin, target, name_of(snapshot, of_origin), name_of(snapshot, of_target))
    if origin.version != target.version:
        return Leg(ends, reason=f"{origin} and {target} are not of the same IP version")
    for address, uid in ((origin, of_origin), (target, of_target)):
        if uid is None:
            return Leg(ends, reason=f"{address} is in no segment of a node that is known here")
    if of_origin == of_target:
        return Leg(ends)
    side = sides.get(of_origin or "")
    if side is None:
        unknown = f"what {ends.origin_node} does is known there: ask it"
        return Leg(ends, reason=unknown, known=False)
    found = _way(side, of_target or "", target)
    if isinstance(found, Way):
        return Leg(ends, found)
    about = ends.target_node if of_target in side.plan.parts else ends.origin_node
    return Leg(ends, reason=f"{about}{found}")


def _way(side: NodeSide, uid: str, target: Address) -> Way | str:
    """To an address that the node `uid` has; else why there is none, said of either node."""
    state, part, path = side.plan.state, side.plan.parts.get(uid), side.view.paths.get(uid)
    if part is None:
        return " has no segment of its own"
    route = _longest(state, target)
    if route is None or route not in part.routes or path is None:
        lost = [why for prefix, why in part.without if target in prefix]
        words = part.refused or (lost[0] if lost else "")
        if route is not None or not words:
            words = "another node has the more specific prefix"
        return f": {words}"
    rung = transport_of(route, path, state.devices)
    return Way(
        rung,
        route.device,
        route.next_hop,
        route.mtu_bytes,
        path.underlay if rung.proof is ProbeKind.SITE else None,
        path.endpoint,
        name_of(side.view.snapshot, path.relay or None),
    )


def name_of(snapshot: Snapshot, uid: str | None) -> str:
    """Name of a node; the uid itself where none is known, empty for None."""
    if uid is None:
        return ""
    return snapshot.nodes[uid].grant.name if uid in snapshot.nodes else uid


def holder_of(view: View, address: Address) -> str | None:
    """Uid of the node that has the address: in a segment, else in what is behind it."""
    for uid, segments in view.segments.items():
        if any(address in prefix for prefix in segments):
            return uid
    behind = [
        (-prefix.prefixlen, uid)
        for uid, entry in view.snapshot.nodes.items()
        if not entry.grant.tombstone
        for prefix in entry.grant.prefixes_behind
        if address in prefix
    ]
    # Of several the longest prefix, then the lowest uid: as routes go.
    return min(behind)[1] if behind else None


def _longest(state: OverlayState, target: Address) -> PeerRoute | None:
    """The route that a packet to `target` takes."""
    bits = target.max_prefixlen
    for length in range(bits, -1, -1):
        first = int(target) >> (bits - length) << (bits - length)
        for metric in (PEER_METRIC, BEHIND_METRIC):  # the lower one first
            found = state.entries.get((ROUTE, target.version, first, length, metric))
            if isinstance(found, PeerRoute):
                return found
    return None
