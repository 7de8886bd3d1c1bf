"""Follows one kind of objects at an API server, as long as it runs: the process around
`reflector_state`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Generic

import structlog

from limpet.base import faults
from limpet.base.errors import LimpetError
from limpet.base.http.connection import SilenceError, TooLargeError
from limpet.kubernetes.client import Client
from limpet.kubernetes.errors import (
    BusyError,
    FutureVersionError,
    GoneError,
    StatusError,
    refusal,
)
from limpet.kubernetes.kinds.objects import AnyViewed, Resource
from limpet.kubernetes.lists import ALL, Selection
from limpet.kubernetes.reflector_state import (
    Check,
    Failure,
    ListPage,
    ObjectChanges,
    ReflectorState,
    Step,
    Wait,
    Watch,
)
from limpet.kubernetes.watch_event import WatchEnded, read_event

_log = structlog.get_logger("kubernetes")

_BAD_REQUEST = 400
_REFUSALS = (401, 403)
SILENCE_S = 150.0
"""Silence that ends a watch: two bookmarks are missing. A cache that sends none is asked anew."""


@dataclass(frozen=True, slots=True)
class FollowState:
    """How following stands, for a person."""

    connected: bool
    since_s: float
    """When `connected` changed last, on the monotonic clock."""
    listed: bool
    """All that is there has been told once."""
    error: str
    """Why it is not connected; empty: it is, or has not tried yet."""
    refuses: bool = False
    """The server answers, and says that this account is nobody's or may not."""
    away_s: float = 0.0
    """How long it was not connected before it was again; 0.0 while it is not."""

    def last_away(self, now_s: float) -> tuple[float, float]:
        """How long the server was not connected, and when it was again: now, if it is not yet."""
        if self.connected:
            return self.away_s, self.since_s
        return now_s - self.since_s, now_s


class Reflector(Generic[AnyViewed]):
    """Tells what is there, then what changes. Runs on the event loop, a task of its own."""

    def __init__(
        self,
        client: Client,
        resource: Resource[AnyViewed],
        hear: Callable[[ObjectChanges[AnyViewed]], Awaitable[None]],
        *,
        mirror: bool,
        random: Callable[[], float],
        selection: Selection = ALL,
        silence_s: float = SILENCE_S,
        page: int = 100,
    ) -> None:
        """`hear`: is awaited before the next is read; if it raises, all is told anew.

        `mirror`: whether what a new list has no more is told as gone.
        `random`: from 0 to below 1; spreads those who come back all at once.
        `page`: how many are listed at a time.
        """
        self._client = client
        self._resource = resource
        self._hear = hear
        self._selection = selection
        self._random = random
        self._silence_s = silence_s
        self._state: ReflectorState[AnyViewed] = ReflectorState(mirror=mirror, page=page)
        self._step: asyncio.Task[None] | None = None
        self._follow_state = FollowState(False, time.monotonic(), False, "")

    @property
    def follow_state(self) -> FollowState:
        return self._follow_state

    @property
    def clock_ahead_s(self) -> float:
        """As the client's."""
        return self._client.clock_ahead_s

    def network_changed(self) -> None:
        """Asks anew at once: connections may be dead, or a way may be there now."""
        if self._step is not None:
            self._step.cancel()

    def list_again(self) -> None:
        """Tells all anew: there may be room for what was not kept."""
        self._state.list_again()
        self.network_changed()

    async def run(self) -> None:
        """Until it is cancelled. Raises nothing."""
        while True:
            step = self._state.next_step(time.monotonic(), self._random())
            self._step = asyncio.create_task(self._do(step))
            try:
                await asyncio.wait((self._step,))
            finally:
                self._step.cancel()
            if self._step.cancelled():
                self._state.moved()
            elif (error := self._step.exception()) is not None:
                self._note(error)

    async def _do(self, step: Step) -> None:
        match step:
            case Wait(until_s):
                await asyncio.sleep(until_s - time.monotonic())
            case ListPage():
                await self._list(step)
            case Check():
                await self._check(step)
            case Watch():
                await self._watch(step)

    async def _list(self, step: ListPage) -> None:
        parts = await self._client.list_parts(
            self._resource, selection=self._selection, limit=step.limit, go_on=step.go_on
        )
        for page in parts:
            changes = self._state.take_page(
                page.items,
                page.unreadable,
                resource_version=page.resource_version,
                go_on=page.next,
                more=page.more,
            )
            await self._tell(changes)
            if changes.listed:
                self._turn(connected=True)
            if page.more:
                await asyncio.sleep(0)  # others have their turn

    async def _check(self, step: Check) -> None:
        try:
            await self._client.check_version(
                self._resource, step.resource_version, selection=self._selection
            )
        except (BusyError, GoneError, FutureVersionError):
            raise
        except StatusError as error:
            if error.status.code != _BAD_REQUEST:
                raise  # else a cache that does not know the question has no version of its own
        self._state.take_check()

    async def _watch(self, step: Watch) -> None:
        began_s, silent = time.monotonic(), False
        watch = self._client.watch(
            self._resource,
            step.resource_version,
            selection=self._selection,
            for_s=step.for_s,
            silence_s=self._silence_s,
        )
        try:
            async with aclosing(watch) as parts:
                async for lines in parts:
                    self._turn(connected=True)
                    await self._take(lines)
        except SilenceError:
            if time.monotonic() - began_s < self._silence_s:
                raise  # it did not even begin
            silent = True
        now_s = time.monotonic()
        self._state.watch_ended(now_s, self._random(), lived_s=now_s - began_s, silent=silent)

    async def _take(self, lines: list[bytes]) -> None:
        """What came together is told together. Raises: StatusError for a refusal; LimpetError for
        what is no event."""
        changes: ObjectChanges[AnyViewed] = ObjectChanges()
        try:
            for line in lines:
                changes = changes.then(self._take_line(line))
        finally:
            if changes:
                await self._tell(changes)

    def _take_line(self, line: bytes) -> ObjectChanges[AnyViewed]:
        what = f"watch {self._resource}"
        try:
            event = read_event(line, self._resource)
        except ValueError as error:
            raise LimpetError(
                f"{what} at {self._client.access.server}: {error} (is something else there, or a "
                "cache of another version?)"
            ) from error
        if isinstance(event, WatchEnded):
            raise refusal(what, self._resource, event.status)
        return self._state.take_event(event)

    async def _tell(self, changes: ObjectChanges[AnyViewed]) -> None:
        for each in changes.unreadable:
            _log.warning(
                "an object cannot be read, and is passed over",
                by_others=True,
                resource=str(self._resource),
                name=each.name,
                cause=each.cause,
            )
        try:
            await self._hear(changes)
        except BaseException:  # also cancelled: nobody knows how much of it was taken
            self._state.begin_again(changes)
            raise

    # How it stands

    def _note(self, error: BaseException) -> None:
        now_s, random = time.monotonic(), self._random()
        after_s = error.retry_after_s if isinstance(error, StatusError) else None
        failure = _failure(error)
        self._state.fail(failure, now_s, random, retry_after_s=after_s)
        if failure is not Failure.OTHER:
            _log.info("all is listed anew", resource=str(self._resource), reason=str(error))
            return  # the server speaks with us
        words = str(error) if isinstance(error, LimpetError) else f"{type(error).__name__}: {error}"
        if not isinstance(error, LimpetError) and isinstance(error, Exception):
            faults.note(f"following {self._resource}", error)
        if words != self._follow_state.error:
            _log.warning("not connected to the API server", error=words)
        refuses = isinstance(error, StatusError) and error.status.code in _REFUSALS
        self._turn(connected=False, error=words, refuses=refuses)

    def _turn(self, *, connected: bool, error: str = "", refuses: bool = False) -> None:
        before, now_s = self._follow_state, time.monotonic()
        since_s, away_s = before.since_s, before.away_s
        if connected != before.connected:
            since_s, away_s = now_s, now_s - before.since_s if connected else 0.0
        if connected and not before.connected:
            _log.info(
                "connected to the API server",
                resource=str(self._resource),
                server=str(self._client.access.server),
            )
        listed = self._state.listed
        self._follow_state = FollowState(connected, since_s, listed, error, refuses, away_s)


def _failure(error: BaseException) -> Failure:
    if isinstance(error, GoneError):
        return Failure.GONE
    if isinstance(error, FutureVersionError):
        return Failure.FUTURE
    return Failure.TOO_LARGE if isinstance(error, TooLargeError) else Failure.OTHER
