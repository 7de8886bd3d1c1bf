"""Turns: one at a time for each key, in the order of arrival."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from limpet.cni.turns import KeyTurns


class Key:
    """A key that can be watched going away."""


def test_one_at_a_time_for_a_key_in_the_order_of_arrival() -> None:
    log: list[str] = []

    async def take(turns: KeyTurns, name: str) -> None:
        async with turns.of("key"):
            log.append(f"{name} in")
            for _ in range(3):
                await asyncio.sleep(0)
            log.append(f"{name} out")

    async def run() -> None:
        turns = KeyTurns()
        await asyncio.gather(*(take(turns, name) for name in "abc"))

    asyncio.run(run())

    assert log == ["a in", "a out", "b in", "b out", "c in", "c out"]


def test_other_keys_go_on_meanwhile() -> None:
    async def run() -> None:
        turns = KeyTurns()
        async with turns.of(1), turns.of(2):
            pass

    asyncio.run(asyncio.wait_for(run(), 10))


def test_the_turn_passes_on_when_who_has_it_fails_and_when_who_waits_is_cancelled() -> None:
    async def run() -> str:
        turns = KeyTurns()
        reached = asyncio.Event()

        async def fail() -> None:
            async with turns.of("key"):
                await reached.wait()
                raise RuntimeError("of a test")

        async def arrive() -> str:
            async with turns.of("key"):
                return "arrived"

        first = asyncio.create_task(fail())
        await asyncio.sleep(0)
        cancelled, last = asyncio.create_task(arrive()), asyncio.create_task(arrive())
        await asyncio.sleep(0)
        cancelled.cancel()
        reached.set()
        with pytest.raises(RuntimeError):
            await first
        return await last

    assert asyncio.run(run()) == "arrived"


def test_nothing_is_kept_of_a_key_that_nobody_has() -> None:
    async def run() -> weakref.ref[Key]:
        turns, key = KeyTurns(), Key()
        watched = weakref.ref(key)
        async with turns.of(key):
            waiting = asyncio.create_task(enter(turns, key))
            await asyncio.sleep(0)
        await waiting
        del key, waiting
        gc.collect()
        assert watched() is None
        async with turns.of("another"):
            pass
        return watched

    async def enter(turns: KeyTurns, key: Key) -> None:
        async with turns.of(key):
            pass

    asyncio.run(run())
