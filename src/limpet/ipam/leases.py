"""What the address ledger gives out of, and what it keeps: who holds an address, and for whom."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple

from limpet.base.addresses import Address, InterfaceAddress, Prefix


@dataclass(frozen=True, slots=True)
class PodKey:
    """Who an address is kept for, within one network. Empty namespace and pod: nobody."""

    namespace: str
    pod: str
    ifname: str


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds an address now. Source: host-local's reservations: container id, CR LF, ifname."""

    container_id: str
    ifname: str


_IPV6 = 1 << 128


def number_of(address: Address) -> int:
    """`address` as an integer that is unique over both families, and ordered within each."""
    return int(address) + (_IPV6 if address.version == 6 else 0)


def address_of(number: int) -> Address:
    return IPv6Address(number - _IPV6) if number >= _IPV6 else IPv4Address(number)


@dataclass(frozen=True, slots=True)
class Binding:
    """An address is kept for the pod `key`."""

    key: PodKey
    """`ifname` is empty in a binding left by another program: its interface is not known."""
    order: int
    """Counts the uses of all addresses of a ledger: the higher, the later this one was in use."""
    container_id: str = ""
    """The pod's last sandbox. Who holds the address under another id is not known to be the pod."""
    joined: bool = False
    """True: `key.pod` is `<namespace>-<pod>`, spelled so that the two cannot be told apart."""

    def may_be_of(self, namespace: str, pod: str) -> bool:
        """Whether an interface of that pod would get the address."""
        if self.joined:
            return self.key.pod == f"{namespace}-{pod}"
        return (self.key.namespace, self.key.pod) == (namespace, pod)


class Entry(NamedTuple):
    """The state of one address. A binding outlives its holders."""

    holder: Holder | None
    binding: Binding | None


FREE = Entry(None, None)


@dataclass(frozen=True, slots=True)
class AddressLease:
    """One address given: with the length of its subnet, and the subnet's gateway."""

    address: InterfaceAddress
    gateway: Address


@dataclass(frozen=True, slots=True)
class Reservation:
    """What a reservation gave: one lease for each range set, in their order."""

    leases: tuple[AddressLease, ...]
    evicted: tuple[Holder, ...] = ()
    """Older sandboxes of the pod that have lost these addresses: their interfaces must go first."""
    restored: bool = False
    """True: every address is one that the pod, or this very holder, had before."""


class AddressState(Enum):
    LIVE = "live"
    """A container holds it."""
    BOUND = "bound"
    """Kept for an absent pod."""
    RESTING = "resting"
    """Released a moment ago; given out again only when nothing else is free."""


@dataclass(frozen=True, slots=True)
class AddressRecord:
    """One line of `limpet ipam list`. `order` is 0 for an address that is kept for nobody."""

    address: Address
    state: AddressState
    holder: Holder | None
    key: PodKey | None
    order: int


@dataclass(frozen=True, slots=True)
class Usage:
    """Addresses of one range set. `bound` ones are absent pods' and are given up in need."""

    total: int
    live: int
    resting: int
    bound: int


@dataclass(frozen=True, slots=True)
class FileFinding:
    """Something about a file that a person should know: what is wrong, and what to do."""

    path: str
    problem: str
    action: str

    def __str__(self) -> str:
        return f"{self.path}: {self.problem} ({self.action})"


@dataclass(frozen=True, slots=True)
class Range:
    """One entry of host-local's `ranges`: bounds inclusive, the gateway never given."""

    subnet: Prefix
    range_start: Address
    range_end: Address
    gateway: Address


RangeSet = tuple[Range, ...]
"""Ranges of one family; one address is given out of each set."""


def segment_range(segment: Prefix) -> Range:
    """A whole segment: first usable address is the gateway's, network and broadcast left out.

    A segment has at least four addresses.
    """
    last = segment[-2] if segment.version == 4 else segment[-1]
    return Range(subnet=segment, range_start=segment[1], range_end=last, gateway=segment[1])


def segment_range_sets(segments: Iterable[Prefix]) -> tuple[RangeSet, ...]:
    """The segments as one range set for each family that they have."""
    held = tuple(segments)
    return tuple(
        tuple(segment_range(segment) for segment in held if segment.version == version)
        for version in (4, 6)
        if any(segment.version == version for segment in held)
    )
