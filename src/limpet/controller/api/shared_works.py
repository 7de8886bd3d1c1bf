"""Works whose outcome several wait for at the same time: each is done once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class _Work(Generic[T]):
    task: asyncio.Task[T]
    waiting: int = 0


class SharedWorks(Generic[T]):
    """By key. For one event loop."""

    def __init__(self) -> None:
        self._works: dict[object, _Work[T]] = {}

    async def outcome(self, key: object, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What the work under this key has returned or raised, which is begun where none is.

        Who is cancelled takes it from nobody else; with the last one it ends.
        """
        shared = self._works.get(key)
        if shared is None:
            shared = self._works[key] = _Work(asyncio.create_task(work()))
        shared.waiting += 1
        try:
            return await asyncio.shield(shared.task)
        finally:
            shared.waiting -= 1
            if not shared.waiting:
                del self._works[key]
                shared.task.cancel()
