"""The latest picture: whoever is asked for it knows whether somebody looks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec.structs import replace

from limpet.picture.picture import Picture
from limpet.web.live.feed import POLL_S, WATCH_S, PictureFeed
from limpet.web.live.source import FAR_REST_S
from tests.beds.page import PictureSource
from tests.beds.pictured import world
from tests.unit.base.bounds.times.clock import StoppedClock, on_stopped_clock

_POLLS = 8


class Counted(PictureSource):
    """Counts how often its picture is asked for; it may change all the time."""

    def __init__(self, *, is_ever_other: bool = False) -> None:
        super().__init__(world(3))
        self.told = 0
        self._is_ever_other = is_ever_other

    async def picture(self, known: str) -> Picture | None:
        self.told += 1
        if self._is_ever_other:
            return replace(self.now, version=str(self.told))
        return await super().picture(known)


async def pass_until(loop: StoppedClock, holds: Callable[[], object]) -> None:
    """Polls go on until it holds."""
    for _ in range(10 * _POLLS):
        if holds():
            return
        await loop.pass_by(POLL_S)
    raise AssertionError("it never came to be so")


def test_ways_are_watched_while_a_page_follows_them_those_shown_before_others() -> None:
    async def look(loop: StoppedClock) -> bool:
        source = Counted()
        feed = PictureFeed(source)
        seen = await feed.now()
        await pass_until(loop, lambda: source.told == _POLLS)
        assert source.watched == []  # who has only read a page is not there any more

        following = asyncio.create_task(feed.after(seen))
        await pass_until(loop, lambda: source.watched)
        feed.shown(["of-a-pair"])
        await pass_until(loop, lambda: len(source.watched) > 1)
        source.now = replace(source.now, version="another")
        await pass_until(loop, following.done)
        count, told = len(source.watched), source.told
        await pass_until(loop, lambda: source.told == told + _POLLS)
        assert len(source.watched) == count
        feed.stop()
        assert source.watched == [(frozenset(), WATCH_S), (frozenset({"of-a-pair"}), WATCH_S)]
        return True

    assert on_stopped_clock(look)


def test_a_picture_that_changes_all_the_time_is_asked_for_as_often_as_the_source_rests() -> None:
    """By the API server each takes one of five tokens a second that all who look share."""

    async def look(loop: StoppedClock) -> bool:
        source = Counted(is_ever_other=True)
        source.rest_s = FAR_REST_S
        feed = PictureFeed(source)
        await feed.now()
        for _ in range(39):
            await loop.pass_by(0.1)
        feed.stop()
        assert source.told == 8
        return True

    assert on_stopped_clock(look)
