"""Answers of upstreams for as long as they hold, and for longer while nobody can be asked.

Source: RFC 2308 (negative answers), RFC 8767 (stale ones).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from limpet.dns.wire import DnsAnswer

STALE_TTL_S = 30
"""For so long an asker may keep a stale answer. Source: RFC 8767 section 4."""
_ENTRY_BYTES = 400
"""Memory that an entry takes beside its records, about."""

Key = tuple[bytes, int]
"""The question with small letters; DO and CD as they were asked."""


@dataclass(frozen=True, slots=True)
class CachedAnswer:
    """An answer, and since when."""

    answer: DnsAnswer
    at_s: float
    until_s: float

    def age_s(self, now_s: float) -> int:
        return max(0, int(now_s - self.at_s))


class Cache:
    """The most lately asked ones within `most_bytes`. Pure: time is passed in."""

    def __init__(self, *, most_bytes: int, stale_s: float) -> None:
        """`stale_s`: no answer is told for longer after it has ended."""
        self._most_bytes = most_bytes
        self._stale_s = stale_s
        self._kept: OrderedDict[Key, CachedAnswer] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def size_bytes(self) -> int:
        """About."""
        return self._bytes

    def get(self, key: Key, now_s: float) -> CachedAnswer | None:
        """Also one that has ended (`until_s`), within the bound."""
        kept = self._kept.get(key)
        if kept is None:
            return None
        if now_s >= kept.until_s + self._stale_s:
            self._drop(key)
            return None
        self._kept.move_to_end(key)
        return kept

    def put(self, key: Key, answer: DnsAnswer, now_s: float) -> None:
        """One that holds for nobody else is not kept, but what it contradicts goes: that is not to
        be told once nobody can be asked."""
        self._drop(key)
        if answer.ttl_s <= 0:
            return
        self._kept[key] = CachedAnswer(answer, now_s, now_s + answer.ttl_s)
        self._bytes += _size(key, answer)
        while self._bytes > self._most_bytes:
            self._drop(next(iter(self._kept)))

    def clear(self) -> None:
        self._kept.clear()
        self._bytes = 0

    def _drop(self, key: Key) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self._bytes -= _size(key, kept.answer)


def _size(key: Key, answer: DnsAnswer) -> int:
    return _ENTRY_BYTES + len(key[0]) + len(answer.records) + 32 * len(answer.ttls)
