"""Brings entries to the disk, soon and with few syncs, off the event loop's thread."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import structlog

from limpet.base.bounds.words import EVENTS_WAITING
from limpet.base.disk import cause
from limpet.base.process.threads import in_thread
from limpet.picture.said import Level
from limpet.timeline.file import EventFile
from limpet.timeline.log import Recorded

_log = structlog.get_logger("timeline")

SYNC_S, SYNC_SOON_S = 60.0, 5.0
"""Until it survives a power cut: a disk is not worn out by links that flap. What warns does sooner.
That the process ends loses nothing that was written."""
_OLD_S = 7 * 86_400.0
"""A file is begun anew after a week, so what is kept is never older than two."""


class Writer:
    """Nothing that fails here is raised: `trouble` says it, and it is tried again with later ones.

    For one event loop.
    """

    def __init__(self, folder: Path, is_due: Callable[[float], None]) -> None:
        """`is_due`: told when to call `write` at the latest, on the monotonic clock."""
        self._folder = folder
        self._file = EventFile(folder)
        self._is_due_at = is_due
        self._waiting: deque[Recorded] = deque(maxlen=EVENTS_WAITING.most)
        self._sync_at_s = math.inf
        self._writing: asyncio.Task[None] | None = None
        self.trouble = ""
        """Why it is not kept; empty: it is."""

    def put(self, recorded: Recorded) -> None:
        """To be written by the next `write`."""
        self._waiting.append(recorded)
        quiet = recorded.happening.level in (Level.OK, Level.NOTE)
        self._sync_at_s = min(
            self._sync_at_s, time.monotonic() + (SYNC_S if quiet else SYNC_SOON_S)
        )

    def write(self) -> None:
        """Begins to write what waits, if anything does."""
        if self._writing is None and self._is_due():
            self._writing = asyncio.create_task(self._write_all())
        elif self._sync_at_s < math.inf:
            self._is_due_at(self._sync_at_s)

    async def close(self) -> None:
        """All that was put is on the disk then, if that can be written."""
        while self._writing is not None:
            await asyncio.wait((self._writing,))
        if self._waiting or self._sync_at_s < math.inf:
            self._sync_at_s = -math.inf
            await self._write()
        self._file.close()

    def _is_due(self) -> bool:
        return bool(self._waiting) or self._sync_at_s <= time.monotonic()

    async def _write_all(self) -> None:
        try:
            while self._is_due() and await self._write():
                pass
        finally:
            self._writing = None
            if self._sync_at_s < math.inf:
                self._is_due_at(self._sync_at_s)

    async def _write(self) -> bool:
        """Whether what waited is written."""
        file, batch = self._file, list(self._waiting)
        self._waiting.clear()
        sync = self._sync_at_s <= time.monotonic()
        try:
            await in_thread(lambda: file.append(batch, sync=sync, old_s=_OLD_S), "timeline")
        except OSError as error:
            self._waiting.extendleft(reversed(batch))
            self._sync_at_s = time.monotonic() + SYNC_S
            self.fail(f"write {self._folder}: {cause(error)}")
            return False
        if sync:
            self._sync_at_s = math.inf
        self.trouble = ""
        return True

    def fail(self, words: str) -> None:
        if words != self.trouble:
            _log.warning("the timeline of events is not kept", error=words)
        self.trouble = words
