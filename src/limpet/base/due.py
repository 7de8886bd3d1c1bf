"""Things that are due at times which change. Pure."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class DueQueue(Generic[T]):
    """Each thing is due once; what is due first is found at once, of equals the first put."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, T]] = []
        self._due: dict[T, float] = {}
        self._order = itertools.count()

    def put(self, item: T, due_s: float) -> None:
        """When it is due, instead of what was said before; infinity: never."""
        if self._due.get(item, math.inf) != due_s:
            self._due[item] = due_s
            if due_s < math.inf:
                heapq.heappush(self._heap, (due_s, next(self._order), item))

    def drop(self, item: T) -> None:
        self._due.pop(item, None)

    @property
    def first_s(self) -> float:
        """Infinity: nothing is due ever."""
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)  # it was put again, or dropped
        return self._heap[0][0] if self._heap else math.inf

    def take(self, now_s: float) -> T | None:
        """What is due first, once; None: nothing is due yet."""
        if self.first_s > now_s:
            return None
        item = heapq.heappop(self._heap)[2]
        del self._due[item]
        return item
