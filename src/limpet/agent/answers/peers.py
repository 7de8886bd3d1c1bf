"""Peers in words: how many are reached on which rung, how each one is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from typing import Any

from limpet.agent.status.cluster import (
    SharedEndpoint,
)
from limpet.agent.status.paths import PeerStatus, ProbeStatus
from limpet.agent.status.ping import PingWay
from limpet.base.addresses import Address, Endpoint, Prefix, endpoint_text
from limpet.cluster.nodes import Snapshot
from limpet.cluster.topology import transports
from limpet.cluster.topology.paths import PeerPath
from limpet.cluster.topology.reach import may_talk
from limpet.cluster.topology.transports import ProbeKind
from limpet.cluster.topology.view import View
from limpet.datapath.overlay.plan import transport_of
from limpet.datapath.overlay.state import OverlayPlan, PeerPart
from limpet.datapath.tunnel.state import PeerReading
from limpet.datapath.tunnel.traffic.report import peer_document
from limpet.paths.explain import name_of
from limpet.paths.measuring import Measured
from limpet.paths.probe.messages import Candidate

_NOBODY: Mapping[str, str] = {}
_STATES = {"": "removed", "unreached": "unreached", "apart": "apart"}


def probe_statuses(
    rounds: Iterable[Iterable[Measured]], uid: str, snapshot: Snapshot
) -> list[ProbeStatus]:
    """How many probes of each kind were sent and answered, in the order of the first round.

    `uid`: of the node that was asked.
    """
    found: dict[Candidate, list[Measured]] = {}
    for measured in rounds:
        for each in measured:
            found.setdefault(each.candidate, []).append(each)
    return [
        _probe_status(candidate, answers, uid, snapshot) for candidate, answers in found.items()
    ]


def _probe_status(
    candidate: Candidate, answers: list[Measured], uid: str, snapshot: Snapshot
) -> ProbeStatus:
    entry = snapshot.nodes.get(uid)
    trips_ms = [each.rtt_ms for each in answers if each.rtt_ms is not None]
    return ProbeStatus(
        node=entry.grant.name if entry is not None else uid,
        uid=uid,
        asked=candidate.kind.name.lower(),
        address=str(candidate.address),
        endpoint=endpoint_text((candidate.address, candidate.port))
        if candidate.kind is ProbeKind.TUNNEL
        else "",
        relay=name_of(snapshot, candidate.relay or None),
        device=candidate.device,
        version=candidate.version or candidate.address.version,
        in_use=answers[-1].in_use,
        sent=len(answers),
        answered=len(trips_ms),
        rtts_ms=[round(trip_ms, 3) for trip_ms in trips_ms],
    )


def ping_way(measured: Measured, snapshot: Snapshot) -> PingWay:
    """What one probe says of the rung that it may prove."""
    candidate = measured.candidate
    return PingWay(
        rung=measured.rung.name,
        version=candidate.version or candidate.address.version,
        address=endpoint_text((candidate.address, candidate.port))
        if candidate.kind is ProbeKind.TUNNEL
        else str(candidate.address),
        device=candidate.device,
        relay=name_of(snapshot, candidate.relay or None),
        in_use=measured.in_use,
        rtt_ms=None if measured.rtt_ms is None else round(measured.rtt_ms, 3),
    )


def node_at(view: View, address: Address) -> str:
    """Uid of the node that says to have the address, or an endpoint there; empty: none does."""
    for uid, entry in view.snapshot.nodes.items():
        presence = entry.presence
        if presence is not None and not entry.grant.tombstone:
            at = (*presence.addresses, *(each for each, _ in presence.endpoints))
            if address in at:
                return uid
    return ""


def shared_endpoints(snapshot: Snapshot, uid: str) -> list[SharedEndpoint]:
    """Endpoints that the node tells and others too: at most one of them is reached there."""
    entry = snapshot.nodes.get(uid)
    own = entry.presence.endpoints if entry is not None and entry.presence is not None else ()
    names: dict[Endpoint, list[str]] = {each: [] for each in own}
    for other, each in snapshot.nodes.items() if names else ():
        if other != uid and each.presence is not None and not each.grant.tombstone:
            for endpoint in names.keys() & set(each.presence.endpoints):
                names[endpoint].append(each.grant.name)
    return [
        SharedEndpoint(endpoint=endpoint_text(endpoint), nodes=sorted(found))
        for endpoint, found in names.items()
        if found
    ]


def count_peers(kinds: Mapping[str, str]) -> dict[str, int]:
    """How many peers are reached on each rung, are not, and are not to be (`apart`).

    `kinds`: as `peer_kinds` tells them.
    """
    found = Counter(kinds.values())
    return {kind: found[kind] for kind in (*transports.TRANSPORTS, "unreached", "apart")}


def count_silent(kinds: Mapping[str, str], silent: Iterable[str]) -> int:
    """How many peers have a rung and are among `silent`, who answer by no way."""
    return sum(kinds.get(uid) in transports.TRANSPORTS for uid in silent)


def count_partly_reached(
    kinds: Mapping[str, str], silent: Set[str], view: View, plan: OverlayPlan
) -> int:
    """How many peers have a rung, answer, and have a segment that is not reached, of an IP
    version that this node has too."""
    return sum(
        kinds.get(uid) in transports.TRANSPORTS and uid not in silent and _lacks(uid, part, view)
        for uid, part in plan.parts.items()
        if part.without
    )


def _lacks(uid: str, part: PeerPart, view: View) -> bool:
    segments = view.segments.get(uid, ())
    return any(each in segments and each.version in view.sources for each, _ in part.without)


def peer_kinds(
    view: View, plan: OverlayPlan, unable: Mapping[str, str] = _NOBODY
) -> dict[str, str]:
    """The rung of each peer that was not removed, `unreached` or `apart`, by uid.

    `unable`: as `unable_peers` tells them.
    """
    found = ((uid, kind_of(uid, view, plan, unable)) for uid in view.snapshot.nodes)
    return {uid: kind for uid, kind in found if kind and uid != view.uid}


def kind_of(uid: str, view: View, plan: OverlayPlan, unable: Mapping[str, str]) -> str:
    """A rung, `unreached` or `apart`. Empty: the peer was removed from the cluster."""
    grant = view.snapshot.nodes[uid].grant
    if grant.tombstone:
        return ""
    if view.network is None or view.grant is None:
        return "unreached"
    if not may_talk(view.network, view.grant, grant):
        return "apart"
    part, path = plan.parts.get(uid, PeerPart()), view.paths.get(uid)
    return _rung(part, plan, path, able=uid not in unable) or "unreached"


def _rung(part: PeerPart, plan: OverlayPlan, path: PeerPath | None, *, able: bool) -> str:
    """The higher one where IPv4 and IPv6 go different ways; empty: the peer is not reached.

    `able`: a tunnel to it comes about.
    """
    if part.refused or not part.routes or path is None or (path.rung.encrypted and not able):
        return ""
    rows = [transport_of(route, path, plan.state.devices) for route in part.routes]
    return min(rows, key=lambda row: row.preference).name


def peer_statuses(
    view: View,
    plan: OverlayPlan,
    *,
    heard_s: Mapping[str, float],
    every: bool,
    silent: Set[str] = frozenset(),
    unable: Mapping[str, str] = _NOBODY,
    readings: Mapping[str, PeerReading],
    now_ns: int,
) -> list[PeerStatus]:
    """Every other node, sorted by name.

    `heard_s`: seconds since a peer's last message, by uid, as far as remembered.
    `silent`: uids of peers that answer by no way at present.
    `every`: also what was removed from the cluster. `unable`: as `unable_peers` tells them.
    `readings`: of tunnels' devices, by uid, at `now_ns` of the wall clock.
    """
    found = [
        _peer_status(
            uid,
            view,
            plan,
            unable,
            silent=uid in silent,
            heard_s=_rounded(heard_s.get(uid)),
            **peer_document(readings.get(uid), now_ns),
        )
        for uid, entry in view.snapshot.nodes.items()
        if uid != view.uid and (every or not entry.grant.tombstone)
    ]
    return sorted(found, key=lambda peer: (peer.name, peer.uid))


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)


def _underlay(part: PeerPart, path: PeerPath | None) -> Address | None:
    """The underlay address that our device sends to; None: no device of ours is used."""
    if part.fdb:
        return part.fdb[0].underlay
    proven = path is not None and part.routes and path.rung.proof is ProbeKind.SITE
    return path.underlay if path is not None and proven else None


def _behind(part: PeerPart, prefixes: Iterable[Prefix]) -> tuple[str, ...]:
    lost = {prefix for prefix, _ in part.without}
    return () if part.refused else tuple(str(each) for each in prefixes if each not in lost)


def _peer_status(
    uid: str,
    view: View,
    plan: OverlayPlan,
    unable: Mapping[str, str],
    *,
    silent: bool,
    **heard: Any,
) -> PeerStatus:
    entry = view.snapshot.nodes[uid]
    grant, presence = entry.grant, entry.presence
    nothing = "this node has no segment" if view.grant is not None else "this node has no grant"
    part, path = plan.parts.get(uid, PeerPart(refused=nothing)), view.paths.get(uid)
    tunnelled = path if path is not None and path.rung.encrypted and part.routes else None
    relay = view.snapshot.nodes.get(tunnelled.relay) if tunnelled is not None else None
    state = _STATES.get(kind_of(uid, view, plan, unable), "silent" if silent else "reached")
    why = part.refused or (unable.get(uid, "") if tunnelled is not None else "")
    return PeerStatus(
        name=grant.name,
        uid=uid,
        state=state,
        rung=_rung(part, plan, path, able=uid not in unable),
        endpoint=endpoint_text(tunnelled.endpoint)
        if tunnelled is not None and tunnelled.endpoint is not None
        else "",
        relay=relay.grant.name if relay is not None else "",
        devices=sorted({route.device for route in part.routes}),
        next_hops=sorted({str(route.next_hop) for route in part.routes}),
        underlay=str(_underlay(part, path) or ""),
        mtu_bytes=min((route.mtu_bytes for route in part.routes), default=None),
        segments=[str(prefix) for prefix in view.segments.get(uid, ())],
        behind=_behind(part, grant.prefixes_behind),
        addresses=[str(each) for each in presence.addresses] if presence is not None else [],
        sequence=presence.sequence if presence is not None else None,
        why="it answers by no way" if state == "silent" else why,
        without=[f"{prefix}: {reason}" for prefix, reason in part.without],
        **heard,
    )
