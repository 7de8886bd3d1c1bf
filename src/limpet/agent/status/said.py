"""The root of all that the agent says to the command line, and what several say."""

from __future__ import annotations

from msgspec import Struct

Seconds = float


class Said(Struct, frozen=True, kw_only=True):
    """Something that the agent says."""


class LastRound(Said, frozen=True, kw_only=True):
    """What became of the last round of a loop."""

    changes: int
    failed: list[str]
    took_ms: float
