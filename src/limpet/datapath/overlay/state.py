"""The network between nodes: how a peer is reached, what that takes, and what the kernel has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from limpet.base.addresses import Address, Prefix
from limpet.cluster.topology.view import VxlanDevice


class PeerRoute(NamedTuple):
    """A route of our table to what is reached through a peer; the next hop counts as on link."""

    prefix: Prefix
    device: str
    next_hop: Address | None
    """None only in an observed one."""
    source: Address | None
    """Our overlay address; None only in an observed one."""
    metric: int
    mtu_bytes: int


class Neighbour(NamedTuple):
    """Link-layer address of a peer's device, by an address that stands for the peer."""

    device: str
    address: Address
    mac: str
    permanent: bool = True


class FdbEntry(NamedTuple):
    """Underlay address of a peer's device."""

    device: str
    mac: str
    underlay: Address
    permanent: bool = True
    """False: an observed one that ages or has a port, VNI or link of its own."""


RouteKey = tuple[int, int, int, int]
"""IP version, network address, prefix length, metric. Source: fib_table_insert, fib6_add."""
NeighbourKey = tuple[str, int, int]
"""Device, IP version, address."""
FdbKey = tuple[str, str]
"""Device, MAC: a unicast MAC has one destination. Source: vxlan_fdb_update_existing."""
OverlayKey = RouteKey | NeighbourKey | FdbKey


@dataclass(frozen=True, slots=True)
class OverlayState:
    """What should be; as an observation, what is. Each object by what the kernel tells it by."""

    devices: Mapping[str, VxlanDevice] = field(default_factory=dict)
    routes: Mapping[RouteKey, PeerRoute] = field(default_factory=dict)
    neighbours: Mapping[NeighbourKey, Neighbour] = field(default_factory=dict)
    fdb: Mapping[FdbKey, FdbEntry] = field(default_factory=dict)
    loose_links: frozenset[str] = frozenset()
    """Links on which a packet need not come in where its answer would go out."""


class PeerPart(NamedTuple):
    """What one peer adds to the plan."""

    routes: tuple[PeerRoute, ...] = ()
    neighbours: tuple[Neighbour, ...] = ()
    fdb: tuple[FdbEntry, ...] = ()
    sources: tuple[Prefix, ...] = ()
    """Inner sources that are let in from the peer, on whatever rung: the ends may switch apart."""
    outer: tuple[Address, ...] = ()
    """Underlay addresses that its VXLAN packets may come from."""
    in_clear: bool = True
    """Its packets may come by plain links as well."""
    without: tuple[tuple[Prefix, str], ...] = ()
    """Prefixes of the peer that nothing is planned for, each with the reason."""
    refused: str = ""
    """Why the peer as a whole is not reached; empty: it is."""


@dataclass(frozen=True, slots=True)
class OverlayPlan:
    """The state that should be, and what each peer adds to it."""

    state: OverlayState = OverlayState()
    parts: Mapping[str, PeerPart] = field(default_factory=dict)
    """By the peer's uid."""
    contested: frozenset[OverlayKey] = frozenset()
    """What several peers want differently; the one of the lowest uid has it."""


@dataclass(frozen=True, slots=True)
class Touched:
    """Keys that a change of the plan may have changed."""

    routes: frozenset[RouteKey] = frozenset()
    neighbours: frozenset[NeighbourKey] = frozenset()
    fdb: frozenset[FdbKey] = frozenset()
