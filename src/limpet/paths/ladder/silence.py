"""Whether a peer answers at all, and how long its answers take. Pure."""

from __future__ import annotations

from limpet.paths.ladder.choice import PathChoice
from limpet.paths.ladder.probe_state import TRIES, ProbeState

SILENT_MISSES = 4
"""In a row, of what the path stands on: one fewer than for a path to be lost. A peer that is taken
for silent by mistake costs little, since others serve meanwhile, and its path stays as it is."""
DOUBT_MISSES = 2
"""In a row: a packet that is lost by chance casts no doubt."""
ROUND_TRIPS_S = (0.002, 0.008, 0.032, 0.128)
"""Between classes of round trips: within a place, a town, a country, a continent."""
_MARGIN = 1.5
"""By how much a round trip has to be beyond its class to be in another one."""


def is_silent(choice: PathChoice) -> bool:
    """What the path stands on was asked several times in vain, and by no other way the peer has
    answered since; where nothing of a path can be asked, every way that was tried was in vain."""
    states = choice.states.values()
    if not states:
        return not choice.links  # this node's own link is gone
    proofs = choice.proofs(choice.path) if choice.path is not None else []
    if not proofs:
        tried = [each for each in states if each.streaks.misses >= TRIES]
        return bool(tried) and not any(each.grade for each in states)
    failing = [proof for proof in proofs if not any(map(_answers, proof))]
    if not failing:
        return False
    since_s = min(each.streaks.failing_s for proof in failing for each in proof)
    return not any(
        each.proven and _answers(each) and each.streaks.answered_s >= since_s for each in states
    )


def is_doubted(choice: PathChoice) -> bool:
    """What the path stands on was asked twice in vain, so that the peer may be silent soon."""
    return any(
        each.used and each.proven and each.streaks.misses >= DOUBT_MISSES
        for each in choice.states.values()
    )


def is_missed(choice: PathChoice) -> bool:
    """What the path stands on has not answered the last time."""
    return any(each.used and each.streaks.misses for each in choice.states.values())


def _answers(state: ProbeState) -> bool:
    return state.proven and state.streaks.misses < SILENT_MISSES


def round_trip_s(choice: PathChoice) -> float:
    """Round trip of the path, smoothed: the slowest of what it stands on; 0: not measured yet."""
    if choice.path is None:
        return 0.0
    measured = (
        [each.rtt_s for each in proof if each.rtt_s > 0.0] for proof in choice.proofs(choice.path)
    )
    return max((min(each) for each in measured if each), default=0.0)


def round_trip_class(rtt_s: float, before: int | None) -> int:
    """0 for the shortest; `before`: the class so far, which is left only for good reason."""
    now = sum(rtt_s > bound for bound in ROUND_TRIPS_S)
    if before is None or now == before:
        return now
    if now > before:
        return max(before, sum(rtt_s > bound * _MARGIN for bound in ROUND_TRIPS_S))
    return min(before, sum(rtt_s > bound / _MARGIN for bound in ROUND_TRIPS_S))
