"""Whoever waits for another one gets it, whoever else looks meanwhile."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass

import pytest

from limpet.base import looked_at
from limpet.base.looked_at import LONGEST_WAIT_S, LookedAt


@dataclass(frozen=True)
class Seen:
    version: str


def test_a_change_just_after_somebody_has_looked_is_told_to_who_comes_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was made just before the change is given to both; nothing changes afterwards, and
    nobody looks by himself."""
    monkeypatch.setattr(looked_at, "_LOOK_EVERY_S", math.inf)
    now, changed = "1", asyncio.Event()

    async def make(_before: Seen | None) -> Seen:
        return Seen(now)

    async def body() -> None:
        nonlocal now, changed
        seen = LookedAt(make, lambda: changed)
        assert await seen.now() == Seen("1")
        now, before = "2", changed
        changed = asyncio.Event()
        before.set()
        async with asyncio.timeout(LONGEST_WAIT_S / 2):
            assert await seen.other_than("1", LONGEST_WAIT_S) == Seen("2")

    asyncio.run(body())


def test_who_waits_for_what_does_not_come_gets_the_same_in_the_end() -> None:
    async def make(before: Seen | None) -> Seen:
        return before or Seen("1")

    async def body() -> None:
        seen = LookedAt(make, asyncio.Event)  # at each look another event, as if all changed
        assert await seen.other_than("1", 0.3) == Seen("1")

    asyncio.run(body())


@pytest.mark.parametrize(("took_s", "rest_s"), [(0.0, 0.2), (0.3, 0.9), (5.0, 2.0)])
def test_after_one_that_took_long_there_is_a_rest(
    monkeypatch: pytest.MonkeyPatch, took_s: float, rest_s: float
) -> None:
    """While somebody looked at a thousand nodes, of which one always changed, the controller did
    little else."""
    now_s, made = 1000.0, 0

    async def make(_before: Seen | None) -> Seen:
        nonlocal now_s, made
        now_s, made = now_s + took_s, made + 1
        return Seen(str(made))

    async def body() -> None:
        nonlocal now_s
        seen = LookedAt(make, asyncio.Event)
        first = await seen.now()
        now_s += rest_s - 0.01
        assert await seen.now() is first
        now_s += 0.02
        assert await seen.now() == Seen("2")

    monkeypatch.setattr("time.monotonic", lambda: now_s)
    asyncio.run(body())
