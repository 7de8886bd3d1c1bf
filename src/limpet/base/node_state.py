"""What was granted to a node or found out by it: nobody wrote it, and it changes."""

from __future__ import annotations

from dataclasses import dataclass

from limpet.base.addresses import Prefix


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
    udp_ports: tuple[int, ...] = ()
    """Where other nodes send to this one; no hostPort takes these."""
