"""The latest picture: whoever is asked for it knows whether somebody looks."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from limpet.picture.picture import Picture
from limpet.web.live.feed import WATCH_S, PictureFeed
from limpet.web.live.source import FAR_REST_S
from tests.beds.page import PictureSource
from tests.beds.pictured import world
from tests.unit.base.bounds.times.clock import StoppedClock, on_stopped_clock
from tests.waiting import PATIENCE_S, until


def test_ways_are_watched_while_a_page_follows_them_those_shown_before_others() -> None:
    async def look() -> list[tuple[frozenset[str], float]]:
        source = PictureSource(world(3))
        feed = PictureFeed(source, poll_s=0.005)
        seen = await feed.now()
        await asyncio.sleep(0.03)
        assert source.watched == []  # who has only read a page is not there any more

        following = asyncio.create_task(feed.after(seen))
        await until(lambda: source.watched != [])
        feed.shown(["of-a-pair"])
        await until(lambda: len(source.watched) > 1)
        source.now = replace(source.now, version="another")
        await asyncio.wait_for(following, PATIENCE_S)
        count = len(source.watched)
        await asyncio.sleep(0.03)
        assert len(source.watched) == count
        feed.stop()
        return source.watched

    told = asyncio.run(look())

    assert told == [(frozenset(), WATCH_S), (frozenset({"of-a-pair"}), WATCH_S)]


class EverOther(PictureSource):
    """Its picture changes all the time."""

    def __init__(self) -> None:
        super().__init__(world(3))
        self.told = 0

    async def picture(self, known: str) -> Picture | None:
        self.told += 1
        return replace(self.now, version=str(self.told))


def test_a_picture_that_changes_all_the_time_is_asked_for_as_often_as_the_source_rests() -> None:
    """By the API server each takes one of five tokens a second that all who look share."""

    async def look(loop: StoppedClock) -> bool:
        source = EverOther()
        source.rest_s = FAR_REST_S
        feed = PictureFeed(source)
        await feed.now()
        for _ in range(39):
            await loop.pass_by(0.1)
        feed.stop()
        assert source.told == 8
        return True

    assert on_stopped_clock(look)
