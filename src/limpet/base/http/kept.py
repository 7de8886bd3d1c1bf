"""Connections for requests, kept open between them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from limpet.base.http.connection import (
    ANSWER_TIMEOUT_S,
    Connection,
    Headers,
    HttpAnswer,
    LinkError,
    SilenceError,
)


class KeptConnections:
    """At most so many requests at a time, each on a connection of its own. For one event loop."""

    def __init__(self, open_connection: Callable[[], Awaitable[Connection]], *, most: int) -> None:
        self._open = open_connection
        self._idle: list[Connection] = []
        self._room = asyncio.Semaphore(most)
        self._closed = 0
        """How often all were closed: what was opened before is not kept."""

    def close(self) -> None:
        """Ends what is idle now, and what is in use after its request; the next one opens anew."""
        self._closed += 1
        while self._idle:
            self._idle.pop().close()

    async def request(
        self,
        verb: str,
        path: str,
        *,
        body: bytes = b"",
        headers: Headers = (),
        timeout_s: float = ANSWER_TIMEOUT_S,
        once: bool = False,
    ) -> HttpAnswer:
        """The answer. Raises: LinkError.

        `once`: a server that ends a kept connection while it is asked may have done what it was
        asked; then it is not asked again.
        """
        async with self._room:
            while True:
                kept = self._take()
                closed = self._closed
                asked = kept or await self._open()
                try:
                    answer = await asked.request(
                        verb, path, body=body, headers=headers, timeout_s=timeout_s
                    )
                except LinkError as error:
                    # It was closed while nobody asked, as servers do; asking twice is no harm.
                    if once or kept is None or kept.answered or isinstance(error, SilenceError):
                        raise
                else:
                    if closed == self._closed and asked.reusable:
                        self._idle.append(asked)
                    else:
                        asked.close()
                    return answer

    def _take(self) -> Connection | None:
        """One that nothing has ended; the others are closed, else what the other side has ended
        stays open until TLS gives it up."""
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable:
                return connection
            connection.close()
        return None
