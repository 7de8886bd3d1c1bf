"""What was heard, kept on the disk some seconds later."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import structlog

from limpet.base.errors import LimpetError

_log = structlog.get_logger("workloads")

_SHARE = 20
"""The next writing begins no sooner than so many times as long as the last one took."""


class Keeping:
    """Writes what has changed. Runs on the event loop; what the disk refuses is tried again."""

    def __init__(
        self, what: str, write: Callable[[], Awaitable[None]], *, gather_s: float = 2.0
    ) -> None:
        """`write` raises LimpetError. `gather_s`: how long changes are gathered before that."""
        self.trouble = ""
        """Why it is not on the disk; empty: it is, or will be."""
        self._what = what
        self._put = write
        self._gather_s = gather_s
        self._changed = asyncio.Event()

    def note(self) -> None:
        """Something is other than on the disk."""
        self._changed.set()

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self._changed.wait()
            await asyncio.sleep(self._gather_s)
            began_s = time.monotonic()
            await self._write()
            await asyncio.sleep(_SHARE * (time.monotonic() - began_s))

    async def finish(self) -> None:
        """What is not on the disk yet; `run` was cancelled."""
        if self._changed.is_set():
            await self._write()

    async def _write(self) -> None:
        self._changed.clear()
        try:
            await self._put()
        except LimpetError as error:
            if str(error) != self.trouble:
                _log.error("it cannot be kept", what=self._what, error=str(error))
            self.trouble = str(error)
            self._changed.set()
        else:
            self.trouble = ""
