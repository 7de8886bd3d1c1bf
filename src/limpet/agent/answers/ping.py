"""One round of `limpet ping`: a probe by every way to a node, and a packet through the datapath."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from contextlib import closing

from limpet.agent.answers.own_pods import OwnNodeWords, own_addresses
from limpet.agent.status.ping import PingAnswer, PingPacket
from limpet.base.addresses import Address
from limpet.linux.packets.echo import Echo

_WITHIN_S = 1.0
_PACKET_BYTES = 84
"""As ping(8) sends them."""


async def ping_packets(addresses: Iterable[Address]) -> list[PingPacket]:
    """One echo to each at the same time."""
    return list(await asyncio.gather(*map(_ping, addresses)))


async def _ping(address: Address) -> PingPacket:
    rtt_ms, problem = None, ""
    try:
        with closing(Echo(str(address), 0)) as echo:
            began_s = time.monotonic()
            if await echo.ask(_PACKET_BYTES, _WITHIN_S) is not None:
                rtt_ms = round(1e3 * (time.monotonic() - began_s), 3)
    except OSError as error:
        problem = error.strerror or str(error)
    return PingPacket(address=str(address), rtt_ms=rtt_ms, problem=problem)


async def ping_alone(words: OwnNodeWords, target: str) -> PingAnswer:
    """At a node that is in no cluster: packets only. Raises: LimpetError for an unknown name."""
    addresses = own_addresses("ping", target, words)
    pods = {pod.address: str(pod) for pod in words.pods}
    return PingAnswer(
        node="",
        uid="",
        pod=pods.get(addresses[0], ""),
        addresses=[str(each) for each in addresses],
        rung="",
        ways=[],
        packets=await ping_packets(addresses),
        why="",
    )
