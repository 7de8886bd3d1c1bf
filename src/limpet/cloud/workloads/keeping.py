"""What was heard, kept on the disk some seconds later."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import structlog

from limpet.base import faults
from limpet.base.bounds.tenants import KEPT_AT_ONCE, KEPT_PER_S
from limpet.base.errors import LimpetError

_log = structlog.get_logger("workloads")

_SHARE = 20
"""The next writing begins no sooner than so many times as long as the last one took."""


class WritingRate:
    """How long no more is written, so that who changes objects on and on wears out no disk: the
    whole is written for the smallest change. Pure."""

    def __init__(self, now_s: float) -> None:
        self._written_bytes = 0.0
        """Less what has been let pass since."""
        self._at_s = now_s

    def rest_s(self, size_bytes: int, now_s: float) -> float:
        """After so much was written now."""
        passed = (now_s - self._at_s) * KEPT_PER_S.most
        self._written_bytes = max(0.0, self._written_bytes - passed) + size_bytes
        self._at_s = now_s
        return max(0.0, self._written_bytes - KEPT_AT_ONCE.most) / KEPT_PER_S.most


class Keeping:
    """Writes what has changed. Runs on the event loop; what fails is tried again."""

    def __init__(
        self, what: str, write: Callable[[], Awaitable[int]], *, gather_s: float = 2.0
    ) -> None:
        """`write` returns bytes, and raises LimpetError. `gather_s`: how long changes are gathered
        before that."""
        self.trouble = ""
        """Why it is not on the disk; empty: it is, or will be."""
        self._what = what
        self._put = write
        self._gather_s = gather_s
        self._changed = asyncio.Event()
        self._rate = WritingRate(time.monotonic())

    def note(self) -> None:
        """Something is other than on the disk."""
        self._changed.set()

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self._changed.wait()
            await asyncio.sleep(self._gather_s)
            began_s = time.monotonic()
            size_bytes = await self._write()
            now_s = time.monotonic()
            rest_s = max(_SHARE * (now_s - began_s), self._rate.rest_s(size_bytes, now_s))
            await asyncio.sleep(rest_s)

    async def finish(self) -> None:
        """What is not on the disk yet; `run` was cancelled."""
        if self._changed.is_set():
            await self._write()

    async def _write(self) -> int:
        self._changed.clear()
        try:
            size_bytes = await self._put()
        except LimpetError as error:
            if str(error) != self.trouble:
                _log.error("it cannot be kept", what=self._what, error=str(error))
            self.trouble = str(error)
            self._changed.set()
            return 0
        except Exception as error:  # noqa: BLE001 - without memory or threads, say: the next may do
            faults.note(f"keeping {self._what}", error)
            self.trouble = f"keep {self._what}: {type(error).__name__}: {error}"
            self._changed.set()
            return 0
        self.trouble = ""
        return size_bytes
