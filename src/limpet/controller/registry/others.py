"""What others write beside this controller: nodes their presences, people what they edit or delete.

For stores that others can write to; the registry keeps in step with them by this.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import structlog

from limpet.base import faults
from limpet.base.errors import LimpetError
from limpet.cluster.documents import Key
from limpet.cluster.exchange.change_rates import ChangeRates
from limpet.cluster.kinds import KINDS
from limpet.controller.registry.records import record_types
from limpet.controller.registry.registry import Registry
from limpet.controller.store.interface import Bookmark, Store, TooOldError

_log = structlog.get_logger("registry")
_AGAIN_S = 2.0


async def follow_others(
    store: Store, registry: Registry, since: str, on_heard: Callable[[Key], Awaitable[None]]
) -> None:
    """For ever. `since`: a version from before the registry was read; `on_heard`: the item is now
    as somebody else has written it."""
    is_too_old = False
    late = _LateKeys()
    hearing = asyncio.create_task(_hear_late(late, registry, on_heard))
    try:
        while True:
            try:
                if is_too_old:
                    since = await store.mark(list(record_types()))
                    await registry.read_again()
                    is_too_old = False
                await _follow(store, registry, since, late, on_heard)
            except TooOldError:
                is_too_old = True
            except LimpetError as error:
                _log.warning("not followed", error=str(error))
                await asyncio.sleep(_AGAIN_S)
            except Exception as error:  # noqa: BLE001 - the next time may be better
                faults.note("following others", error)
                await asyncio.sleep(_AGAIN_S)
    finally:
        hearing.cancel()


class _LateKeys:
    """What one node writes on and on is heard a little later, and is what it is by then."""

    def __init__(self) -> None:
        self._rates = ChangeRates(KINDS)
        self._late: set[Key] = set()
        self._some = asyncio.Event()

    def take_due(self, keys: set[Key], now_s: float) -> set[Key]:
        """Those of them that may be heard now."""
        documents = {key for key in keys if KINDS.get(key[0]) is not None}
        due = keys - {key for key in documents if not self._rates.has_room(key, now_s)}
        for key in due & documents:
            self._rates.note(key, now_s)
        self._late |= keys - due
        if self._late:
            self._some.set()
        return due

    async def wait(self) -> set[Key]:
        """Until there are some; they are the caller's then."""
        await self._some.wait()
        self._some.clear()
        late, self._late = self._late, set()
        return late


async def _hear_late(
    late: _LateKeys, registry: Registry, on_heard: Callable[[Key], Awaitable[None]]
) -> None:
    """For ever."""
    while True:
        keys = await late.wait()
        await asyncio.sleep(_AGAIN_S)
        due = late.take_due(keys, time.monotonic())
        try:
            if due:
                await registry.hear(due)
            for key in sorted(due):
                await on_heard(key)
        except LimpetError as error:
            _log.warning("not followed", error=str(error))
            late.take_due(due, time.monotonic())
        except Exception as error:  # noqa: BLE001 - the others go on
            faults.note("following others", error)
            late.take_due(due, time.monotonic())


async def _follow(
    store: Store,
    registry: Registry,
    since: str,
    late: _LateKeys,
    on_heard: Callable[[Key], Awaitable[None]],
) -> None:
    """Raises: TooOldError, LimpetError."""
    heard: set[Key] = set()
    async with aclosing(store.watch(list(record_types()), since)) as events:
        async for event in events:
            if not isinstance(event, Bookmark):
                if not registry.has_written(event.kind, event.name, event.version):
                    heard.add((event.kind, event.name))
                continue
            due = late.take_due(heard, time.monotonic())
            if due:
                await registry.hear(due)
            # Also what was read with everything else: of that no event is told, or it is known.
            for key in sorted(due | registry.take_found()):
                await on_heard(key)
            heard = set()
