"""The latest picture: asked for while somebody looks, and at nobody's expense otherwise."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import structlog

from limpet.base.errors import LimpetError
from limpet.picture.picture import Picture
from limpet.web.live.map_rows import MapRows, map_rows
from limpet.web.live.source import Source

POLL_S = 0.25
"""What a node knows of a path that has died reaches the page within so long."""
_WATCHED_S = 10.0
"""So long after the last look it is still asked for, so that the next page is there at once."""
_log = structlog.get_logger("page")


@dataclass(frozen=True, slots=True)
class Seen:
    """A picture with its rows; `trouble`: why there is no newer one, in words."""

    picture: Picture
    rows: MapRows
    trouble: str = ""


class Feed:
    """Runs on the event loop."""

    def __init__(self, source: Source, *, poll_s: float = POLL_S) -> None:
        self._source = source
        self._poll_s = poll_s
        self._seen: Seen | None = None
        self._error: LimpetError | None = None
        self._changed = asyncio.Event()
        self._looked_at_s = 0.0
        self._watching = 0
        self._task: asyncio.Task[None] | None = None
        self._fresh = asyncio.Event()
        """Set while what is kept is at most one poll old."""

    async def now(self) -> Seen:
        """The latest. Raises: LimpetError where there was none yet, and nobody tells one."""
        self._look()
        await self._fresh.wait()
        if self._seen is None:
            assert self._error is not None
            raise self._error
        return self._seen

    async def after(self, seen: Seen) -> Seen:
        """The next that is another one, whenever that comes."""
        self._watching += 1
        try:
            self._look()
            while self._seen is None or self._seen is seen:
                await self._changed.wait()
            return self._seen
        finally:
            self._watching -= 1

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
                await self._ask()
                self._fresh.set()
                await asyncio.sleep(self._poll_s)
        finally:
            self._fresh.clear()

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
                self._tell(Seen(before.picture, before.rows, str(error)))
            return
        if picture is not None:
            rows = map_rows(picture)
            self._tell(Seen(picture, rows))
        elif before is not None and before.trouble:
            self._tell(Seen(before.picture, before.rows))

    def _tell(self, seen: Seen) -> None:
        self._seen = seen
        self._changed.set()
        self._changed = asyncio.Event()
