"""Whose page is made now."""

from __future__ import annotations

import asyncio

from limpet.web.access.turns import OwnTurns
from tests.unit.base.bounds.times.clock import StoppedClock, on_stopped_clock


def test_who_asks_for_many_pages_at_once_waits_as_long_again_as_each_took_and_others_do_not() -> (
    None
):
    async def look(loop: StoppedClock) -> bool:
        turns, made = OwnTurns(), list[str]()

        async def make(owner: str, took_s: float) -> None:
            async with turns.turn(owner):
                loop.now_s += took_s  # the loop stands still meanwhile
                made.append(owner)

        pages = [asyncio.create_task(make("token ann", 0.2)) for _ in range(3)]
        await loop.pass_by(0)
        assert made == ["token ann"]

        pages.append(asyncio.create_task(make("token bob", 0.0)))
        await loop.pass_by(0)
        assert made == ["token ann", "token bob"], "his is made in the time that hers took"

        await loop.pass_by(0.2)
        assert made == ["token ann", "token bob", "token ann"]
        await loop.pass_by(0.2)
        assert made == ["token ann", "token bob", "token ann", "token ann"]
        await asyncio.gather(*pages)
        return True

    assert on_stopped_clock(look)
