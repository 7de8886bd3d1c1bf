"""What makes the tunnel between two nodes."""

from __future__ import annotations

from limpet.cluster.kinds.grant import Grant
from limpet.cluster.kinds.network import Network, TunnelBackend


def backends_of(network: Network | None) -> frozenset[TunnelBackend]:
    """Those that some pair of nodes may have."""
    if network is None:
        return frozenset({TunnelBackend.WIREGUARD})
    return frozenset({network.tunnel_backend, *network.community_backends.values()})


def backend_between(network: Network, one: Grant, other: Grant) -> TunnelBackend:
    """The same for both ends: that of the first community by name that they share and that has
    one, else the network's."""
    for name in sorted(set(one.communities).intersection(other.communities)):
        if name in network.community_backends:
            return network.community_backends[name]
    return network.tunnel_backend
