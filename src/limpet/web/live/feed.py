"""The latest picture: asked for while somebody looks, and at nobody's expense otherwise."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from dataclasses import dataclass

import structlog

from limpet.base.errors import LimpetError
from limpet.picture.picture import Picture
from limpet.web.live.map_rows import MapRows, map_rows
from limpet.web.live.source import PictureSource

POLL_S = 0.25
"""What a node knows of a path that has died reaches the page within so long."""
_WATCHED_S = 10.0
"""So long after the last look it is still asked for, so that the next page is there at once."""
WATCH_S, _WATCH_EVERY_S = 10.0, 2.0
"""So long, told so often, whom a page asks looks closely at ways while the page follows them."""
_SHOWN_S = 150.0
"""A node that was shown by itself is taken to be shown still: pages ask each minute."""
_MOST_SHOWN = 64
_log = structlog.get_logger("page")


@dataclass(frozen=True, slots=True)
class SeenPicture:
    """A picture with its rows; `trouble`: why there is no newer one, in words."""

    picture: Picture
    rows: MapRows
    trouble: str = ""


class PictureFeed:
    """Runs on the event loop."""

    def __init__(self, source: PictureSource, *, poll_s: float = POLL_S) -> None:
        self._source = source
        self._poll_s = max(poll_s, source.rest_s)
        self._seen: SeenPicture | None = None
        self._error: LimpetError | None = None
        self._changed = asyncio.Event()
        self._looked_at_s = 0.0
        self._watching = 0
        self._told_at_s = 0.0
        self._shown_at_s: dict[str, float] = {}
        """Times when nodes were last shown, by uid, the latest at the end."""
        self._task: asyncio.Task[None] | None = None
        self._fresh = asyncio.Event()
        """Set while what is kept is at most one poll old."""

    async def now(self) -> SeenPicture:
        """The latest. Raises: LimpetError where there was none yet, and nobody tells one."""
        self._look()
        await self._fresh.wait()
        if self._seen is None:
            assert self._error is not None
            raise self._error
        return self._seen

    async def after(self, seen: SeenPicture) -> SeenPicture:
        """The next that is another one, whenever that comes."""
        self._watching += 1
        try:
            self._look()
            while self._seen is None or self._seen is seen:
                await self._changed.wait()
            return self._seen
        finally:
            self._watching -= 1

    def shown(self, uids: Iterable[str]) -> None:
        """A page shows these nodes by themselves."""
        now_s = asyncio.get_running_loop().time()
        for uid in uids:
            if self._shown_at_s.pop(uid, None) is None:
                self._told_at_s = 0.0
            self._shown_at_s[uid] = now_s
        while len(self._shown_at_s) > _MOST_SHOWN:
            del self._shown_at_s[next(iter(self._shown_at_s))]

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _look(self) -> None:
        self._looked_at_s = asyncio.get_running_loop().time()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._poll())

    async def _poll(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._watching or loop.time() - self._looked_at_s < _WATCHED_S:
                asked_at_s = loop.time()
                await self._watch(asked_at_s)
                await self._ask()
                self._fresh.set()
                await asyncio.sleep(max(0.0, asked_at_s + self._poll_s - loop.time()))
        finally:
            self._fresh.clear()

    async def _watch(self, now_s: float) -> None:
        if not self._watching or now_s < self._told_at_s + _WATCH_EVERY_S:
            return
        self._told_at_s = now_s
        shown = self._shown_at_s
        self._shown_at_s = {uid: at_s for uid, at_s in shown.items() if now_s < at_s + _SHOWN_S}
        with contextlib.suppress(LimpetError):  # the picture says by itself that nobody answers
            await self._source.watch(list(self._shown_at_s), WATCH_S)

    async def _ask(self) -> None:
        before = self._seen
        try:
            picture = await self._source.picture(before.picture.version if before else "")
        except Exception as error:  # noqa: BLE001 - one bad answer must not end the asking
            if not isinstance(error, LimpetError):
                _log.error("failed", exc_info=error)
                error = LimpetError(f"show the network: the page failed ({error!r})")
            self._error = error
            if before is not None and before.trouble != str(error):
                self._tell(SeenPicture(before.picture, before.rows, str(error)))
            return
        if picture is not None:
            rows = map_rows(picture)
            self._tell(SeenPicture(picture, rows))
        elif before is not None and before.trouble:
            self._tell(SeenPicture(before.picture, before.rows))

    def _tell(self, seen: SeenPicture) -> None:
        self._seen = seen
        self._changed.set()
        self._changed = asyncio.Event()
