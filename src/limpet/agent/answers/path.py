"""`limpet path` at a node: which addresses are meant, and what is known of the way between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import replace
from typing import Any

from limpet.agent.answers.own_pods import OwnNodeWords
from limpet.agent.status import paths as status
from limpet.agent.status.paths import LetIn, PathStatus
from limpet.base.addresses import Address, endpoint_text
from limpet.base.ownership import IPSEC_IFNAME, TUNNEL_IFNAME
from limpet.cluster.topology.paths import OwnSide, PeerPath
from limpet.cluster.topology.view import View
from limpet.datapath.overlay.state import OverlayPlan, PeerPart
from limpet.paths.explain import Leg, NodeSide, explain_path, holder_of, name_of, told_side


def pairs_of(
    origins: Iterable[Address], targets: Iterable[Address], view: View
) -> list[tuple[Address, Address]]:
    """One for each IP version that both have, addresses of the cluster first; else what there is.

    None is empty.
    """
    one, other = _by_version(origins, view), _by_version(targets, view)
    both = [(one[version], other[version]) for version in sorted(one.keys() & other.keys())]
    return both or [(next(iter(one.values())), next(iter(other.values())))]


def _by_version(addresses: Iterable[Address], view: View) -> dict[int, Address]:
    found: dict[int, Address] = {}
    for address in sorted(addresses, key=lambda each: not _is_of_pods(each, view)):
        found.setdefault(address.version, address)
    return found


def _is_of_pods(address: Address, view: View) -> bool:
    return view.network is not None and view.network.is_of_pods(address)


def path_status(
    view: View,
    plan: OverlayPlan,
    origin: Address,
    target: Address,
    words: OwnNodeWords,
    ways: Mapping[str, PeerPath | None],
    unable: Mapping[str, str] | None = None,
    silent: Set[str] = frozenset(),
) -> PathStatus:
    """Both directions. `reachable` is None where only other nodes know.

    `ways`: by which path peers have said that they reach this node; None: by none. `unable`: peers
    that no tunnel comes about with, and why. `silent`: uids of peers that answer by no way.
    """
    sides = {view.uid: NodeSide(view, plan)}
    holders = {each: holder_of(view, each) for each in (origin, target)}
    peer_uid = _peer(view.uid, holders[origin], holders[target])
    way = ways.get(peer_uid)
    if way is not None:
        sides[peer_uid] = _side_of(view, peer_uid, way)
    answer = explain_path(view, sides, origin, target)
    lacking = (unable or {}).get(peer_uid, "")
    legs = [_unable(leg, lacking) for leg in (answer.there, answer.back)]
    if peer_uid in ways:
        legs = [_told(leg) if holders[leg.ends.origin] == peer_uid else leg for leg in legs]
    there, back = (_leg_status(leg, holders, view, plan, words) for leg in legs)
    reachable = _reachable((there, back), doubtful=any(leg.told for leg in legs))
    silence = []
    if reachable is not False and peer_uid in silent:
        # Its agent alone may be away, and its kernel goes on.
        reachable = None
        silence = [f"{name_of(view.snapshot, peer_uid)} is silent: its agent answers by no way"]
    return PathStatus(
        version=origin.version,
        reachable=reachable,
        there=there,
        back=back,
        peer_uid=peer_uid,
        notes=[*silence, *_notes(origin, view, words), *_notes(target, view, words)],
    )


def _unable(leg: Leg, lacking: str) -> Leg:
    """`lacking`: why no tunnel to the peer comes about, if none does."""
    encrypted = leg.way is not None and leg.way.rung.encrypted
    return replace(leg, way=None, reason=lacking) if lacking and encrypted else leg


def _told(leg: Leg) -> Leg:
    """What a peer has told may be older than what is known here: that it has no way is no proof."""
    if leg.way is not None:
        return leg
    lost = leg.reason if leg.known else "it has told that it had no way to this node"
    reason = f"when {leg.ends.origin_node} was last heard: {lost} (ask it)"
    return replace(leg, reason=reason, known=False, told=True)


def _side_of(view: View, uid: str, way: PeerPath) -> NodeSide:
    """What a peer's plan for us is made of, as far as it has told."""
    presence = view.snapshot.nodes[uid].presence
    own = OwnSide(
        vtep_macs=presence.vtep_macs if presence is not None else {},
        link_mtu_bytes=presence.link_mtu_bytes if presence is not None else 0,
        links=frozenset({way.device}),
        tunnel=TUNNEL_IFNAME if way.rung.encrypted else "",
        ipsec=IPSEC_IFNAME if way.rung.encrypted else "",
    )
    return told_side(view, uid, own, way)


def peer_between(view: View, origin: Address, target: Address) -> str:
    """Uid of the node at the other end, seen from ours; empty when there is none."""
    return _peer(view.uid, holder_of(view, origin), holder_of(view, target))


def _peer(uid: str, one: str | None, other: str | None) -> str:
    """The node at the other end, seen from ours; empty when there is none."""
    return next((b for a, b in ((one, other), (other, one)) if a == uid and b != uid), None) or ""


def _leg_status(
    leg: Leg,
    holders: Mapping[Address, str | None],
    view: View,
    plan: OverlayPlan,
    words: OwnNodeWords,
) -> status.Leg:
    ends, way = leg.ends, leg.way
    local = leg.known and not leg.reason and way is None
    lost = f"what {ends.origin_node} does is known there: ask it"
    here = local and holders[ends.origin] == view.uid
    beyond = next((each for each in (ends.target, ends.origin) if _is_beyond(each, view)), None)
    if here and beyond is not None:
        here, lost = False, f"{beyond} is behind this node: its own routes lead there (ping it)"
    named = {pod.address: str(pod) for pod in words.pods}
    document: dict[str, Any] = {
        "origin": str(ends.origin),
        "origin_pod": named.get(ends.origin, ""),
        "origin_node": ends.origin_node,
        "target": str(ends.target),
        "target_pod": named.get(ends.target, ""),
        "target_node": ends.target_node,
        "known": leg.known and (not local or here),
        "rung": "local" if local else "",
        "device": words.bridge if here else "",
        "mtu_bytes": words.mtu_bytes if here else None,
        "reason": leg.reason,
        "let_in": None,
    }
    if way is not None:
        document |= {
            "rung": way.rung.name,
            "device": way.device,
            "next_hop": str(way.next_hop or ""),
            "underlay": str(way.underlay or ""),
            "endpoint": endpoint_text(way.endpoint) if way.endpoint is not None else "",
            "relay": way.relay,
            "mtu_bytes": way.mtu_bytes,
        }
    if local and not here:
        document["reason"] = lost
    part = plan.parts.get(holders[ends.origin] or "")
    if holders[ends.target] == view.uid and part is not None:
        document |= _what_is_let_in(leg, part, by_tunnel=bool(view.own.tunnel or view.own.ipsec))
    return status.Leg(**document)


def _what_is_let_in(leg: Leg, part: PeerPart, *, by_tunnel: bool) -> dict[str, Any]:
    """What the other end may choose: any rung, and the filter here takes these packets only."""
    if not any(leg.ends.origin in prefix for prefix in part.sources):
        words = part.refused or "its address is in no prefix that it may use here"
        return {"known": True, "reason": f"dropped here, from {leg.ends.origin_node}: {words}"}
    if leg.known or leg.told:
        return {}
    return {
        "let_in": LetIn(
            sources=[str(prefix) for prefix in part.sources],
            outer=[str(address) for address in part.outer],
            tunnel=by_tunnel,
        )
    }


def _reachable(legs: Iterable[status.Leg], *, doubtful: bool) -> bool | None:
    """What is known here comes first; `doubtful`: a peer has told that it has no way."""
    known = [leg for leg in legs if leg.known]
    if any(leg.reason for leg in known):
        return False
    return True if known and not doubtful else None


def _is_beyond(address: Address, view: View) -> bool:
    """Whether it is of another network that is behind this node."""
    ours = view.segments.get(view.uid, ())
    return holder_of(view, address) == view.uid and not any(address in each for each in ours)


def _notes(address: Address, view: View, words: OwnNodeWords) -> list[str]:
    """What a person should know of one end."""
    ours = view.segments.get(view.uid, ())
    segment = next((each for each in ours if address in each), None)
    if segment is None:
        network = view.network
        if network is not None and any(address in cidr for cidr in network.service_cidrs):
            return [
                f"{address} is a Service's address, and Limpet serves no such Service on this node "
                "(`limpet service list`)"
            ]
        holder = holder_of(view, address)
        if holder is not None and not _is_of_pods(address, view):
            where = "this node" if holder == view.uid else name_of(view.snapshot, holder)
            return [f"{address} is of another network, behind {where}"]
        if network is not None and not _is_of_pods(address, view):
            return [f"{address} is no address of the cluster: the node's own routes lead there"]
        return []
    if address == segment[1]:
        return []
    pod = next((pod for pod in words.pods if pod.address == address), None)
    if pod is None:
        return [f"{address} belongs to no pod of this node now"]
    return [] if pod.attached else [f"{address} is kept for pod {pod}, which is not attached now"]
