"""Links of the node: those that lead to other nodes, and what their names may be."""

from __future__ import annotations

import re
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


def is_plain_name(ifname: str) -> bool:
    """It means itself in nft's syntax, which knows wildcards and no escapes."""
    return re.fullmatch(r"[A-Za-z0-9_.-]+", ifname) is not None
