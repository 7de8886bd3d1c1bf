"""A server that comes back is found out soon, and one that is there is left alone."""

from __future__ import annotations

import asyncio

from limpet.cloud.second_road.server_return import follow_returns
from limpet.kubernetes.access.access import ServerAddress
from tests.controller.machines import free_port
from tests.waiting import until


class Door:
    """A port of loopback, taken or not, and how often somebody knocked."""

    def __init__(self) -> None:
        self.address = ServerAddress("127.0.0.1", free_port(), tls=True)
        self.knocks = 0
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.address.port)

    async def shut(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.knocks += 1
        writer.close()


def test_each_return_is_told_once_and_nobody_knocks_where_the_server_is_connected() -> None:
    async def work() -> None:
        door, returns, away = Door(), [0], [True]

        def returned() -> None:
            returns[0] += 1
            away[0] = False

        looks = 0

        def is_away() -> bool:
            nonlocal looks
            looks += 1
            return away[0]

        following = asyncio.create_task(
            follow_returns(door.address, is_away=is_away, returned=returned, random=lambda: 0.0)
        )
        try:
            await until(lambda: looks >= 2)
            await door.open()
            await until(lambda: returns == [1])
            await until(lambda: door.knocks == 1)
            seen = looks
            await until(lambda: looks >= seen + 2)
            assert door.knocks == 1

            # It goes, and comes again.
            await door.shut()
            away[0] = True
            seen = looks
            await until(lambda: looks >= seen + 2)
            await door.open()
            await until(lambda: returns == [2])
            await door.shut()
        finally:
            following.cancel()
            await asyncio.wait((following,))

    asyncio.run(work())
