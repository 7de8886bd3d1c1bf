"""How long is waited before a way is asked again. Pure.

answers and bears the path ──► every second with traffic, else every 5 or 20 s
answers beside it ───────────► every 20 or 60 s
answers again after a loss ──► in quick succession, until it has done so often enough
silent ──────────────────────► after 1, 2, 4 … s, at most `slowest_retry_s`
"""

from __future__ import annotations

from limpet.cluster.topology.transports import ProbeKind
from limpet.paths.ladder.choice import MEASURED
from limpet.paths.ladder.probe_state import QUICK_S, ProbeState
from limpet.paths.probe.messages import Candidate

ACTIVE_S = 1.0
"""Between probes of what carries the path of a peer with traffic."""
STEADY_S = 5.0
"""Between probes of what carries the path of another, unencrypted."""
STANDBY_S = 20.0
"""Between probes of what works beside it, and of a tunnelled path without traffic."""
BESIDE_S = 60.0
"""Between probes of tunnelled ways that work beside the path."""
ACTIVE_RETRY_S, IDLE_RETRY_S, RARE_RETRY_S = 10.0, 30.0, 60.0
"""At most between probes of what does not answer but has done so: of a peer with traffic, and of
another, which is soon enough for two ends whose NATs remember for 30 s whom they sent to. What has
never answered is asked at most every 30 s with traffic and every 60 s without.
"""
_SLOWEST_QUICK = 4
_LONG_S, _TOGETHER_S = 30.0, 4.0


def pause_s(
    candidate: Candidate,
    state: ProbeState,
    rtt_s: float,
    *,
    bears: bool,
    active: bool,
    stretch: float,
) -> float:
    """After an answer. `bears`: the path stands on it; `active`: the peer has traffic."""
    if not state.proven:
        return QUICK_S * min(max(state.streaks.needed // 2, 1), _SLOWEST_QUICK)
    if bears:
        if active:
            return max(ACTIVE_S - rtt_s, 0.0)  # since it was asked
        return (STANDBY_S if candidate.kind is ProbeKind.TUNNEL else STEADY_S) * stretch
    if candidate.relay and state.streaks.answers < MEASURED:
        return ACTIVE_S * stretch  # it may be the faster one
    return (BESIDE_S if candidate.kind is ProbeKind.TUNNEL else STANDBY_S) * stretch


def rested_s(now_s: float, pause_s: float) -> float:
    """When the pause is over. Long ones, of one peer among hundreds, end together: a processor that
    is woken for every single probe, and for its answer, has forgotten each time how that went."""
    over_s = now_s + pause_s
    return over_s if pause_s < _LONG_S else round(over_s / _TOGETHER_S) * _TOGETHER_S


def slowest_retry_s(*, active: bool, hopeful: bool) -> float:
    """At most between probes of what does not answer. `hopeful`: it, or its like, has answered."""
    if hopeful:
        return ACTIVE_RETRY_S if active else IDLE_RETRY_S
    return IDLE_RETRY_S if active else RARE_RETRY_S
