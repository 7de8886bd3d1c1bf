"""How many lines of one kind a log gets. Pure, time passed in."""

from __future__ import annotations

from collections import Counter

from limpet.base.bounds.words import (
    LOG_KINDS,
    LOG_LINES,
    LOG_LINES_PER_S,
    LOG_REFUSALS,
    LOG_REFUSALS_PER_MINUTE,
)
from limpet.base.rate_limit import TokenBuckets

_Key = tuple[str, bool, str]


class LogLimits:
    """Token buckets by the text of a line, without its values."""

    def __init__(self) -> None:
        self._lines = TokenBuckets(LOG_LINES_PER_S.most, LOG_LINES.most, most=LOG_KINDS.most)
        self._refusals = TokenBuckets(
            LOG_REFUSALS_PER_MINUTE.most / 60, LOG_REFUSALS.most, most=LOG_KINDS.most
        )
        self._left_out: Counter[_Key] = Counter()

    def take(self, kind: str, now_s: float, *, by_others: bool, who: str = "") -> int | None:
        """How many of its kind were left out before it; None: it is left out itself.

        `who`: which member brought it about; empty: anybody.
        """
        key = (kind, by_others, who)
        if self._buckets(by_others=by_others).take(key, now_s):
            return self._left_out.pop(key, 0)
        if key in self._left_out or len(self._left_out) < LOG_KINDS.most:
            self._left_out[key] += 1
        return None

    def take_silent(self, now_s: float) -> dict[str, int]:
        """Kinds that came too often and then no more, and how many lines of each nobody saw."""
        silent = [
            key for key in self._left_out if self._buckets(by_others=key[1]).has_room(key, now_s)
        ]
        found: Counter[str] = Counter()
        for key in silent:
            found[key[0]] += self._left_out.pop(key)
        return dict(found)

    def _buckets(self, *, by_others: bool) -> TokenBuckets:
        return self._refusals if by_others else self._lines
