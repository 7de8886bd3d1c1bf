"""A link of the node that leads to other nodes."""

from __future__ import annotations

from dataclasses import dataclass

from limpet.base.addresses import InterfaceAddress


@dataclass(frozen=True, slots=True)
class UnderlayLink:
    """A link of the node that leads to other nodes."""

    ifname: str
    ifindex: int
    mac: str
    mtu_bytes: int
    addresses: tuple[InterfaceAddress, ...]
    """Global ones, with the prefix length of their subnet."""
