"""Questions that have come faster than they are answered: each client's in its turn. Pure."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class ClientTurns(Generic[T]):
    """Questions that wait, so many of each client, so many of all; what comes on top is dropped."""

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._of: OrderedDict[str, deque[T]] = OrderedDict()
        """By client; whose turn is next comes first."""
        self._count = 0
        self.full: set[str] = set()
        """Clients of whom as many waited as may, until half of those have had their turn."""

    def __len__(self) -> int:
        return self._count

    def put(self, who: str, one: T) -> bool:
        """Whether there was room for it."""
        of_one = self._of.get(who)
        if of_one and len(of_one) >= self._most_of_one:
            self.full.add(who)
            return False
        if self._count >= self._most:
            return False
        if of_one is None:
            of_one = self._of[who] = deque()
        of_one.append(one)
        self._count += 1
        return True

    def take(self) -> T | None:
        """The oldest of whose turn it is; None: nobody's."""
        if not self._of:
            return None
        who, of_one = self._of.popitem(last=False)
        one = of_one.popleft()
        if of_one:
            self._of[who] = of_one
        if len(of_one) <= self._most_of_one // 2:
            self.full.discard(who)
        self._count -= 1
        return one
