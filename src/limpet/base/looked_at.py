"""Something that is made when somebody looks at it, and waited for until it is another."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from limpet.base.errors import LimpetError

LONGEST_WAIT_S = 50.0
"""Below what whoever asks waits for any answer."""
_PAUSE_S = 0.2
"""At least between two, however much changes."""
_RESTS, _MOST_REST_S = 3, 2.0
"""So many times as long as one took, and so long at most, until the next: of a thousand nodes and
their pairs it takes a third of a second, and something of them changes all the time."""
_LOOK_EVERY_S = 2.0
"""How often something is looked at of which nobody is told, such as round trips."""


class Versioned(Protocol):
    @property
    def version(self) -> str:
        """Another one when it is another."""


T = TypeVar("T", bound=Versioned)


class Versions:
    """Numbers that no other process gives."""

    def __init__(self) -> None:
        self._turn = secrets.token_hex(4)
        self._number = 0

    def next(self) -> str:
        self._number += 1
        return f"{self._turn}-{self._number}"


class LookedAt(Generic[T]):
    """For one event loop."""

    def __init__(
        self, make: Callable[[T | None], Awaitable[T]], changed: Callable[[], asyncio.Event]
    ) -> None:
        """`make`: what it is now, given what it was; with the same version where it is the same.

        `changed`: set when it may be another; another one each time.
        """
        self._make = make
        self._changed = changed
        self._last: T | None = None
        self._rests_until_s = 0.0
        self._made_after: asyncio.Event | None = None
        """What `changed` was when the last was made: another one now, and it may be out of date."""
        self._making = asyncio.Lock()

    async def now(self) -> T:
        async with self._making:
            began_s = time.monotonic()
            if self._last is None or began_s >= self._rests_until_s:
                made_after = self._changed()
                self._last = await self._make(self._last)
                self._made_after = made_after
                now_s = time.monotonic()
                rest_s = min(_RESTS * (now_s - began_s), _MOST_REST_S)
                self._rests_until_s = now_s + max(rest_s, _PAUSE_S)
            return self._last

    async def other_than(self, known: str, wait_s: float) -> T:
        """As soon as its version is not `known`; the same after `wait_s`. Raises: LimpetError."""
        if not 0 <= wait_s <= LONGEST_WAIT_S:
            raise LimpetError(f"wait_s {wait_s}: from 0 to {LONGEST_WAIT_S:g} seconds")
        until_s = time.monotonic() + wait_s
        while True:
            changed = self._changed()
            found = await self.now()
            left_s = until_s - time.monotonic()
            if found.version != known or left_s <= 0:
                return found
            await asyncio.sleep(min(_PAUSE_S, left_s))
            if self._made_after is not changed:
                continue  # somebody else has looked just before the change, or has looked since
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(_LOOK_EVERY_S, max(left_s - _PAUSE_S, 0))):
                    await changed.wait()
