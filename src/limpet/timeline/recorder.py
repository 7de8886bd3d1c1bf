"""The timeline of one process: takes what has happened, keeps it, answers. For one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from limpet.base.bounds.administrators import EVENTS_READ
from limpet.base.disk import cause
from limpet.base.process.threads import in_thread
from limpet.base.process.wall_clock import is_kept
from limpet.base.records.codec import NewerRecordError
from limpet.base.timer import Timer
from limpet.picture.timeline import Clock, Happening, Timeline
from limpet.timeline.answer import TimelineQuery, answer
from limpet.timeline.clock import Moment, doubted, was_set_s
from limpet.timeline.file import read_all
from limpet.timeline.limits import Limits
from limpet.timeline.log import Recorded
from limpet.timeline.writer import Writer

_log = structlog.get_logger("timeline")

TOGETHER_S = 0.3
"""What happens within it is looked at together, and written by one call."""
_LOOK_S = 60.0
"""How often what was held back is looked at."""
_IN_MEMORY = 512


def moment_now(boot: str) -> Moment:
    """By the clocks of this machine."""
    clock = Clock.KEPT if is_kept() else Clock.FREE
    return Moment(boot, time.clock_gettime(time.CLOCK_BOOTTIME), time.time(), clock)


def read_boot() -> str:
    """Id of the running kernel's boot, its first eight characters."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()[:8]


class Recorder:
    """What cannot be kept is known as long as the process runs, all the same."""

    def __init__(self, folder: Path | None, now: Callable[[], Moment]) -> None:
        """`folder`: None: nothing is kept longer than the process runs."""
        self._folder = folder
        self._now = now
        self._known: deque[Recorded] = deque(maxlen=_IN_MEMORY)
        self._limits = Limits(time.monotonic())
        self._noted: list[Happening] = []
        self._at: Moment | None = None
        """When the first of `_noted` happened."""
        self._changed = asyncio.Event()
        self._is_ending = False
        self._reading = asyncio.Semaphore(EVENTS_READ.most)
        self._timer = Timer("timeline", self._take)
        self._writer = Writer(folder, self._look_at) if folder is not None else None
        self._problem = ""
        """Why nothing is kept at all."""

    def start(self) -> Recorded | None:
        """Reads what was kept; the last of it."""
        if self._folder is not None:
            try:
                self._known.extend(read_all(self._folder))
            except (OSError, NewerRecordError) as error:
                words = cause(error) if isinstance(error, OSError) else str(error)
                _log.warning("what was kept of events cannot be read", error=words)
                if isinstance(error, NewerRecordError):
                    self._writer = None  # a later Limpet's: it is left alone
                    self._problem = f"read {self._folder}: {words}"
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

    def end_waits(self) -> None:
        """Whoever waits is answered with what there is, and nobody waits from now on."""
        self._is_ending = True
        self._changed.set()

    async def stop(self) -> None:
        """All that was noted is on the disk then, if that can be written."""
        self._timer.stop()
        self._take()
        self._timer.stop()
        if self._writer is not None:
            await self._writer.close()
        self._timer.stop()

    @property
    def trouble(self) -> str:
        """Why it is not kept; empty: it is."""
        return self._problem or (self._writer.trouble if self._writer is not None else "")

    # Asking

    @property
    def newest(self) -> int:
        """Sequence of the newest entry; 0: there is none."""
        return self._known[-1].sequence if self._known else 0

    async def answer(self, asked: TimelineQuery) -> Timeline:
        """From memory where that has it, else from the disk."""
        found = await self._answered(asked)
        if found.entries or asked.wait_s <= 0 or asked.after is None:
            return found
        await self._wait(asked)
        return await self._answered(asked)

    async def _answered(self, asked: TimelineQuery) -> Timeline:
        known = list(self._known)
        first = known[0].sequence if known else 0
        folder = self._folder
        if folder is None or first <= 1 or asked.is_after(first):
            return answer(known, asked)
        # 15,000 entries take 80 ms: on a thread, and of one question after the other.
        async with self._reading:
            return await in_thread(lambda: self.answer_from(folder, known, asked), "timeline")

    def answer_from(
        self, folder: Path, known: Sequence[Recorded], asked: TimelineQuery
    ) -> Timeline:
        """`known`: the newer ones, of which there is at least one."""
        older: list[Recorded] = []
        with contextlib.suppress(OSError, NewerRecordError):  # as far as it is in memory
            older = [each for each in read_all(folder) if each.sequence < known[0].sequence]
        return answer([*older, *known], asked)

    async def _wait(self, asked: TimelineQuery) -> None:
        """Until there is a newer one that is meant, or so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(asked.wait_s):
                while not self._is_ending and not answer(self._known, asked).entries:
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
        before_all = self.newest
        for each in self._limits.take(noted, time.monotonic()):
            recorded = Recorded(self.newest + 1, moment, each)
            self._known.append(recorded)
            if self._writer is not None:
                self._writer.put(recorded)
        if self.newest > before_all:
            self._changed.set()
            self._changed = asyncio.Event()
        if self._limits.holds:
            self._look_at(time.monotonic() + _LOOK_S)
        if self._writer is not None:
            self._writer.write()

    def _look_at(self, at_s: float) -> None:
        """At the latest; nothing is looked at later for it."""
        if self._noted:
            return  # that is soon
        if not self._timer.is_set or not self._limits.holds:
            self._timer.set(at_s)


def _clock_was_set(ahead_s: float, moment: Moment) -> Happening:
    kept = "; a time server keeps it now" if moment.clock is Clock.KEPT else ""
    way = "forward" if ahead_s > 0 else "back"
    words = f"the machine's clock was set {way} by {abs(ahead_s):.0f} s{kept}"
    return Happening(kind="clock", words=words)
