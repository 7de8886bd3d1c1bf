"""When a program that has ended may be started again. Pure, with time passed in."""

from __future__ import annotations

import math

LIVED_S = 60.0
AGAIN_S = (0.0, 0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)


class Restarts:
    """One that was killed is started at once; one that ends again and again, or does not come up at
    all, is not started all day long: waits grow to half a minute, until it has lived for one."""

    def __init__(self) -> None:
        self.count = 0
        """Starts in short succession."""
        self._last_s = -math.inf

    def take(self, now_s: float) -> float:
        """0: start it now, which is counted; else the seconds until it may be asked again."""
        if now_s - self._last_s > LIVED_S:
            self.count = 0
        waits_s = self._last_s + AGAIN_S[min(self.count, len(AGAIN_S) - 1)] - now_s
        if waits_s > 0:
            return waits_s
        self.count += 1
        self._last_s = now_s
        return 0.0
