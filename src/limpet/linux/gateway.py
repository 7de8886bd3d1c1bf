"""The node's way out, as the kernel's main table has it."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from ipaddress import IPv4Address

from limpet.linux.netlink import route_codec
from limpet.linux.netlink.socket import RouteSocket


@dataclass(frozen=True, slots=True)
class Gateway:
    address: IPv4Address
    ifindex: int


def default_gateway() -> Gateway | None:
    """Of IPv4, by the default route that counts; in the namespace of the thread.

    Raises: KernelError.
    """
    with RouteSocket() as route:
        found = [
            info
            for info in route.routes()
            if info.family == socket.AF_INET
            and info.table == route_codec.RT_TABLE_MAIN
            and info.prefix_length == 0
            and len(info.gateway) == 4
        ]
    best = min(found, key=lambda info: info.metric, default=None)
    return Gateway(IPv4Address(best.gateway), best.ifindex) if best is not None else None
