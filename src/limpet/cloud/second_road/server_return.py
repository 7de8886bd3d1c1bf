"""Finds out soon that an API server that was away is back, for the price of an empty connection.

What asks it pauses the longer the more often it has failed, half a minute in the end: a node of the
edge would tell of itself, and hear of others, only that late.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from limpet.kubernetes.access.access import ServerAddress

_LOOK_S, _OPEN_S = 1.5, 6.0
"""At least between two looks, at most twice as much; the other after one that takes connections."""
_TRY_S = 2.0


async def follow_returns(
    server: ServerAddress,
    *,
    is_away: Callable[[], bool],
    returned: Callable[[], None],
    random: Callable[[], float],
) -> None:
    """Calls `returned` each time when a server that took no connection takes one again.

    For ever. It is tried only while `is_away`; one that takes connections and answers nonsense is
    not tried more often for that. `random`: from 0 to below 1; spreads those who wait for it.
    """
    was_shut, pause_s = False, _LOOK_S
    while True:
        await asyncio.sleep(pause_s * (1 + random()))
        pause_s = _LOOK_S
        if not is_away():
            was_shut = False
        elif not await _takes_connections(server):
            was_shut = True
        elif was_shut:
            was_shut = False
            returned()
        else:
            pause_s = _OPEN_S


async def _takes_connections(server: ServerAddress) -> bool:
    try:
        async with asyncio.timeout(_TRY_S):
            _, writer = await asyncio.open_connection(server.host, server.port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True
