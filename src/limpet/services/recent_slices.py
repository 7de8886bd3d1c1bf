"""Names of the slices that were changed last, so that nobody has to look at all for them. Pure."""

from __future__ import annotations

from collections import deque
from itertools import islice

from limpet.services.values import ServiceName

_REMEMBERED = 4096
"""Changes. Who comes later than that compares all slices."""


class RecentSlices:
    """The last changes, one after the other; also of slices that came or went."""

    def __init__(self) -> None:
        self._last: deque[tuple[ServiceName, str]] = deque(maxlen=_REMEMBERED)
        self.count = 0
        """How many there have been."""

    def note(self, service: ServiceName, piece: str) -> None:
        self._last.append((service, piece))
        self.count += 1

    def since(self, count: int) -> dict[ServiceName, set[str]] | None:
        """Names of slices that were changed behind the first `count` changes, by their Service;
        None: there were more changes than are remembered."""
        new = self.count - count
        if new > len(self._last):
            return None
        found: dict[ServiceName, set[str]] = {}
        for service, piece in islice(reversed(self._last), new):
            found.setdefault(service, set()).add(piece)
        return found
