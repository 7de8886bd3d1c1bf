"""One at a time for each key, in the order of arrival; other keys go on meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Hashable
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Queue:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    count: int = 0
    """Who has the turn and who waits for it."""


class KeyTurns:
    """Turns on one event loop. Nothing is kept of a key that nobody has or waits for."""

    def __init__(self) -> None:
        self._queues: dict[Hashable, _Queue] = {}

    @contextlib.asynccontextmanager
    async def of(self, key: Hashable) -> AsyncIterator[None]:
        """Within the block, nobody else is in one of the same key."""
        queue = self._queues.setdefault(key, _Queue())
        queue.count += 1
        try:
            async with queue.lock:
                yield
        finally:
            queue.count -= 1
            if not queue.count:
                del self._queues[key]
