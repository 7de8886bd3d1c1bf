"""Maps a port at a gateway by PCP or NAT-PMP: each question is one UDP datagram."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from ipaddress import IPv4Address, ip_address
from typing import TypeVar

from limpet.base.bounds.servers import GATEWAY_DATAGRAMS
from limpet.nat import port_control_codec as wire
from limpet.nat.port_control_codec import GatewaySilentError, PortLease

TRIES_S = (0.25, 0.5, 1.0)
"""How long each try waits. Source: RFC 6886 section 3.1, cut short: the router is near."""

T = TypeVar("T")


async def ask_pcp(
    gateway: IPv4Address, nonce: bytes, port: int, wanted: int, lifetime_s: int
) -> PortLease:
    """Raises: PortControlError, OSError."""
    with _connected(gateway) as opened:
        client = ip_address(opened.getsockname()[0])
        request = wire.encode_pcp_map(client, nonce, port, wanted, lifetime_s)
        return await _ask(opened, request, lambda data: wire.parse_pcp_map(data, nonce, port))


async def ask_pmp(gateway: IPv4Address, port: int, wanted: int, lifetime_s: int) -> PortLease:
    """Raises: PortControlError, OSError."""
    with _connected(gateway) as opened:
        request = wire.encode_pmp_map(port, wanted, lifetime_s)
        lease = await _ask(opened, request, lambda data: wire.parse_pmp_map(data, port))
        if not lifetime_s:
            return lease
        address = await _ask(opened, wire.encode_pmp_address(), wire.parse_pmp_address)
        return replace(lease, address=address)


@contextlib.contextmanager
def _connected(gateway: IPv4Address) -> Iterator[socket.socket]:
    """Hears the gateway and nobody else."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as opened:
        opened.connect((str(gateway), wire.PORT))
        yield opened


async def _ask(opened: socket.socket, request: bytes, parse: Callable[[bytes], T | None]) -> T:
    """What `parse` makes of the answer. Raises: PortControlError, OSError."""
    loop = asyncio.get_running_loop()
    datagrams = iter(range(GATEWAY_DATAGRAMS.most))  # in all tries together
    for wait_s in TRIES_S:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await loop.sock_sendall(opened, request)
                for _ in datagrams:
                    found = parse(await loop.sock_recv(opened, 1200))
                    if found is not None:
                        return found
                    await asyncio.sleep(0)  # as in `upnp`: others have their turn
                break
    raise GatewaySilentError("no answer")
