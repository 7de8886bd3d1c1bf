"""How much a relay carries, in the kernel and by itself. Pure, time passed in."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

_OVER_S = 60.0
_SIGNIFICANT = 3
"""Digits: more would say more than a minute's average does."""


class _Sample(NamedTuple):
    at_s: float
    carried_bytes: int


class Throughput:
    """Bytes a second, averaged over the last minute."""

    def __init__(self) -> None:
        self._before: int | None = None
        self._carried_bytes = 0
        """Since the first sample."""
        self._samples: deque[_Sample] = deque()

    def handed_on(self, size_bytes: int) -> None:
        """By this process."""
        self._carried_bytes += size_bytes

    def take(self, forwarded_bytes: int, now_s: float) -> None:
        """What the kernel's counter says now; if it fell, it was put back to zero meanwhile."""
        if self._before is not None:
            was_reset = forwarded_bytes < self._before
            self._carried_bytes += forwarded_bytes - (0 if was_reset else self._before)
        self._before = forwarded_bytes
        self._samples.append(_Sample(now_s, self._carried_bytes))
        while len(self._samples) > 2 and self._samples[1].at_s <= now_s - _OVER_S:
            self._samples.popleft()

    @property
    def bytes_per_s(self) -> float | None:
        """None: it is not known yet."""
        if len(self._samples) < 2:
            return None
        first, last = self._samples[0], self._samples[-1]
        if last.at_s <= first.at_s:
            return None
        rate = (last.carried_bytes - first.carried_bytes) / (last.at_s - first.at_s)
        return float(f"{rate:.{_SIGNIFICANT}g}")
