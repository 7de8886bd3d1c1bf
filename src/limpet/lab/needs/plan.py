"""Topology -> what it needs of the machine, and which pairs of nodes need it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import combinations

from limpet.base.addresses import is_private
from limpet.cluster.topology.transports import ROUTE, TUNNEL, VXLAN, Transport
from limpet.lab.topology import Topology
from limpet.lab.world.site import LabSite, Nat, SiteNode

Pair = tuple[str, str]
"""Names of two nodes."""


class NeedKind(Enum):
    """What may be needed."""

    PROGRAM = "program"
    KERNEL = "kernel"
    """What every node needs of the kernel for pods of its own."""
    VXLAN = "vxlan"
    BRIDGE_FILTER = "bridge-filter"
    """Rules on what passes a switch."""
    LATE_LINK = "late-link"
    """The kernel's netem, or ethtool for the process that takes its place."""
    WIREGUARD = "wireguard"
    IPSEC = "ipsec"
    KUBERNETES = "kubernetes"


@dataclass(frozen=True, slots=True)
class Need:
    """Something that a world cannot be built without, or in which nodes would not reach others."""

    kind: NeedKind
    used_for: str
    program: str = ""
    """Name of the program, for the kind PROGRAM."""
    pairs: tuple[Pair, ...] = ()
    """Pairs that have no other way; empty: it is not about pairs."""


_PROGRAMS = {
    "ip": "links, addresses and routes",
    "nft": "routers, NATs and cuts",
    "nsenter": "what runs in the namespaces",
}


def needs_of(topology: Topology) -> tuple[Need, ...]:
    """All that `topology` needs, what concerns everything first."""
    return tuple(_needs(topology))


def needs_ipv6(topology: Topology) -> bool:
    """Whether its machines or pods have addresses of IPv6."""
    sites = (topology.cloud, *topology.sites)
    of_pods = topology.controller.get("pod_cidrs")  # by default of both versions
    return (
        of_pods is None
        or any(":" in str(each) for each in of_pods)
        or any(prefix.version == 6 for site in sites for prefix in site.lan)
    )


def _needs(topology: Topology) -> Iterator[Need]:
    for program, used_for in _PROGRAMS.items():
        yield Need(NeedKind.PROGRAM, used_for, program)
    if topology.disk_mib:
        yield Need(NeedKind.PROGRAM, "disks of the nodes", "mount")
    yield Need(NeedKind.KERNEL, "nodes and pods")
    links = [site.uplink for site in topology.sites]
    if any(each.rate_mbit or each.is_late for each in links):
        yield Need(NeedKind.PROGRAM, "rates and delays of links (rate_mbit, delay_ms)", "tc")
    if late := [site.name for site in topology.sites if site.uplink.is_late]:
        yield Need(NeedKind.LATE_LINK, f"delay_ms and loss_percent of {', '.join(late)}")
    if guarded := [site.name for site in topology.sites if site.drops_unknown_sources]:
        yield Need(NeedKind.BRIDGE_FILTER, f"drops_unknown_sources of {', '.join(guarded)}")
    ways = list(_first_ways(topology))
    if pairs := _pairs_by(VXLAN, ways):
        yield Need(NeedKind.VXLAN, "the way between nodes", pairs=pairs)
    if pairs := _pairs_by(TUNNEL, ways):
        yield Need(NeedKind.WIREGUARD, "encrypted tunnels between nodes", pairs=pairs)
    if topology.ipsec:
        yield Need(NeedKind.IPSEC, "tunnels by IPsec (ipsec = true)", pairs=_pairs_by(TUNNEL, ways))
    if topology.kubernetes:
        yield Need(NeedKind.KUBERNETES, "its control plane and its kubelets (kubernetes = true)")


def _pairs_by(rung: Transport, ways: Iterable[tuple[Pair, Transport]]) -> tuple[Pair, ...]:
    return tuple(pair for pair, found in ways if found is rung)


def _first_ways(topology: Topology) -> Iterator[tuple[Pair, Transport]]:
    for (site, node), (other_site, other_node) in combinations(topology.nodes, 2):
        yield (node.name, other_node.name), first_rung((site, node), (other_site, other_node))


def first_rung(one: tuple[LabSite, SiteNode], other: tuple[LabSite, SiteNode]) -> Transport:
    """The best row of the table by which two nodes can reach each other where they stand, with
    what a new cluster encrypts. What stands below it in the table needs the same of the machine:
    a relay takes a tunnel's packets.
    """
    (site, _), (other_site, _) = one, other
    if site.name == other_site.name:
        return VXLAN if site.drops_unknown_sources else ROUTE
    if any(each.nat is not Nat.NONE or each.udp_blocked for each in (site, other_site)):
        return TUNNEL
    shared = _private_versions(site) & _private_versions(other_site)
    return VXLAN if shared else TUNNEL


def _private_versions(site: LabSite) -> set[int]:
    """IP versions in which what a LAN sends to another private one may go in clear."""
    return {each.version for each in site.lan if is_private(each.network_address)}
