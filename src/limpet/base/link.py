"""Links of a node: those that lead to other nodes, and what a link can be named."""

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


def ifname_problem(name: str) -> str | None:
    """Why `name` cannot name a network interface. Source: SPEC.md; dev_valid_name() in Linux."""
    if len(name.encode()) > 15:
        return "is longer than the 15 bytes of an interface name"
    if name in (".", "..") or any(c in "/:\0" or c.isspace() for c in name):
        return "is not an interface name (., .., /, : and white space are not allowed)"
    if "%" in name:  # the kernel takes it for a pattern and would choose another name
        return "is not an interface name that can be set as it is (%)"
    return None
