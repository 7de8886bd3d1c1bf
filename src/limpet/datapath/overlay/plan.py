"""plan_overlay: what a node's kernel should hold for the other nodes. Pure.

The plan is the union of what plan_peer says of each peer. A change of one peer replaces that peer's
part (`replan_overlay`) and gives what planning everything anew would give.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from ipaddress import collapse_addresses

from limpet.base.addresses import NO_NODE_BOUNDS, Address, Endpoint, Prefix, bounds_of, is_within
from limpet.base.bounds.members import PACKET_SOURCES
from limpet.base.layered_map import alter
from limpet.base.ownership import BEHIND_METRIC, PEER_METRIC, TUNNEL_PORTS
from limpet.cluster.kinds.network import Network
from limpet.cluster.nodes import NodeEntry
from limpet.cluster.topology import transports
from limpet.cluster.topology.paths import PeerPath
from limpet.cluster.topology.reach import in_clear_refused, may_talk, share_what_is_behind
from limpet.cluster.topology.transports import Transport
from limpet.cluster.topology.view import View, VxlanDevice, _first_of_each_version, changed_peers
from limpet.datapath.overlay.contest import settle_contests
from limpet.datapath.overlay.hop import HOP_PLANNERS, Hop, leads_into_itself, own_mac_claimed
from limpet.datapath.overlay.state import (
    Entry,
    Key,
    Neighbour,
    OverlayPlan,
    OverlayState,
    PeerPart,
    PeerRoute,
)

Without = tuple[Prefix, str]
"""A prefix that nothing is planned for, and the reason."""


def plan_peer(view: View, uid: str) -> PeerPart:
    """What the peer adds; nothing, and why, where it is not reached."""
    entry = view.snapshot.nodes[uid]
    grant = entry.grant
    if view.network is None or view.grant is None:
        return PeerPart(refused="this node has no grant")
    if grant.tombstone:
        return PeerPart(refused="it was removed from the cluster")
    if not may_talk(view.network, view.grant, grant):
        return PeerPart(refused="it shares no community with this node")
    segments, without = _free(view, view.segments.get(uid, ()))
    if not segments:
        lost = f" that is its own: {without[0][0]} {without[0][1]}" if without else ""
        return PeerPart(refused=f"it has no segment{lost}", without=without)
    behind, lost_behind = _free_behind(view, grant.prefixes_behind)
    if behind and share_what_is_behind(view.grant, grant):
        ways = "the cloud has ways of its own between its nodes"
        lost_behind, behind = (*lost_behind, *((each, ways) for each in behind)), ()
    path = view.paths.get(uid)
    in_clear = _may_send_in_clear(view, uid, path)
    told = _told(view.network, entry)
    part = PeerPart(
        sources=_collapsed((*segments, *behind)) if behind else segments,
        outer=_outer(view, entry, told, path) if in_clear else (),
        in_clear=in_clear,
        without=without + lost_behind,
        addresses=_addresses(told, path),
        tunnel_ends=_tunnel_ends(entry, told, path),
    )
    if path is None:
        return part._replace(refused="no path to it is proven")
    if not path.rung.encrypted and in_clear_refused(view.network):
        words = "the cluster encrypts everything, and no tunnel to it is proven"
        return part._replace(refused=words)
    firsts = _first_of_each_version(segments)
    hops = HOP_PLANNERS[path.rung.part](view, entry, path, firsts)
    return _reach(view, path, (segments, behind), hops, part)


def _may_send_in_clear(view: View, uid: str, path: PeerPath | None) -> bool:
    if view.network is None or in_clear_refused(view.network):
        return False
    return uid not in view.tunnel_only or path is None or not path.rung.encrypted


def _free_behind(
    view: View, prefixes: tuple[Prefix, ...]
) -> tuple[tuple[Prefix, ...], tuple[Without, ...]]:
    """As `_free`; and our routes come before those to the machine's own networks, so that not even
    a part of one is taken."""
    free, lost = _free(view, prefixes, may_be_part=False)
    if not free:
        return free, lost
    taken = {
        prefix: f"overlaps the subnet of a link of this node, {mine}"
        for prefix in free
        for mine in reversed(view.own.networks)
        if mine.version == prefix.version and mine.overlaps(prefix)
    }
    return tuple(each for each in free if each not in taken), (*lost, *taken.items())


def _free(
    view: View, prefixes: tuple[Prefix, ...], *, may_be_part: bool = True
) -> tuple[tuple[Prefix, ...], tuple[Without, ...]]:
    """The prefixes that meet nothing of our own, and the others, each with what it meets.

    `may_be_part`: these are segments, which may be a part of the wider subnet of a link.
    """
    lost: list[Without] = []
    for prefix in prefixes:
        first, last = bounds_of(prefix)
        for start, end, what, in_parts in view.taken[prefix.version]:
            is_part = in_parts and may_be_part and last - first < end - start
            if first <= end and start <= last and not is_part:
                lost.append((prefix, f"overlaps {what}"))
                break
    if not lost:
        return prefixes, ()
    met = [prefix for prefix, _ in lost]
    return tuple(prefix for prefix in prefixes if prefix not in met), tuple(lost)


def _collapsed(held: Collection[Prefix]) -> tuple[Prefix, ...]:
    """Without those that lie in others: sets of intervals take none twice."""
    return (
        *collapse_addresses(prefix for prefix in held if prefix.version == 4),
        *collapse_addresses(prefix for prefix in held if prefix.version == 6),
    )


def _told(network: Network, entry: NodeEntry) -> tuple[Address, ...]:
    """Where the peer says that it is, as far as that is looked at, without what is of pods and
    Services: ours would be shut out of others' pods, or of a name server."""
    if entry.presence is None:
        return ()
    addresses = entry.presence.addresses[: PACKET_SOURCES.most]
    return tuple(address for address in addresses if not network.holds(address))


def _outer(
    view: View, entry: NodeEntry, told: tuple[Address, ...], path: PeerPath | None
) -> tuple[Address, ...]:
    """Every address that the peer may send from in clear: which one it takes is its routing's
    choice. An address that only tunnels lead to is none: whoever wrote it would be let in."""
    underlay = path.underlay if path is not None else None
    found = [] if underlay is None else [underlay]
    signed = entry.grant.is_flannel  # by the cluster, not by the peer itself
    for each in told:
        here = signed or is_within(int(each), view.sites[each.version])
        if here and each not in found:
            found.append(each)
    return tuple(each for each in found if not is_within(int(each), NO_NODE_BOUNDS[each.version]))


def _addresses(told: tuple[Address, ...], path: PeerPath | None) -> tuple[Address, ...]:
    underlay = path.underlay if path is not None else None
    return tuple(dict.fromkeys(told if underlay is None else (underlay, *told)))


def _tunnel_ends(
    entry: NodeEntry, told: tuple[Address, ...], path: PeerPath | None
) -> tuple[Endpoint, ...]:
    """A port that a peer merely claims counts among those that are made of keys: it could claim a
    name server's. What was proven counts whatever it is."""
    presence = entry.presence
    found: list[Endpoint] = []
    if presence is not None and presence.tunnel_port in TUNNEL_PORTS:
        found += [(each, presence.tunnel_port) for each in told]
    if path is not None and path.endpoint is not None and not path.relay:
        found.append(path.endpoint)
    return tuple(dict.fromkeys(found))


def _reach(
    view: View,
    path: PeerPath,
    prefixes: tuple[tuple[Prefix, ...], tuple[Prefix, ...]],
    hops: Mapping[int, Hop | str],
    part: PeerPart,
) -> PeerPart:
    """`part` with its routes. `prefixes`: the peer's segments, and what is behind it."""
    routes: list[PeerRoute] = []
    lost: list[Without] = []
    claims = _claimed_of_ours(view, hops)
    for held, metric in zip(prefixes, (PEER_METRIC, BEHIND_METRIC), strict=True):
        for prefix in held:
            version = prefix.version
            hop = hops.get(version, f"it has no segment of IPv{version}")
            if isinstance(hop, str):
                lost.append((prefix, hop))
            elif metric == BEHIND_METRIC and leads_into_itself(prefix, path):
                lost.append((prefix, "the peer's own address on the underlay lies in it"))
            else:
                source = view.sources[version]
                routes.append(
                    PeerRoute(prefix, hop.device, hop.address, source, metric, hop.mtu_bytes)
                )
    without = part.without + tuple(lost) if lost else part.without
    if not routes:
        return part._replace(without=without, refused=lost[0][1], claims=claims)
    vxlans = [(hop, hop.vxlan) for hop in hops.values() if not isinstance(hop, str) and hop.vxlan]
    # Of thousands of peers: `_replace` takes four times as long.
    return PeerPart(
        tuple(routes),
        tuple([Neighbour(hop.device, hop.address, entry.mac) for hop, entry in vxlans]),
        tuple({entry: None for _, entry in vxlans}),
        part.sources,
        part.outer,
        part.in_clear,
        without,
        "",
        claims,
        part.addresses,
        part.tunnel_ends,
    )


def _claimed_of_ours(view: View, hops: Mapping[int, Hop | str]) -> str:
    words = {own_mac_claimed(device.mac) for device in view.devices.values()}
    return next((each for each in hops.values() if isinstance(each, str) and each in words), "")


def transport_of(route: PeerRoute, path: PeerPath, devices: Mapping[str, VxlanDevice]) -> Transport:
    """What the route's packets go by: VXLAN too where the path has no next hop for them."""
    return transports.VXLAN if route.device in devices else path.rung


def plan_overlay(view: View) -> OverlayPlan:
    """What should be: the VXLAN devices, and for every peer what it adds."""
    if view.network is None or view.grant is None or not view.sources:
        return OverlayPlan()
    return assemble(
        view.snapshot.nodes,
        {device.ifname: device for device in view.devices.values()},
        view.own.links | {each for each in (view.own.tunnel, view.own.ipsec) if each},
        {uid: plan_peer(view, uid) for uid in view.snapshot.nodes if uid != view.uid},
    )


def replan_overlay(
    plan: OverlayPlan, before: View, after: View
) -> tuple[OverlayPlan, frozenset[Key] | None]:
    """The plan for `after`, made of that for `before`, and what may differ; None: anything."""
    if not after.sources or not before.same_node(after):
        return plan_overlay(after), None
    nodes = after.snapshot.nodes
    changed = {
        uid: plan_peer(after, uid) if uid in nodes else None for uid in changed_peers(before, after)
    }
    return replace_parts(nodes, plan, changed)


def replace_parts(
    nodes: Mapping[str, NodeEntry], plan: OverlayPlan, changed: Mapping[str, PeerPart | None]
) -> tuple[OverlayPlan, frozenset[Key]]:
    """The plan with other parts for some peers (None: without them), and what that touches."""
    parts, state = alter(plan.parts, changed), plan.state
    before = [part for uid in changed if (part := _wish(plan, uid)) is not None]
    old = {entry.key for part in before for entry in part.entries}
    added = [entry for part in changed.values() if part is not None for entry in part.entries]
    new = {entry.key: entry for entry in added}
    touched = frozenset(old | new.keys())
    disputed = len(new) < len(added) or any(key in state.entries for key in new.keys() - old)
    if disputed or not plan.contested.isdisjoint(touched):
        wishes = alter(alter(plan.parts, plan.lost), changed) if plan.lost else parts
        after = assemble(nodes, state.devices, state.loose_links, wishes)
        losers = (*plan.lost.values(), *after.lost.values())
        return after, touched.union(entry.key for part in losers for entry in part.entries)
    entries = alter(state.entries, {**dict.fromkeys(old), **new})
    claims = plan.claims
    if any(uid in claims or (part is not None and part.claims) for uid, part in changed.items()):
        claims = _claims(parts)
    return OverlayPlan(
        replace(state, entries=entries), parts, plan.contested, plan.lost, claims
    ), touched


def _wish(plan: OverlayPlan, uid: str) -> PeerPart | None:
    """What the peer would add, whether others want the same or not."""
    return plan.lost.get(uid) or plan.parts.get(uid)


def assemble(
    nodes: Mapping[str, NodeEntry],
    devices: Mapping[str, VxlanDevice],
    loose_links: frozenset[str],
    wishes: Mapping[str, PeerPart],
) -> OverlayPlan:
    """The union of the wishes, less what is another's where several want it (`contest`)."""
    entries: dict[Key, Entry] = {}
    contested: set[Key] = set()
    for part in wishes.values():
        for entry in part.entries:
            if entries.setdefault(key := entry.key, entry) is not entry:
                contested.add(key)
    parts, lost = wishes, dict[str, PeerPart]()
    if contested:
        left = settle_contests(nodes, wishes, contested)
        lost = {uid: wishes[uid] for uid in left}
        parts = alter(wishes, left)
        entries = {entry.key: entry for part in parts.values() for entry in part.entries}
    # Ours too: what answers to a packet takes the way of the answering end's choice.
    state = OverlayState(devices, entries, loose_links | devices.keys())
    return OverlayPlan(state, parts, frozenset(contested), lost, _claims(parts))


def _claims(parts: Mapping[str, PeerPart]) -> dict[str, str]:
    return {uid: part.claims for uid, part in parts.items() if part.claims}
