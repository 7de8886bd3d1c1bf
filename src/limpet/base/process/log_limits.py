"""How many lines of one kind a log gets. Pure, time passed in."""

from __future__ import annotations

from collections import Counter

from limpet.base.bounds.words import LOG_LINES, LOG_REFUSALS
from limpet.base.rate_limit import TokenBuckets

_LINES_PER_S = 20.0
_REFUSALS_PER_S = 0.2
_MOST_KINDS = 1000
"""Kinds are written in the code; a library's may hold anything."""


class LogLimits:
    """Token buckets by the text of a line, without its values."""

    def __init__(self) -> None:
        self._lines = TokenBuckets(_LINES_PER_S, LOG_LINES.most, most=_MOST_KINDS)
        self._refusals = TokenBuckets(_REFUSALS_PER_S, LOG_REFUSALS.most, most=_MOST_KINDS)
        self._left_out: Counter[tuple[str, bool]] = Counter()

    def take(self, kind: str, now_s: float, *, by_others: bool) -> int | None:
        """How many of its kind were left out before it; None: it is left out itself."""
        key = (kind, by_others)
        buckets = self._refusals if by_others else self._lines
        if buckets.take(kind, now_s):
            return self._left_out.pop(key, 0)
        if key in self._left_out or len(self._left_out) < _MOST_KINDS:
            self._left_out[key] += 1
        return None

    def take_silent(self, now_s: float) -> dict[str, int]:
        """Kinds that came too often and then no more, and how many lines of each nobody saw."""
        silent = [
            (kind, by_others)
            for kind, by_others in self._left_out
            if (self._refusals if by_others else self._lines).has_room(kind, now_s)
        ]
        return {key[0]: self._left_out.pop(key) for key in silent}
