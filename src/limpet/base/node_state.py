"""What was granted to a node or found out by it: nobody wrote it, and it changes."""

from __future__ import annotations

from dataclasses import dataclass

from limpet.base.addresses import Prefix

PortRange = tuple[str, int, int]
"""Protocol as in a Service, first and last port."""

PORTS_OF_A_NODE: frozenset[PortRange] = frozenset(
    {
        ("TCP", 22, 22),
        ("TCP", 2379, 2380),  # etcd
        ("TCP", 6443, 6443),  # an API server
        ("TCP", 7470, 7470),  # a controller, by which nodes are told anything
        ("TCP", 10248, 10259),  # kubelet and its neighbours
        ("UDP", 8472, 8472),  # VXLAN
    }
)
"""Without which a node cannot be reached, or loses its pods. Source of Kubernetes' own:
kubernetes.io/docs/reference/networking/ports-and-protocols."""


@dataclass(frozen=True, slots=True)
class RoutedNetworks:
    """Other networks that pods reach with their own addresses; each prefix once, in order."""

    peers: tuple[Prefix, ...] = ()
    """Prefixes behind other nodes."""
    here: tuple[Prefix, ...] = ()
    """Prefixes behind this node."""
    barriers: tuple[Prefix, ...] = ()
    """Those of `peers` that are unreachable without a path."""


@dataclass(frozen=True, slots=True)
class NodeState:
    """What a node is now; a change is a new value that is told to whoever plans by it."""

    segments: tuple[Prefix, ...] = ()
    """Prefixes of pod addresses; the gateway of each is its first usable address."""
    cluster_cidrs: tuple[Prefix, ...] = ()
    """Prefixes of all pods of the cluster: never masqueraded, unreachable without a path."""
    behind: RoutedNetworks = RoutedNetworks()
    in_cluster: bool = False
    """The bridge of the segments is wanted without pods: it has the overlay address."""
    underlay_mtu_bytes: int | None = None
    """MTU of the links to other nodes; None: the links with a default route count."""
    overlay_links: frozenset[str] = frozenset()
    """Names of the devices by which packets of other nodes come, besides the links."""
    own_ports: frozenset[PortRange] = frozenset()
    """Where other nodes, and a relay's clients, send to this one: beside `PORTS_OF_A_NODE` what no
    hostPort and no Service's externalIPs take."""
