"""The latest picture: whoever is asked for it knows whether somebody looks."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from limpet.web.live.feed import WATCH_S, PictureFeed
from tests.beds.page import PictureSource
from tests.beds.pictured import world
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
