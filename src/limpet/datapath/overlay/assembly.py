"""Peers' parts put together: the state that should be, and what changes with some of them. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from limpet.base.layered_map import alter
from limpet.cluster.topology.view import VxlanDevice
from limpet.datapath.overlay.state import (
    FdbEntry,
    FdbKey,
    Neighbour,
    NeighbourKey,
    OverlayKey,
    OverlayPlan,
    OverlayState,
    PeerPart,
    PeerRoute,
    RouteKey,
    Touched,
)


def replace_parts(
    plan: OverlayPlan, changed: Mapping[str, PeerPart | None]
) -> tuple[OverlayPlan, Touched]:
    """The plan with other parts for some peers (None: without them), and what that touches."""
    parts = alter(plan.parts, changed)
    old = _Keys()
    new = _Keys()
    for uid, part in changed.items():
        old.add(plan.parts.get(uid))
        new.add(part)
    touched = Touched(
        frozenset(old.routes | new.routes),
        frozenset(old.neighbours | new.neighbours),
        frozenset(old.fdb | new.fdb),
    )
    state = plan.state
    disputed = new.disputed or not (
        state.routes.keys().isdisjoint(new.routes - old.routes)
        and state.neighbours.keys().isdisjoint(new.neighbours - old.neighbours)
        and state.fdb.keys().isdisjoint(new.fdb - old.fdb)
    )
    every = touched.routes | touched.neighbours | touched.fdb
    if disputed or not plan.contested.isdisjoint(every):
        return assemble(state.devices, state.loose_links, parts), touched
    routes: dict[RouteKey, PeerRoute | None] = dict.fromkeys(old.routes)
    neighbours: dict[NeighbourKey, Neighbour | None] = dict.fromkeys(old.neighbours)
    fdb: dict[FdbKey, FdbEntry | None] = dict.fromkeys(old.fdb)
    for part in changed.values():
        if part is not None:
            routes |= {route_key(each): each for each in part.routes}
            neighbours |= {neighbour_key(each): each for each in part.neighbours}
            fdb |= {fdb_key(each): each for each in part.fdb}
    made = OverlayState(
        state.devices,
        alter(state.routes, routes),
        alter(state.neighbours, neighbours),
        alter(state.fdb, fdb),
        state.loose_links,
    )
    return OverlayPlan(made, parts, plan.contested), touched


class _Keys:
    """Keys of the parts that were added to it."""

    def __init__(self) -> None:
        self.routes: set[RouteKey] = set()
        self.neighbours: set[NeighbourKey] = set()
        self.fdb: set[FdbKey] = set()
        self.disputed = False
        """A key came twice."""

    def add(self, part: PeerPart | None) -> None:
        if part is None:
            return
        before = len(self.routes) + len(self.neighbours) + len(self.fdb)
        self.routes.update(map(route_key, part.routes))
        self.neighbours.update(map(neighbour_key, part.neighbours))
        self.fdb.update(map(fdb_key, part.fdb))
        added = len(self.routes) + len(self.neighbours) + len(self.fdb) - before
        self.disputed |= added < len(part.routes) + len(part.neighbours) + len(part.fdb)


def assemble(
    devices: Mapping[str, VxlanDevice], loose_links: frozenset[str], parts: Mapping[str, PeerPart]
) -> OverlayPlan:
    """The union of the parts; what several want goes to the lowest uid."""
    routes: dict[RouteKey, PeerRoute] = {}
    neighbours: dict[NeighbourKey, Neighbour] = {}
    fdb: dict[FdbKey, FdbEntry] = {}
    contested: set[OverlayKey] = set()
    for uid in sorted(parts):
        part = parts[uid]
        for route in part.routes:
            if routes.setdefault(key := route_key(route), route) is not route:
                contested.add(key)
        for neighbour in part.neighbours:
            if neighbours.setdefault(at := neighbour_key(neighbour), neighbour) is not neighbour:
                contested.add(at)
        for entry in part.fdb:
            if fdb.setdefault(mac := fdb_key(entry), entry) is not entry:
                contested.add(mac)
    # Ours too: what answers to a packet takes the way of the answering end's choice.
    loose = loose_links | devices.keys()
    state = OverlayState(devices, routes, neighbours, fdb, loose)
    return OverlayPlan(state, parts, frozenset(contested))


def route_key(route: PeerRoute) -> RouteKey:
    prefix = route.prefix
    return (prefix.version, int(prefix.network_address), prefix.prefixlen, route.metric)


def neighbour_key(neighbour: Neighbour) -> NeighbourKey:
    return (neighbour.device, neighbour.address.version, int(neighbour.address))


def fdb_key(entry: FdbEntry) -> FdbKey:
    return (entry.device, entry.mac)
