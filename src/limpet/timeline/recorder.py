"""The timeline of one process: takes what has happened, keeps it, answers. For one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import structlog

from limpet.base.disk import cause
from limpet.base.process.threads import in_thread
from limpet.base.process.wall_clock import is_kept
from limpet.base.records.codec import NewerRecordError
from limpet.base.timer import Timer
from limpet.picture.said import Level
from limpet.picture.timeline import Clock, Happening, Timeline
from limpet.timeline.answer import Asked, answer
from limpet.timeline.clock import Moment, doubted, was_set_s
from limpet.timeline.file import EventFile, read_all
from limpet.timeline.limits import Limits
from limpet.timeline.log import Recorded

_log = structlog.get_logger("timeline")

TOGETHER_S = 0.3
"""What happens within it is looked at together, and written by one call."""
_SYNC_S, _SYNC_SOON_S = 60.0, 5.0
"""Until it survives a power cut: a disk is not worn out by links that flap. What warns does sooner.
That the process ends loses nothing that was written."""
_LOOK_S = 60.0
"""How often what was held back is looked at."""
_IN_MEMORY = 512
_MOST_WAITING = 4_096
"""That could not be written yet; the oldest are in no file then."""
_OLD_S = 7 * 86_400.0
"""A file is begun anew after a week, so what is kept is never older than two."""


def moment_now(boot: str) -> Moment:
    """By the clocks of this machine."""
    clock = Clock.KEPT if is_kept() else Clock.FREE
    return Moment(boot, time.clock_gettime(time.CLOCK_BOOTTIME), time.time(), clock)


def read_boot() -> str:
    """Of the kernel that runs."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()[:8]


class Recorder:
    """Nothing that fails here ends anything else: `trouble` says it, and later ones are kept."""

    def __init__(self, folder: Path | None, now: Callable[[], Moment]) -> None:
        """`folder`: None: nothing is kept longer than the process runs."""
        self._folder = folder
        self._now = now
        self._file = EventFile(folder) if folder is not None else None
        self._known: deque[Recorded] = deque(maxlen=_IN_MEMORY)
        self._limits = Limits(time.monotonic())
        self._noted: list[Happening] = []
        self._at: Moment | None = None
        """When the first of `_noted` happened."""
        self._unwritten: deque[Recorded] = deque(maxlen=_MOST_WAITING)
        self._sync_at_s = math.inf
        self._writing: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._timer = Timer("timeline", self._take)
        self.trouble = ""
        """Why it is not kept; empty: it is."""

    def start(self) -> Recorded | None:
        """Reads what was kept; the last of it."""
        if self._folder is not None:
            try:
                self._known.extend(read_all(self._folder))
            except (OSError, NewerRecordError) as error:
                words = cause(error) if isinstance(error, OSError) else str(error)
                self._fail(f"read {self._folder}: {words}")
                if isinstance(error, NewerRecordError):
                    self._file = None  # a later Limpet's: it is left alone
        return self._known[-1] if self._known else None

    def note(self, *happenings: Happening) -> None:
        """They have happened just now."""
        if not happenings:
            return
        if self._at is None:
            self._at = self._now()
        self._noted += happenings
        if not self._timer.is_set or len(self._noted) == len(happenings):
            self._timer.set_in(TOGETHER_S)

    async def stop(self) -> None:
        """All that was noted is on the disk then, if that can be written."""
        self._timer.stop()
        self._take()
        self._timer.stop()
        while self._writing is not None:
            await asyncio.wait((self._writing,))
        if self._file is not None:
            self._sync_at_s = -math.inf
            await self._write()
            self._file.close()

    # Asking

    @property
    def newest(self) -> int:
        """Sequence of the newest entry; 0: there is none."""
        return self._known[-1].sequence if self._known else 0

    async def answer(self, asked: Asked) -> Timeline:
        """From memory where that has it, else from the disk."""
        if asked.wait_s > 0 and asked.after is not None:
            await self._wait(asked.after, asked.wait_s)
        first = self._known[0].sequence if self._known else 0
        found = list(self._known)
        if self._folder is not None and first > 1 and not asked.is_after(first):
            with contextlib.suppress(OSError, NewerRecordError):  # as far as it is in memory
                older = await in_thread(lambda: read_all(self._folder or Path()), "timeline")
                found = [*(each for each in older if each.sequence < first), *found]
        return answer(found, asked)

    async def _wait(self, after: int, wait_s: float) -> None:
        """Until there is a newer one, or so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while self.newest <= after:
                    await self._changed.wait()

    # Keeping

    def _take(self) -> None:
        moment, noted = self._at or self._now(), self._noted
        self._at, self._noted = None, []
        before = self._known[-1] if self._known else None
        if before is not None:
            moment = doubted(moment, before.moment.wall_s)
            if noted and (ahead_s := was_set_s(before.moment, moment)):
                noted.insert(0, _clock_was_set(ahead_s, moment))
        for each in self._limits.take(noted, time.monotonic()):
            recorded = Recorded(self.newest + 1, moment, each)
            self._known.append(recorded)
            self._unwritten.append(recorded)
            soon_s = _SYNC_S if each.level in (Level.OK, Level.NOTE) else _SYNC_SOON_S
            self._sync_at_s = min(self._sync_at_s, time.monotonic() + soon_s)
        if self._unwritten:
            self._changed.set()
            self._changed = asyncio.Event()
        self._write_soon()

    def _write_soon(self) -> None:
        if self._writing is None and self._file is not None and self._is_due():
            self._writing = asyncio.create_task(self._write_all())
        if self._limits.holds or self._sync_at_s < math.inf:
            self._timer.set(min(self._sync_at_s, time.monotonic() + _LOOK_S))

    def _is_due(self) -> bool:
        return bool(self._unwritten) or self._sync_at_s <= time.monotonic()

    async def _write_all(self) -> None:
        try:
            while self._is_due() and await self._write():
                pass
        finally:
            self._writing = None
            if not self._timer.is_set and self._sync_at_s < math.inf:
                self._timer.set(self._sync_at_s)

    async def _write(self) -> bool:
        """Whether what waited is written."""
        file = self._file
        if file is None:
            return False
        batch = list(self._unwritten)
        self._unwritten.clear()
        sync = self._sync_at_s <= time.monotonic()
        try:
            await in_thread(lambda: file.append(batch, sync=sync, old_s=_OLD_S), "timeline")
        except OSError as error:
            self._unwritten.extendleft(reversed(batch))
            self._sync_at_s = time.monotonic() + _SYNC_S
            self._fail(f"write {self._folder}: {cause(error)}")
            return False
        if sync:
            self._sync_at_s = math.inf
        self.trouble = ""
        return True

    def _fail(self, words: str) -> None:
        if words != self.trouble:
            _log.warning("the timeline of events is not kept", error=words)
        self.trouble = words


def _clock_was_set(ahead_s: float, moment: Moment) -> Happening:
    kept = "; a time server keeps it now" if moment.clock is Clock.KEPT else ""
    way = "forward" if ahead_s > 0 else "back"
    words = f"the machine's clock was set {way} by {abs(ahead_s):.0f} s{kept}"
    return Happening(kind="clock", words=words)
