"""What the table of Services holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from limpet.base.addresses import Address, Endpoint, Prefix
from limpet.base.node_state import PortRange

VERSIONS = (4, 6)
PROTOCOLS = ("TCP", "UDP", "SCTP")
MAPS = tuple(
    f"{name}{version}"
    for version in VERSIONS
    for name in (
        *("services", "node_ports", "sticky", "sticky_ports", "hairpin", "addresses"),
        *(f"{kind}_{each.lower()}_" for kind in ("slots", "node_slots") for each in PROTOCOLS),
    )
)
"""Maps whose elements are planned; those of `affinity_…` are put there by packets."""
PREFIX_NAMES = ("cluster", "pods", "ranges", "spared")
PREFIX_SETS = tuple(f"{name}{version}" for name in PREFIX_NAMES for version in VERSIONS)

Elements = Mapping[str, Mapping[bytes, bytes]]
"""By name of the map: values by key, as the kernel holds them (`linux.netlink.set_codec`)."""

AskedKey = tuple[int, bytes]
"""IP version, and the key in the maps of what is asked for."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the table has to know of the node's pods."""

    pods: tuple[Prefix, ...] = ()
    """Prefixes of this node's pods."""
    cluster: tuple[Prefix, ...] = ()
    """Prefixes of pods anywhere: they reach each other with their own addresses."""
    gateways: tuple[Address, ...] = ()
    """Addresses that others' pods know this node by; one for each IP version that it has."""
    is_bridge_filtered: bool = False
    """What bridges hand from pod to pod passes nftables too (br_netfilter)."""
    node_ports: tuple[Prefix, ...] = ()
    """Addresses of this node with ports of Services; none of an IP version: all of it but
    loopback's."""
    reached: frozenset[Endpoint] = frozenset()
    """Where packets for other nodes go by whatever way, their relays too: address and UDP port, 0
    where there is none in particular. Ports that nodes need are theirs at these addresses."""
    own: frozenset[Address] = frozenset()
    """Addresses of this node, which Services may have from outside ..."""
    own_ports: frozenset[PortRange] = frozenset()
    """... but for these ports."""
    lent: frozenset[Address] = frozenset()
    """Addresses of this node that may be there for a load balancer, at every port."""
    names_at: frozenset[Address] = frozenset()
    """Where pods ask this node for names."""
    services: tuple[Prefix, ...] = ()
    """Prefixes of cluster addresses, as a person has said them: they may be wrong."""
    links: frozenset[Prefix] = frozenset()
    """Subnets that this node's links are in."""

    @property
    def nodes(self) -> frozenset[Address]:
        """Addresses of other nodes. A packet for an external one of a Service that is one of these
        goes there: that node serves it."""
        return frozenset(address for address, port in self.reached if not port)


@dataclass(frozen=True, slots=True)
class ServicesState:
    """The table and maps of Services as they should be, or are."""

    base: str = ""
    """Text of what is always the same; of the kernel: empty if it is not as it was put."""
    surroundings: str = ""
    """Text of what follows from the node's pods."""
    chains: Mapping[str, str] = field(default_factory=dict)
    """Rules by name of the chain; more than are needed do no harm."""
    elements: Elements = field(default_factory=dict)
    sockets: Elements = field(default_factory=dict)
    """Elements of the eBPF programs' maps; none where nftables serves alone."""


@dataclass(frozen=True, slots=True)
class StaleFlows:
    """Flows that would stick to who serves no more, and clients that would come back."""

    udp: Mapping[tuple[bytes, int], frozenset[tuple[bytes, int]]] = field(default_factory=dict)
    """By address (empty: of the node) and port that are asked for: who serves there now."""
    tcp: Mapping[tuple[bytes, int], frozenset[tuple[bytes, int]]] = field(default_factory=dict)
    """The same; only of connections that were not answered yet."""
    dead: Mapping[tuple[bytes, int], frozenset[tuple[bytes, int]]] = field(default_factory=dict)
    """By cluster address and port of TCP: who serves there no more and is not expected to answer;
    without those that merely others are nearer than, or that end in order."""
    left: Mapping[AskedKey, frozenset[bytes]] = field(default_factory=dict)
    """By what is asked for, at Services with affinity: targets that they have there no more, as
    values of maps."""
    kept: Mapping[AskedKey, frozenset[bytes]] | None = None
    """All that they have there, where clients may be remembered with others; None: none are."""

    def __bool__(self) -> bool:
        return bool(self.udp or self.tcp or self.left) or self.kept is not None
