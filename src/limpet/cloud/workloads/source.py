"""What all sources do alike: hear an API server, keep what was heard, say what is wrong."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any

from limpet.base.timer import Timer
from limpet.cloud.following import Following
from limpet.cloud.workloads.keeping import Keeping
from limpet.kubernetes.access.access import Access
from limpet.kubernetes.client import Client
from limpet.kubernetes.reflector import Reflector

_CROWDED_S = 600.0
"""After which what had no room is listed again: some of the others may be gone."""


class WorkloadSource(ABC):
    """Runs on the event loop, tasks of its own; what fails is told in `error` and tried again."""

    def __init__(
        self,
        noun: str,
        find_access: Callable[[], Access],
        *,
        random: Callable[[], float],
        gather_s: float,
    ) -> None:
        """`noun`: what is heard, in words. `find_access`: is asked again while it raises
        LimpetError. `gather_s`: how long changes are gathered before they are written."""
        self._random = random
        self._following = Following(noun, find_access, self._begin, self._end, random=random)
        self._keeping = Keeping(noun, self._write, gather_s=gather_s)
        self._reflectors: list[Reflector[Any]] = []
        """Those that hear; none while there is nobody to be heard."""
        self._tasks: list[asyncio.Task[None]] = []
        self._crowded = Timer(noun, self._list_again)

    @abstractmethod
    def _begin(self, client: Client, _access: Access) -> list[Coroutine[Any, Any, None]]:
        """Makes `_reflectors`; what has to run while the server is heard."""

    @abstractmethod
    async def _write(self) -> None:
        """Keeps all that was heard. Raises: StorageError."""

    def start(self) -> None:
        works = (self._following.run(), self._keeping.run())
        self._tasks = [asyncio.create_task(work) for work in works]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._crowded.stop()
        await self._keeping.finish()

    def network_changed(self) -> None:
        """Asks anew at once."""
        for reflector in self._reflectors:
            reflector.network_changed()

    @property
    def error(self) -> str:
        """Why it hears nothing, or keeps nothing; empty: all is well."""
        troubles = (self._following.trouble, self._keeping.trouble)
        found = (*troubles, *(each.follow_state.error for each in self._reflectors))
        return next(filter(None, found), "")

    def _note_crowded(self) -> None:
        """Something was not kept, since there was no room."""
        if not self._crowded.is_set:
            self._crowded.set_in(_CROWDED_S)

    def _list_again(self) -> None:
        for reflector in self._reflectors:
            reflector.list_again()

    def _end(self) -> None:
        self._reflectors = []
