"""How a server of asyncio ends without losing a connection between two turns of the loop."""

from __future__ import annotations

import asyncio


async def close_server(server: asyncio.Server) -> None:
    """Close `server` once each connection that it has accepted is known to its protocol.

    asyncio accepts in one turn of the loop, makes the transport in the next, and calls
    `connection_made` in the one after. A server that is closed before the transport is made never
    makes it, and says nothing: the connection stays open and unanswered until the garbage collector
    comes by (`Server._attach` of Python 3.11). Afterwards the caller knows every one that is open.
    """
    loop = server.get_loop()
    for listener in server.sockets:
        loop.remove_reader(listener.fileno())
    await asyncio.sleep(0)
    server.close()
    await asyncio.sleep(0)
