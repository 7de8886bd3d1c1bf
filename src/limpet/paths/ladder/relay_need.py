"""Whether a pair needs a relay. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

KEPT_S = 30.0
"""A direct way holds for so long, then no relay is needed any more."""


@dataclass(slots=True)
class RelayNeed:
    """Of one pair."""

    _direct_s: float = math.inf
    """Since when a direct way holds."""

    def of(self, now_s: float, *, direct: bool, unanswered: bool) -> bool | None:
        """None: none has to be asked for, but one that is there should be kept.

        `direct`: a direct way holds now; `unanswered`: nothing speaks for one.
        """
        if not direct:
            self._direct_s = math.inf
            return True if unanswered else None
        self._direct_s = min(self._direct_s, now_s)
        return False if now_s >= self._direct_s + KEPT_S else None
