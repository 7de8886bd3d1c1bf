"""How this node and its peers reach each other: ladders -> pairs and their details. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from limpet.base.addresses import endpoint_text
from limpet.cluster.nodes import NodeEntry
from limpet.cluster.topology.paths import PeerPath
from limpet.cluster.topology.transports import PROBE_WORDS, ProbeKind
from limpet.paths.summary import CandidateSummary, WaySummary
from limpet.picture.pair import Outward, Pair, Probe, Reach, Way

_STEADY = 0.25
"""A round trip, or a loss, that is within so much of what was shown is shown as that was: else no
two pictures are the same."""
_STEADY_LOSS = 0.04


@dataclass(frozen=True, slots=True)
class WaySeen:
    """What this node knows of its way to a peer, and of the peer's way back."""

    is_allowed: bool
    is_reached: bool
    """Packets are sent there, whether or not they arrive just now."""
    here: WaySummary | None
    """None: the peer is not probed."""
    told: PeerPath | None
    """By which the peer said that it reaches this node; None: by none."""
    has_told: bool
    since_at_s: float | None = None


def pair_of(own: str, uid: str, seen: WaySeen, before: Pair | None) -> Pair:
    """`before`: the pair as it was shown last."""
    mine, theirs = _own_way(seen), _told_way(seen)
    first = own < uid
    if before is not None:
        mine = steady(mine, before.there if first else before.back)
    return (
        Pair(one=own, other=uid, there=mine, back=theirs)
        if first
        else Pair(one=uid, other=own, there=theirs, back=mine)
    )


def _own_way(seen: WaySeen) -> Way:
    if not seen.is_allowed:
        return Way(reach=Reach.NOT_ALLOWED)
    here = seen.here
    if here is None or here.path is None:
        return Way(reach=Reach.REACHED if seen.is_reached else Reach.NO_PATH)
    path = here.path
    reach = Reach.LOST if here.is_silent else Reach.REACHED
    return Way(
        reach=reach if seen.is_reached else Reach.NO_PATH,
        rung=path.rung.name,
        relay=path.relay,
        rtt_ms=rounded_ms(here.rtt_s),
        loss=None if here.loss is None else round(here.loss, 2),
        since_at_s=seen.since_at_s,
    )


def _told_way(seen: WaySeen) -> Way:
    """What a silent peer has told is of before."""
    if not seen.is_allowed:
        return Way(reach=Reach.NOT_ALLOWED)
    if not seen.has_told or (seen.here is not None and seen.here.is_silent):
        return Way()
    if seen.told is None:
        return Way(reach=Reach.NO_PATH)
    return Way(reach=Reach.REACHED, rung=seen.told.rung.name, relay=seen.told.relay)


def steady(way: Way, before: Way) -> Way:
    """The way, with figures of `before` where it is the same and they hardly differ."""
    if way == before or way.rung != before.rung:
        return way
    rtt_ms, loss = way.rtt_ms, way.loss
    if rtt_ms and before.rtt_ms and abs(rtt_ms - before.rtt_ms) <= _STEADY * before.rtt_ms:
        rtt_ms = before.rtt_ms
    if loss and before.loss and abs(loss - before.loss) <= _STEADY_LOSS:
        loss = before.loss
    if (rtt_ms, loss) == (way.rtt_ms, way.loss):
        return way
    return Way(
        reach=way.reach,
        rung=way.rung,
        relay=way.relay,
        rtt_ms=rtt_ms,
        loss=loss,
        since_at_s=way.since_at_s,
    )


def rounded_ms(rtt_s: float) -> float | None:
    """With two digits that count; None: it was not measured yet."""
    return float(f"{rtt_s * 1e3:.2g}") if rtt_s > 0 else None


def outward_of(path: PeerPath | None, devices: Iterable[str], mtu_bytes: int | None) -> Outward:
    """`devices`: by which packets leave, as planned. `mtu_bytes`: of the routes."""
    if path is None:
        return Outward()
    return Outward(
        device=", ".join(sorted(set(devices))),
        next_hop=", ".join(map(str, path.next_hops)),
        underlay=str(path.underlay or ""),
        endpoint=endpoint_text(path.endpoint) if path.endpoint is not None else "",
        mtu_bytes=mtu_bytes or None,
    )


def probes_of(
    asked: Iterable[CandidateSummary],
    nodes: Mapping[str, NodeEntry],
    *,
    now_s: float,
    as_of_s: float,
) -> tuple[Probe, ...]:
    """`now_s` of the monotonic clock is `as_of_s` of the wall clock."""
    ahead_s = as_of_s - now_s
    return tuple(_probe(each, nodes, ahead_s) for each in asked)


def _probe(asked: CandidateSummary, nodes: Mapping[str, NodeEntry], ahead_s: float) -> Probe:
    candidate, state, streaks = asked.candidate, asked.state, asked.state.streaks
    at = endpoint_text((candidate.address, candidate.port))
    if candidate.relay:
        relay = nodes.get(candidate.relay)
        name = relay.grant.name if relay is not None else candidate.relay
        to = name if asked.rung.in_stream else f"{name} ({at})"
    else:
        to = at if candidate.kind is ProbeKind.TUNNEL else str(candidate.address)
    return Probe(
        rung=asked.rung.name,
        what=PROBE_WORDS[candidate.kind],
        to=to,
        device=candidate.device or state.via.ifname,
        answered=None if not streaks.loss and not streaks.answers else not streaks.misses,
        asked_at_s=_at(state.sent_s, ahead_s),
        answered_at_s=_at(streaks.answered_s, ahead_s),
        rtt_ms=rounded_ms(state.rtt_s),
        misses=streaks.misses,
        in_use=state.used,
        why=_why_unused(asked),
    )


def _at(moment_s: float, ahead_s: float) -> float | None:
    return None if moment_s < 0 else round(moment_s + ahead_s, 1)


def _why_unused(asked: CandidateSummary) -> str:
    state, streaks = asked.state, asked.state.streaks
    if state.used:
        return ""
    if streaks.loss is None:
        words = {
            ProbeKind.OVERLAY: "asked once the peer answers on that link",
            ProbeKind.SITE: "asked where the peer does not answer on a link of this node",
            ProbeKind.TUNNEL: "not asked while the path is as good as this would be",
        }
        return words.get(asked.candidate.kind, "not asked yet")
    if streaks.misses:
        return "does not answer"
    if not state.proven:
        return f"answers again, {streaks.answers} of {streaks.needed} times that it has to"
    return "answers; the path in use is better or as good"
