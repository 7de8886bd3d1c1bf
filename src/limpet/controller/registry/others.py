"""What others write beside this controller: nodes their presences, people what they edit or delete.

For stores that others can write to; the registry keeps in step with them by this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import structlog

from limpet.base.errors import LimpetError
from limpet.cluster.documents import Key
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
    while True:
        try:
            if is_too_old:
                since = await store.mark(list(record_types()))
                await registry.read_again()
                is_too_old = False
            await _follow(store, registry, since, on_heard)
        except TooOldError:
            is_too_old = True
        except LimpetError as error:
            _log.warning("not followed", error=str(error))
            await asyncio.sleep(_AGAIN_S)


async def _follow(
    store: Store, registry: Registry, since: str, on_heard: Callable[[Key], Awaitable[None]]
) -> None:
    """Raises: TooOldError, LimpetError."""
    heard: set[Key] = set()
    async with aclosing(store.watch(list(record_types()), since)) as events:
        async for event in events:
            if not isinstance(event, Bookmark):
                if not registry.has_written(event.kind, event.name, event.version):
                    heard.add((event.kind, event.name))
                continue
            if heard:
                await registry.hear(heard)
            # Also what was read with everything else: of that no event is told, or it is known.
            for key in sorted(heard | registry.take_found()):
                await on_heard(key)
            heard = set()
