"""Work that is done at times which change, and goes on whatever happens in it."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

from limpet.base import faults

AGAIN_S = 1.0
"""After work that has failed; what fails each time costs little then."""
_SOONEST_S = 0.001
"""Never at once: others have their turn between."""


class Timer:
    """Rings at one time, and calls `work` on the event loop's thread; work sets it again.

    Work that raises is noted as `part`'s (`faults`), and done again no sooner than a second later,
    also if it had set nothing before it failed.
    """

    def __init__(self, part: str, work: Callable[[], None]) -> None:
        self._part = part
        self._work = work
        self._at_s: float | None = None
        """None: it has rung, and was not set since."""
        self._timer: asyncio.TimerHandle | None = None

    def set(self, at_s: float) -> None:
        """Rings at this time of `time.monotonic`, not at that which was set before; infinity:
        never."""
        if at_s == self._at_s:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._at_s = at_s
        if at_s < math.inf:
            delay_s = max(at_s - time.monotonic(), _SOONEST_S)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._ring)

    def set_in(self, delay_s: float) -> None:
        """Rings after so many seconds."""
        self.set(time.monotonic() + delay_s)

    def stop(self) -> None:
        """Rings no more, until it is set again."""
        self.set(math.inf)

    @property
    def is_set(self) -> bool:
        return self._timer is not None

    def _ring(self) -> None:
        self._timer = self._at_s = None
        try:
            self._work()
        except Exception as error:  # noqa: BLE001 - without the next time all would end here
            faults.note(self._part, error)
            again_s = time.monotonic() + AGAIN_S
            self.set(again_s if self._at_s is None else max(self._at_s, again_s))
