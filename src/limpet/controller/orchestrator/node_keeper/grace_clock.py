"""What a leader knows of the time that has passed, where its machine's clock may be set meanwhile:
a board without a battery begins with the time at which it was switched off, or with none at all."""

from __future__ import annotations

import time
from collections.abc import Callable

from limpet.base.process.wall_clock import passed_s

SET_S = 60.0
"""A clock that is so much further than the time that has passed was set."""


class GraceClock:
    """Begins with the lead. All that it tells is by the clock as it is now."""

    def __init__(
        self,
        clock_s: Callable[[], float] = time.time,
        passed_s: Callable[[], float] = passed_s,
    ) -> None:
        self._clock_s = clock_s
        self._passed_s = passed_s
        self._led_at_s = passed_s()
        self._set_at_s: float | None = None
        self._ahead_s = clock_s() - passed_s()
        self.now_s = clock_s()

    def look(self) -> None:
        """To be called often: what the clock was set by is seen between two looks."""
        self.now_s, passed_s = self._clock_s(), self._passed_s()
        before_s, self._ahead_s = self._ahead_s, self.now_s - passed_s
        if self._ahead_s - before_s > SET_S:
            self._set_at_s = passed_s

    @property
    def led_since_s(self) -> float:
        return self._led_at_s + self._ahead_s

    @property
    def set_at_s(self) -> float | None:
        """When the clock was last set forward; None: it was not. What was dated more than SET_S
        before that may be of the clock as it was, and younger than it looks."""
        return None if self._set_at_s is None else self._set_at_s + self._ahead_s
