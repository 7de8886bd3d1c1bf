"""Whether a refused right is lacking. Pure, time passed in.

An API server that has just started refuses everybody, for some seconds, until it has read its
roles: who is told then to apply the manifests looks in the wrong place.
"""

from __future__ import annotations

LASTS_S = 15.0
"""From the first refusal on; what an API server reads when it starts takes it a second or two."""


class RefusedRights:
    """Since when each verb on each kind of object is refused, of one account."""

    def __init__(self) -> None:
        self._since_s: dict[str, float] = {}

    def granted(self, what: str) -> None:
        """`what`: as "list nodes", or "get nodes n1"."""
        if self._since_s:
            self._since_s.pop(_right(what), None)

    def refused(self, what: str, now_s: float) -> bool:
        """Whether it has been so for long enough to be told."""
        return now_s - self._since_s.setdefault(_right(what), now_s) >= LASTS_S


def _right(what: str) -> str:
    """The verb and the kind: names are without number."""
    return " ".join(what.split()[:2])
