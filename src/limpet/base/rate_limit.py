"""When, and how often, something may happen: token buckets, starts of a program, a queue of what is
due at times which change. Pure, time passed in."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class TokenBucket:
    """`burst` at once, `rate_per_s` for long."""

    __slots__ = ("_at_s", "_burst", "_rate_per_s", "_tokens")

    def __init__(self, rate_per_s: float, burst: float, now_s: float = 0.0) -> None:
        self._rate_per_s = rate_per_s
        self._burst = burst
        self._tokens = burst
        self._at_s = now_s

    def take(self, now_s: float, cost: float = 1.0) -> bool:
        """Whether there was room for `cost`; if not, nothing is taken."""
        if not self.has_room(now_s, cost):
            return False
        self._tokens -= cost
        return True

    def has_room(self, now_s: float, cost: float = 1.0) -> bool:
        """Whether `take` would take it."""
        passed_s = max(0.0, now_s - self._at_s)
        self._tokens = min(self._burst, self._tokens + passed_s * self._rate_per_s)
        self._at_s = now_s
        return self._tokens >= cost

    def wait_s(self, now_s: float, cost: float = 1.0) -> float:
        """Until there is room for `cost`; infinity: there never is."""
        if self.has_room(now_s, cost):
            return 0.0
        if cost > self._burst or not self._rate_per_s:
            return math.inf
        return (cost - self._tokens) / self._rate_per_s


class TokenBuckets:
    """A bucket for each key. Of more than `most` keys, those not heard of longest are forgotten."""

    def __init__(self, rate_per_s: float, burst: float, *, most: int) -> None:
        self._rate_per_s = rate_per_s
        self._burst = burst
        self._most = most
        self._buckets: OrderedDict[Hashable, TokenBucket] = OrderedDict()

    def take(self, key: Hashable, now_s: float, cost: float = 1.0) -> bool:
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = TokenBucket(self._rate_per_s, self._burst, now_s)
            if len(self._buckets) > self._most:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(key)
        return bucket.take(now_s, cost)

    def has_room(self, key: Hashable, now_s: float) -> bool:
        """Whether `take` would take one."""
        bucket = self._buckets.get(key)
        return self._burst >= 1.0 if bucket is None else bucket.has_room(now_s)

    def wait_s(self, key: Hashable, now_s: float, cost: float = 1.0) -> float:
        """As of a `TokenBucket`."""
        bucket = self._buckets.get(key)
        return 0.0 if bucket is None else bucket.wait_s(now_s, cost)


Rate = tuple[float, float]
"""Per second, and at once."""


class SourceRates:
    """How often anybody may come: each source by itself, and all strangers together, who cannot use
    up what the sources may do that members have come from lately.

    A source may have parts, such as the ports of an address. A part that members have come from
    stands for itself, and all others of the source stand together: whoever shares an address with a
    member uses up nothing of the member's, and strangers elsewhere nothing of theirs.
    """

    def __init__(
        self,
        *,
        each: Rate,
        strangers: Rate,
        members: Rate | None,
        most: int,
        each_known: Rate | None = None,
    ) -> None:
        """`members`: of all of them together; None: there is no limit. `each_known`: of a source
        that members have come from; None: as of any other."""
        self._each = self._each_known = TokenBuckets(*each, most=most)
        if each_known is not None:
            self._each_known = TokenBuckets(*each_known, most=most)
        self._others = TokenBucket(*strangers)
        self._beside = TokenBucket(*strangers)
        """Shared by all parts that are no members', of sources that are."""
        self._members = TokenBucket(*members) if members is not None else None
        self._known: OrderedDict[Hashable, None] = OrderedDict()
        self._most = most

    def take(self, source: Hashable, now_s: float, *, part: Hashable = None) -> bool:
        """Whether one from there may be looked at."""
        one: Hashable
        each = self._each_known
        if part is not None and (source, part) in self._known:
            one, everybody = (source, part), self._members
        elif source not in self._known:
            one, everybody, each = source, self._others, self._each
        else:
            one, everybody = source, self._members if part is None else self._beside
        return each.take(one, now_s) and (everybody is None or everybody.take(now_s))

    def knows(self, source: Hashable) -> bool:
        """Whether a member has come from there lately."""
        return source in self._known

    def know(self, source: Hashable, *, part: Hashable = None) -> None:
        """A member has come from there."""
        for each in (source, (source, part))[: 1 if part is None else 2]:
            self._known[each] = None
            self._known.move_to_end(each)
        while len(self._known) > self._most:
            self._known.popitem(last=False)


LIVED_S = 60.0
AGAIN_S = (0.0, 0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)


class Restarts:
    """One that was killed is started at once; one that ends again and again, or does not come up at
    all, is not started all day long: waits grow to half a minute, until it has lived for one."""

    def __init__(self) -> None:
        self.count = 0
        """Starts in short succession."""
        self._last_s = -math.inf

    def take(self, now_s: float) -> float:
        """0: start it now, which is counted; else the seconds until it may be asked again."""
        if now_s - self._last_s > LIVED_S:
            self.count = 0
        waits_s = self._last_s + AGAIN_S[min(self.count, len(AGAIN_S) - 1)] - now_s
        if waits_s > 0:
            return waits_s
        self.count += 1
        self._last_s = now_s
        return 0.0


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
