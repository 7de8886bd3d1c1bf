"""What the ways to a peer are like just now: each asked once, on a person's demand."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from limpet.cluster.topology.transports import ProbeKind, Transport
from limpet.paths.ladder.ladder import Ladder
from limpet.paths.ladder.probe_state import Question
from limpet.paths.probe.messages import Candidate
from limpet.paths.probe.port import ProbePort

_WITHIN_S = 1.0


@dataclass(frozen=True, slots=True)
class Measured:
    """What a probe of one kind found just now."""

    candidate: Candidate
    rung: Transport
    """Rung that the pair takes by its answer."""
    rtt_ms: float | None
    """None: no answer within a second."""
    in_use: bool
    """The path stands on what it asks for."""


async def measure_ways(port: ProbePort, uid: str, ladder: Ladder) -> tuple[Measured, ...]:
    """Measures all ways that may be asked of the peer."""
    candidates, choice = ladder.candidates, ladder.choice()
    # An overlay probe needs the next hop's link-layer address, which the others find out.
    first = tuple(candidate for candidate in candidates if candidate.kind is not ProbeKind.OVERLAY)
    then = tuple(candidate for candidate in candidates if candidate.kind is ProbeKind.OVERLAY)
    rtts = {**await _measure(port, uid, first), **await _measure(port, uid, then)}
    return tuple(
        Measured(
            candidate, choice.rung(candidate), rtts.get(candidate), ladder.stands_on(candidate)
        )
        for candidate in candidates
    )


async def _measure(
    port: ProbePort, uid: str, candidates: tuple[Candidate, ...]
) -> dict[Candidate, float]:
    """Round trips in ms of those that were answered."""
    loop = asyncio.get_running_loop()
    answers = {candidate: loop.create_future() for candidate in candidates}
    for candidate, answer in answers.items():
        port.ask(uid, Question(candidate), answer)
    if answers:
        await asyncio.wait(answers.values(), timeout=_WITHIN_S)
    return {
        candidate: 1e3 * answer.result() for candidate, answer in answers.items() if answer.done()
    }
