"""Maps a port at a gateway by UPnP: the gateway is found here, miniupnpc does the rest."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from functools import partial
from ipaddress import IPv4Address, ip_address
from typing import Any, TypeVar
from urllib.parse import urlsplit

from limpet.base.bounds.servers import GATEWAY_DATAGRAMS
from limpet.nat.port_control_codec import (
    SEARCHED,
    SSDP,
    PortControlError,
    PortLease,
    encode_search,
    is_at,
    parse_location,
)

T = TypeVar("T")

_SEARCH_S = (0.5, 1.5)
"""How long each search waits; devices take up to a second (MX)."""
_PORTS_TRIED = 4
_DESCRIPTION = "limpet"


async def find_gateway(gateway: IPv4Address, own: IPv4Address) -> str:
    """URL of the gateway's description. Raises: PortControlError without an answer, OSError.

    Asked by multicast and by unicast: a firewall on this node may drop answers to multicast.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as opened:
        opened.bind((str(own), 0))
        opened.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, own.packed)
        opened.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 2)
        for wait_s in _SEARCH_S:
            for target in SEARCHED:
                for where in (gateway, SSDP[0]):
                    with contextlib.suppress(OSError):
                        opened.sendto(encode_search(target), (str(where), SSDP[1]))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    if found := await _location(opened, gateway):
                        return found
    raise PortControlError("UPnP: no answer")


async def _location(opened: socket.socket, gateway: IPv4Address) -> str:
    """Empty: so many others have answered that nobody is listened to any more."""
    loop = asyncio.get_running_loop()
    for _ in range(GATEWAY_DATAGRAMS.most):
        data, source = await loop.sock_recvfrom(opened, 2048)
        if ip_address(source[0]) == gateway and (found := parse_location(data, gateway)):
            return found
        await asyncio.sleep(0)  # what is there already is read without a turn for others
    return ""


class UpnpGateway:
    """Its calls take as long as the gateway does: for a thread of their own."""

    def __init__(self, location: str) -> None:
        """Raises: PortControlError."""
        try:
            import miniupnpc  # no wheel for every machine; needed only here
        except ImportError as error:
            raise PortControlError("UPnP: the package miniupnpc is not installed") from error
        self._client: Any = miniupnpc.UPnP()
        at: str = _tried(lambda: self._client.selectigd(location))
        if not is_at(at, urlsplit(location).hostname or ""):
            raise PortControlError(f"UPnP: the gateway wants to be controlled elsewhere ({at})")

    def map(self, port: int, wanted: int, lifetime_s: int) -> PortLease:
        """Forwards the gateway's port `wanted`, or one a little above, to ours; with lifetime 0
        ends that. Raises: PortControlError."""
        if not lifetime_s:
            _tried(lambda: self._client.deleteportmapping(wanted, "UDP"))
            return PortLease(None, wanted, 0)
        address = _tried(self._client.externalipaddress)
        problem: PortControlError | None = None
        for external in range(wanted, min(wanted + _PORTS_TRIED, 65536)):
            # Some gateways keep a port for ever or not at all (error 725).
            for kept_s in (lifetime_s, 0):
                ask = partial(
                    self._client.addportmapping,
                    *(external, "UDP", self._client.lanaddr, port, _DESCRIPTION, "", kept_s),
                )
                try:
                    _tried(ask)
                    return PortLease(_address(address), external, lifetime_s)
                except PortControlError as error:
                    problem = error
        raise problem or PortControlError("UPnP: no port is left")


def _tried(call: Callable[[], T]) -> T:
    """Raises: PortControlError."""
    try:
        return call()
    except Exception as error:  # miniupnpc raises Exception itself, with UPnP's words
        raise PortControlError(f"UPnP: the gateway refuses: {error}") from error


def _address(text: str) -> IPv4Address | None:
    try:
        return IPv4Address(text)
    except ValueError:
        return None
