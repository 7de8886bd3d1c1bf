"""What all sources do alike: hear an API server, keep what was heard, say what is wrong."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any

from limpet.cloud.following import Following
from limpet.cloud.workloads.crowding import Crowding
from limpet.cloud.workloads.keeping import Keeping
from limpet.kubernetes.access.access import Access
from limpet.kubernetes.client import Client
from limpet.kubernetes.reflector import Reflector

REST_S = 0.001
"""Who encodes very many objects in another thread rests so long now and then: the event loop may
have a change to make, and waits for Python's lock for milliseconds each time that it asks the
kernel."""


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
        self._reflectors: dict[str, Reflector[Any]] = {}
        """By kind, those that hear; none while there is nobody to be heard."""
        self._tasks: list[asyncio.Task[None]] = []
        self._crowded = Crowding(noun, self._list_again, random)

    @abstractmethod
    def _begin(self, client: Client, _access: Access) -> list[Coroutine[Any, Any, None]]:
        """Makes `_reflectors`; what has to run while the server is heard."""

    @abstractmethod
    async def _write(self) -> int:
        """Keeps all that was heard; returns bytes. Raises: StorageError."""

    def start(self) -> None:
        works = (self._following.run(), self._keeping.run())
        self._tasks = [asyncio.create_task(work) for work in works]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._crowded.stop()
        await self._keeping.finish()

    def keep(self) -> None:
        """What is known now is written, although nothing new was heard."""
        self._keeping.note()

    def network_changed(self) -> None:
        """Asks anew at once."""
        for reflector in self._reflectors.values():
            reflector.network_changed()

    @property
    def error(self) -> str:
        """Why it hears nothing, or keeps nothing; empty: all is well."""
        troubles = (self._following.trouble, self._keeping.trouble)
        found = (*troubles, *(each.follow_state.error for each in self._reflectors.values()))
        return next(filter(None, found), "")

    def _list_again(self, kind: str) -> None:
        if kind in self._reflectors:
            self._reflectors[kind].list_again()

    def _end(self) -> None:
        self._reflectors = {}
