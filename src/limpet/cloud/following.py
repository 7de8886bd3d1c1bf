"""An API server that is listened to for as long as the agent runs, whatever it says or does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from typing import Any

import structlog

from limpet.base import faults
from limpet.base.errors import LimpetError
from limpet.kubernetes.access.access import Access
from limpet.kubernetes.client import Client

_log = structlog.get_logger("api server")

_AGAIN_S = 15.0

Begin = Callable[[Client, Access], Collection[Coroutine[Any, Any, None]]]
"""What is done with a connection; none of it ends by itself but by a fault of ours."""


class Following:
    """One task of the event loop; what fails is told in `trouble` and tried again."""

    def __init__(
        self,
        what: str,
        find_access: Callable[[], Access],
        begin: Begin,
        end: Callable[[], None],
        *,
        random: Callable[[], float],
    ) -> None:
        """`what` is heard there. `find_access` is asked again while it raises LimpetError. `end`
        is called when the connection of the last `begin` is done with. `random`: from 0 to below
        1; spreads the nodes that come back all at once."""
        self.trouble = ""
        """Why nobody is asked; empty: somebody is."""
        self._what = what
        self._find_access = find_access
        self._begin = begin
        self._end = end
        self._random = random

    async def run(self) -> None:
        """Until it is cancelled. Raises nothing."""
        while True:
            try:
                await self._follow(self._find_access())
            except LimpetError as error:
                if str(error) != self.trouble:
                    _log.warning(
                        "the API server cannot be asked", about=self._what, error=str(error)
                    )
                self.trouble = str(error)
            except Exception as error:  # noqa: BLE001 - the agent goes on, whatever was said
                faults.note(f"following {self._what}", error)
            await asyncio.sleep(_AGAIN_S * (1 + self._random()))

    async def _follow(self, access: Access) -> None:
        self.trouble = ""
        client = Client(access)
        tasks = [asyncio.create_task(work) for work in self._begin(client, access)]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._end()
            client.close()
