"""How many connections each of those who have proven who they are has open."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Iterable

from limpet.base.bounds.bound import Bound

_Reference = weakref.ref[asyncio.WriteTransport]


class OwnedConnections:
    """One that is cut off may have left some that nobody has noticed yet."""

    def __init__(self, bound: Bound) -> None:
        """`bound`: of one owner."""
        self._most = bound.most
        self._by_use: dict[str, list[_Reference]] = {}
        """By owner; that of the last request is at the end."""
        self._looked_at = 64
        """So many owners there may be before it is looked which of them have gone."""

    def note(self, owner: str, transport: asyncio.WriteTransport) -> None:
        """The owner asks by this one. Of too many the one that was not used longest is closed."""
        by_use = _open(self._by_use.get(owner, ()), transport)
        self._by_use[owner] = by_use
        by_use.append(weakref.ref(transport))
        while len(by_use) > self._most:
            oldest = by_use.pop(0)()
            if oldest is not None:
                oldest.abort()
        if len(self._by_use) > self._looked_at:
            still = ((each, _open(kept)) for each, kept in self._by_use.items())
            self._by_use = {each: kept for each, kept in still if kept}
            self._looked_at = 64 + 2 * len(self._by_use)


def _open(
    references: Iterable[_Reference], beside: asyncio.WriteTransport | None = None
) -> list[_Reference]:
    return [
        each
        for each in references
        if (other := each()) is not None and other is not beside and not other.is_closing()
    ]
