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

    def __init__(self) -> None:
        self._of: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @contextlib.asynccontextmanager
    async def turn(self, owner: str) -> AsyncIterator[None]:
        """What is made for this owner, without waiting for anything else."""
        loop = asyncio.get_running_loop()
        turn = self._of.setdefault(owner, asyncio.Semaphore(PAGE_MADE.most))
        await turn.acquire()
        began_s = loop.time()
        try:
            yield
        finally:
            Timer("turns of the page", turn.release).set_in(loop.time() - began_s)
