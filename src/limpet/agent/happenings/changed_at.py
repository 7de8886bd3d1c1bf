"""When the rung to each peer changed last, by the clock as it is now: the one of then was wrong on
every machine whose clock was set meanwhile, and good ways change seldom."""

from __future__ import annotations

import time
from collections.abc import Callable

from limpet.base.process.wall_clock import passed_s

_SAME_S = 5.0
"""What is told stays the same while it is right by that: another word would be news to others."""


class ChangedAt:
    """For one event loop. By the peer's uid; who is not there has not changed since the start."""

    def __init__(
        self,
        clock_s: Callable[[], float] = time.time,
        passed_s: Callable[[], float] = passed_s,
    ) -> None:
        self._clock_s = clock_s
        self._passed_s = passed_s
        self._at_s: dict[str, float] = {}
        self._told_s: dict[str, int] = {}

    def note(self, uid: str) -> None:
        """It has just changed."""
        self.forget(uid)
        self._at_s[uid] = self._passed_s()

    def forget(self, uid: str) -> None:
        self._at_s.pop(uid, None)
        self._told_s.pop(uid, None)

    def get(self, uid: str) -> int | None:
        """Since 1970."""
        at_s = self._at_s.get(uid)
        if at_s is None:
            return None
        found_s = max(0.0, self._clock_s() - (self._passed_s() - at_s))
        told_s = self._told_s.get(uid)
        if told_s is None or abs(found_s - told_s) > _SAME_S:
            told_s = self._told_s[uid] = int(found_s)
        return told_s
