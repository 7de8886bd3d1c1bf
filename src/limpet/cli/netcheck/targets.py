"""Whom `limpet netcheck` asks: controllers and relays, by name or address, as sockets take them."""

from __future__ import annotations

import asyncio
import re
import socket
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_address

from limpet.base.addresses import Address
from limpet.base.errors import CommandLineError
from limpet.base.http.connection import LinkError
from limpet.cloud.https import parse_controller

RELAY_PORT = 7471
"""Where a relay's agent hears other nodes, unless its settings say otherwise."""
RELAY_TLS_PORT = 443
_HOST = r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^:\[\]/\s]+|[0-9A-Fa-f]*:[0-9A-Fa-f:.]+)"
_WORDS = re.compile(rf"{_HOST}(?::(?P<port>\d{{1,5}}))?(?:/(?P<tls>\d{{1,5}}))?\Z")


class ObserverKind(StrEnum):
    """What an observer is."""

    CONTROLLER = "controller"
    RELAY = "relay"


@dataclass(frozen=True, slots=True)
class NetcheckTarget:
    """One that a person named, or that this node knows."""

    kind: ObserverKind
    host: str
    udp_port: int
    tcp_port: int

    def __str__(self) -> str:
        return f"{self.kind} {self.host}"


@dataclass(frozen=True, slots=True)
class Observer:
    """A target at one of its addresses."""

    target: NetcheckTarget
    address: Address


def controller_target(words: str) -> NetcheckTarget:
    """As `limpet join` takes it. Raises: CommandLineError."""
    try:
        host, port = parse_controller(words)
    except LinkError as error:
        raise CommandLineError(f"netcheck --controller: {error}") from error
    return NetcheckTarget(ObserverKind.CONTROLLER, host, port, port)


def relay_target(words: str) -> NetcheckTarget:
    """A relay as HOST, HOST:PORT (UDP) or HOST:PORT/PORT (UDP, TLS). Raises: CommandLineError."""
    found = _WORDS.match(words)
    ports = [int(found[each] or 0) for each in ("port", "tls")] if found is not None else []
    if found is None or max(ports) > 65535:
        raise CommandLineError(
            f"netcheck --relay {words}: not a relay as 203.0.113.9, relay.example:7471 or "
            "[2001:db8::9]:7471/443 (its UDP port, and that for TLS)"
        )
    udp_port, tls_port = ports[0] or RELAY_PORT, ports[1] or RELAY_TLS_PORT
    return NetcheckTarget(ObserverKind.RELAY, found["host"].strip("[]"), udp_port, tls_port)


async def resolve(target: NetcheckTarget) -> list[Observer]:
    """One for each IP version that its name has. Raises: OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(target.host, None, type=socket.SOCK_DGRAM)
    by_version: dict[int, Address] = {}
    for *_, where in found:
        address = ip_address(str(where[0]).partition("%")[0])
        by_version.setdefault(address.version, address)
    return [Observer(target, by_version[version]) for version in sorted(by_version)]
