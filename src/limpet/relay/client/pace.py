"""How fast a node speaks to relays. Pure, time passed in."""

from __future__ import annotations

import math
from dataclasses import dataclass

RATE_PER_S, BURST = 100.0, 100.0
"""Messages that are begun, however many peers and relays there are; each token costs one more."""


@dataclass(slots=True)
class Pace:
    """When something was done last that must not be done at any rate."""

    spent_s: float = -math.inf
    """Until when the budget is spent, as if each message took its share of the time."""
    hurried_s: float = -math.inf
    moved_s: float = -math.inf

    def spend(self, now_s: float) -> None:
        self.spent_s = max(self.spent_s, now_s - BURST / RATE_PER_S) + 1 / RATE_PER_S
