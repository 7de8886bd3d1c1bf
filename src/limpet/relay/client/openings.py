"""Ends of pairs at relays that are being opened over TLS."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from limpet.base.addresses import Endpoint
from limpet.base.errors import LimpetError
from limpet.cluster.topology.paths import RelayEnd
from limpet.relay.client.effects import OpenStream

_OPENED_AT_ONCE = 16


class Streams(Protocol):
    """Ends of pairs in TLS connections to relays."""

    on_lost: Callable[[str], None]
    on_refused: Callable[[str, str], None]
    on_wanted: Callable[[str, str], None]

    async def end_for(
        self, relay_uid: str, addresses: Iterable[Endpoint], peer_uid: str
    ) -> RelayEnd:
        """Raises: LimpetError."""

    def release(self, peer_uid: str) -> None:
        """No end of a pair with the peer is needed any more."""


class Openings:
    """Runs on the event loop's thread; opens a few at once."""

    def __init__(self, tls: Streams) -> None:
        self.tls = tls
        self._tasks: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(_OPENED_AT_ONCE)

    def begin(
        self,
        wanted: OpenStream,
        addresses: Iterable[Endpoint],
        done: Callable[[OpenStream, RelayEnd | str], None],
    ) -> None:
        """`done` gets the end, or why there is none."""
        task = asyncio.get_running_loop().create_task(self._open(wanted, addresses, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _open(
        self,
        wanted: OpenStream,
        addresses: Iterable[Endpoint],
        done: Callable[[OpenStream, RelayEnd | str], None],
    ) -> None:
        try:
            async with self._room:
                end = await self.tls.end_for(wanted.relay, addresses, wanted.peer)
        except LimpetError as error:
            done(wanted, str(error))
        else:
            done(wanted, end)
