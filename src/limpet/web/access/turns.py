"""Makes pages in turns: nobody who looks takes more than half of the processor from others."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from weakref import WeakValueDictionary

from limpet.base.bounds.visitors import PAGE_MADE
from limpet.base.timer import Timer


class OwnTurns:
    """For one event loop. Making a page stops the loop: of pages that one viewer asks for at once
    each waits for the one before, and for as long again as that took."""

    def __init__(self, rest_s: float | None = None) -> None:
        """`rest_s`: between two turns of one viewer; None: as long as the former took."""
        self._rest_s = rest_s
        self._of: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @contextlib.asynccontextmanager
    async def turn(self, owner: str) -> AsyncIterator[None]:
        """Whatever is done for this owner alone; a page is made without waiting for anything."""
        loop = asyncio.get_running_loop()
        turn = self._of.setdefault(owner, asyncio.Semaphore(PAGE_MADE.most))
        await turn.acquire()
        began_s = loop.time()
        try:
            yield
        finally:
            rest_s = loop.time() - began_s if self._rest_s is None else self._rest_s
            Timer("turns of the page", turn.release).set_in(rest_s)
