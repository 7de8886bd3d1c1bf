"""Now and then everything is looked at, whatever was notified; first soon after the start."""

from __future__ import annotations

import asyncio
import contextlib

import structlog

from limpet.base import faults
from limpet.base.errors import LimpetError
from limpet.cni.repair import Repair
from limpet.datapath.loop import Loop

_log = structlog.get_logger("resync")


class Resync:
    """Runs on the event loop."""

    def __init__(self, loop: Loop, repair: Repair, every_s: float) -> None:
        self._loop = loop
        self._repair = repair
        self._every_s = every_s
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while True:
            try:
                await self._repair()
            except LimpetError as error:
                _log.warning("leaks cannot be looked for", error=str(error))
            except Exception as error:  # noqa: BLE001 - the next time may be better
                faults.note("looking for leaks", error)
            await asyncio.sleep(self._every_s)
            self._loop.resync("timer")
