"""The path to a peer that was proven, and what a plan has to know of the node itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from limpet.base.addresses import Address, Endpoint, Prefix, UnderlayLink
from limpet.base.settings import NAT_TIMEOUT_S
from limpet.cluster.topology import transports


@dataclass(frozen=True, slots=True)
class PeerPath:
    """A way to a peer that was proven; a peer without one is not reached."""

    rung: transports.Transport
    mtu_bytes: int = 1500
    """MTU of the underlay: of the smallest link on the way, as far as known."""
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
    prefixes: tuple[Prefix, ...] = ()
    """In clear: subnets of the link that it was proven by, which tell that it is there still;
    empty: it was kept by a Limpet of before they were."""

    def is_here(self, links: Collection[UnderlayLink]) -> bool:
        """Whether the node is where it was proven. Without any link it is not known to be gone."""
        if self.rung.encrypted or not self.prefixes or not links:
            return True
        return {
            own.network
            for link in links
            if self.device in ("", link.ifname)
            for own in link.addresses
        }.issuperset(self.prefixes)


@dataclass(frozen=True, slots=True)
class OwnSide:
    """What the plan has to know of the node itself beside its grant."""

    vtep_macs: Mapping[int, str] = field(default_factory=dict)
    """MAC of the VXLAN device by IP version of the underlay; a version that is absent has none."""
    link_mtu_bytes: int = 1500
    """MTU of the largest link that leads to peers; the VXLAN devices' MTU comes of it."""
    links: frozenset[str] = frozenset()
    """Links that peers' packets may come in by; those must not be filtered by reverse path."""
    link_prefixes: tuple[Prefix, ...] = ()
    """Subnets of the node's links: what is behind a peer never takes them over."""
    nat_timeout_s: int = NAT_TIMEOUT_S
    """Seconds of silence after which NATs on the node's way forget UDP."""
    tunnel: str = ""
    """Name of WireGuard's device; empty: the node can have none, or the cluster names no such."""
    ipsec: str = ""
    """Name of IPsec's device; empty: as with `tunnel`."""
    open_links: frozenset[str] = frozenset()
    """Links by which strangers' packets may come in, whether peers are there or not."""


@dataclass(frozen=True, slots=True)
class RelayEnd:
    """Where this node sends what a relay is to bring to one peer."""

    relay: str
    """Uid of the relay."""
    endpoint: Endpoint
    """Endpoint of the relay, or on loopback, where it is passed into a TLS connection."""
    rung: transports.Transport = transports.RELAY
    rtt_s: float = 0.0
    """Round trip to the relay."""
