"""The network between nodes: how a peer is reached, what that takes, and what the kernel has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from limpet.model.network import Address, InterfaceAddress, Prefix
from limpet.model.tunnel import NAT_TIMEOUT_S

VXLAN_OVERHEAD_BYTES = {4: 50, 6: 70}
"""Outer IP, UDP, VXLAN and inner Ethernet headers, by IP version of the underlay."""
MIN_MTU_BYTES = {4: 68, 6: 1280}
"""Below it the kernel takes the IP version off a link. Source: net/ipv4/devinet.c, RFC 8200."""


class Rung(Enum):
    """How packets for a peer travel."""

    ROUTE = "route"
    """Plainly, to the peer's address on a link that both are on."""
    VXLAN = "vxlan"
    TUNNEL = "tunnel"
    """Encrypted, straight to the peer's tunnel, through whatever NATs."""
    RELAY = "relay"
    """The same encrypted packets, forwarded by a node that cannot read them."""
    RELAY_TLS = "relay-tls"
    """The same in a TLS connection to the relay, where UDP does not get through."""


TUNNELLED = frozenset({Rung.TUNNEL, Rung.RELAY, Rung.RELAY_TLS})
"""Rungs that go through the node's tunnel device."""


@dataclass(frozen=True, slots=True)
class PeerPath:
    """A way to a peer that was proven; a peer without one is not reached."""

    rung: Rung
    mtu_bytes: int = 1500
    """Of the underlay: the smallest link on the way, as far as known."""
    device: str = ""
    """Route: the link that both are on."""
    next_hops: tuple[Address, ...] = ()
    """Route: the peer's addresses on that link; IPv6 segments need one of IPv6."""
    underlay: Address | None = None
    """VXLAN: where the peer's packets are sent; also for what the route has no next hop for."""
    endpoint: tuple[Address, int] | None = None
    """Tunnelled: address and UDP port that the tunnel's packets are sent to: of the peer, of the
    relay, or on loopback, where the agent passes them into a TLS connection."""
    relay: str = ""
    """Uid of the relay."""


@dataclass(frozen=True, slots=True)
class UnderlayLink:
    """A link of the node that leads to other nodes."""

    ifname: str
    ifindex: int
    mac: str
    mtu_bytes: int
    addresses: tuple[InterfaceAddress, ...]
    """Global ones, with the prefix length of their subnet."""


@dataclass(frozen=True, slots=True)
class OwnSide:
    """What the plan has to know of the node itself beside its grant."""

    vtep_macs: Mapping[int, str] = field(default_factory=dict)
    """MAC of the VXLAN device by IP version of the underlay; a version that is absent has none."""
    link_mtu_bytes: int = 1500
    """Of the largest link that leads to peers; the VXLAN devices' MTU comes of it."""
    links: frozenset[str] = frozenset()
    """Links that peers' packets may come in by; those must not be filtered by reverse path."""
    link_prefixes: tuple[Prefix, ...] = ()
    """Subnets of the node's links: what is behind a peer never takes them over."""
    nat_timeout_s: int = NAT_TIMEOUT_S
    """Seconds of silence after which NATs on the node's way forget UDP."""
    tunnel: str = ""
    """Name of WireGuard's device; empty: the node can have none, or the cluster names no such."""
    ipsec: str = ""
    """Of IPsec's, the same."""


@dataclass(frozen=True, slots=True)
class VxlanDevice:
    """A VXLAN device with entries that are programmed, none learnt, and no link of its own."""

    ifname: str
    underlay_version: int
    vni: int
    port: int
    mac: str
    mtu_bytes: int
    addresses: frozenset[InterfaceAddress] = frozenset()
    """/32 and /128."""
    up: bool = True
    plain: bool = True
    """False: an observed one that learns, hangs on a link or has a peer of its own."""
    ours: bool = True
    """False: an observed one that somebody else made; it is never touched."""


@dataclass(frozen=True, slots=True)
class PeerRoute:
    """A route of our table to what is reached through a peer; the next hop counts as on link."""

    prefix: Prefix
    device: str
    next_hop: Address | None
    """None only in an observed one."""
    source: Address | None
    """Our overlay address; None only in an observed one."""
    metric: int
    mtu_bytes: int


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Link-layer address of a peer's device, by an address that stands for the peer."""

    device: str
    address: Address
    mac: str
    permanent: bool = True


@dataclass(frozen=True, slots=True)
class FdbEntry:
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


@dataclass(frozen=True, slots=True)
class PeerPart:
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
