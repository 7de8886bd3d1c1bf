"""The network between nodes: how a peer is reached, what that takes, and what the kernel has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from limpet.base.addresses import Address, Endpoint, Prefix
from limpet.cluster.topology.view import VxlanDevice

Key = tuple[int | str, ...]
"""What the kernel tells an entry by: its kind, then numbers and names of that kind.

In their order each entry comes after those that it leads to.
"""
FDB, NEIGHBOUR, ROUTE = range(3)
UNICAST_MAC = re.compile(r"(?!(00:){5}00)[0-9a-f][02468ace](:[0-9a-f]{2}){5}")
"""What a device takes: an entry for no MAC or a multicast one would draw other peers' packets."""


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

    @property
    def key(self) -> Key:
        """Source: fib_table_insert, fib6_add."""
        prefix = self.prefix
        network = int(prefix.network_address)
        return ROUTE, prefix.version, network, prefix.prefixlen, self.metric


class Neighbour(NamedTuple):
    """Link-layer address of a peer's device, by an address that stands for the peer."""

    device: str
    address: Address
    mac: str
    permanent: bool = True

    @property
    def key(self) -> Key:
        return NEIGHBOUR, self.device, self.address.version, int(self.address)


class FdbEntry(NamedTuple):
    """Underlay address of a peer's device."""

    device: str
    mac: str
    underlay: Address
    permanent: bool = True
    """False: an observed one that ages or has a port, VNI or link of its own."""

    @property
    def key(self) -> Key:
        """A unicast MAC has one destination. Source: vxlan_fdb_update_existing."""
        return FDB, self.device, self.mac


Entry = PeerRoute | Neighbour | FdbEntry


@dataclass(frozen=True, slots=True)
class OverlayState:
    """What should be; as an observation, what is. Each object by what the kernel tells it by."""

    devices: Mapping[str, VxlanDevice] = field(default_factory=dict)
    entries: Mapping[Key, Entry] = field(default_factory=dict)
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
    claims: str = ""
    """What of another's it announces as its own; empty: nothing that counts."""
    addresses: tuple[Address, ...] = ()
    """Underlay addresses where it hears VXLAN and the exchange: our pods have no business there."""
    tunnel_ends: tuple[Endpoint, ...] = ()
    """Where it hears tunnels' packets and our probes: no more are they our pods' business."""

    @property
    def entries(self) -> tuple[Entry, ...]:
        return self.fdb + self.neighbours + self.routes


@dataclass(frozen=True, slots=True)
class OverlayPlan:
    """The state that should be, and what each peer adds to it."""

    state: OverlayState = OverlayState()
    parts: Mapping[str, PeerPart] = field(default_factory=dict)
    """By the peer's uid."""
    contested: frozenset[Key] = frozenset()
    """What several peers want."""
    lost: Mapping[str, PeerPart] = field(default_factory=dict)
    """What those peers would add who have lost something to others, by uid."""
    claims: Mapping[str, str] = field(default_factory=dict)
    """`PeerPart.claims` of all that have any, by uid."""
