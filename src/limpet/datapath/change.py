"""Changes of what the kernel holds: something is put, or goes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from limpet.base.addresses import InterfaceAddress

What = TypeVar("What", covariant=True)


@dataclass(frozen=True, slots=True)
class Put(Generic[What]):
    """It shall be there as it is said here, whatever was in its place."""

    what: What


@dataclass(frozen=True, slots=True)
class Drop(Generic[What]):
    """It shall not be there. Drops wait until all parts of a round have put what they put."""

    what: What


class LinkAddress(NamedTuple):
    """An address on a link."""

    ifname: str
    address: InterfaceAddress


def on_link(ifname: str, addresses: Iterable[InterfaceAddress]) -> list[LinkAddress]:
    """In one order: those of IPv4 first."""
    ordered = sorted(addresses, key=lambda address: (address.version, int(address)))
    return [LinkAddress(ifname, address) for address in ordered]
