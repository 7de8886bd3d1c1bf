"""The path to a peer that was proven, and what a plan has to know of the node itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from limpet.base.addresses import Address, Endpoint, Prefix, UnderlayLink, smallest_around
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
    """In clear: subnets of the node by which its ends were reached when it was proven, which tell
    that it is there still: what an end is in or, where routers are between, what the node's own
    address towards it is in. Empty: it was kept by a Limpet of before they were."""

    @property
    def ends(self) -> tuple[Endpoint, ...]:
        """Where its packets go on the underlay: address and UDP port, 0 where there is none in
        particular."""
        plain = (*self.next_hops, *filter(None, [self.underlay]))
        at = self.endpoint
        tunnel = (at,) if at is not None and not at[0].is_loopback else ()
        return (*((each, 0) for each in plain), *tunnel)

    def left_on(self, links: Collection[UnderlayLink]) -> PeerPath | None:
        """What of it leads to the peer where the node is now; None: nothing, it was moved.

        Without any link it is not known to be gone. Once the path's own link is, VXLAN goes by
        whatever link there is with the subnet.
        """
        if self.rung.encrypted:
            return self
        by = {link.ifname: {own.network for own in link.addresses} for link in links}
        if not links or not self.prefixes:
            stays = not self.device or self.device in by or self.underlay is None
            return self if stays else self._by_any_link()
        every = set[Prefix]().union(*by.values())
        on_link = by.get(self.device, set())
        next_hops = tuple(hop for hop in self.next_hops if self._is_by(hop, on_link))
        underlay = self.underlay if self._is_by(self.underlay, every) else None
        if (next_hops, underlay) == (self.next_hops, self.underlay):
            return self
        left = replace(self, next_hops=next_hops, underlay=underlay)
        if next_hops:
            ends = (*next_hops, underlay)
            needed = frozenset[Prefix]().union(*map(self._subnets_to, ends))
            return replace(left, prefixes=tuple(each for each in self.prefixes if each in needed))
        return left._by_any_link() if self.device and underlay is not None else None

    def _by_any_link(self) -> PeerPath:
        """Once it has no next hop."""
        needed = self._subnets_to(self.underlay)
        prefixes = tuple(each for each in self.prefixes if each in needed)
        return replace(
            self, rung=transports.VXLAN, device="", next_hops=(), prefixes=prefixes or self.prefixes
        )

    def _is_by(self, end: Address | None, subnets: Collection[Prefix]) -> bool:
        needed = self._subnets_to(end)
        return bool(needed) and needed.issubset(subnets)

    def _subnets_to(self, end: Address | None) -> frozenset[Prefix]:
        """Those of `prefixes` that the end was reached by."""
        same = [each for each in self.prefixes if end is not None and each.version == end.version]
        return frozenset(smallest_around(end, same) or same)


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
    """Subnets of the node's links to peers: no peer ever takes them over."""
    networks: tuple[Prefix, ...] = ()
    """Subnets of all its links, whatever they lead to: what is behind a peer takes over none."""
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
