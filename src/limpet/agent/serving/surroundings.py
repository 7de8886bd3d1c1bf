"""What the table of Services has to know of this node and of those around it."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address

from limpet.base.addresses import Address, Endpoint, Prefix
from limpet.base.node_state import NodeState
from limpet.cluster.membership import Membership
from limpet.datapath.services.apply import ServicesKernel
from limpet.datapath.services.state import Surroundings
from limpet.paths.prober import Prober


class ServiceSurroundings:
    """Asked often, so addresses of other nodes are those of the last look."""

    def __init__(
        self,
        membership: Membership,
        node: Callable[[], NodeState],
        probing: Prober,
        *,
        node_ports: tuple[Prefix, ...],
        names_at: tuple[Address, ...],
    ) -> None:
        """`node`: this node as it is now. `node_ports`: prefixes of its addresses at which ports of
        Services are served. `names_at`: where pods ask it for names."""
        self._node_ports = node_ports
        self._names_at = frozenset(names_at)
        self._membership = membership
        self._node = node
        self._probing = probing
        self._reached: frozenset[Endpoint] = frozenset()
        self.look()

    def look(self) -> None:
        """Others count where their signatures have answered: who could name any address would take
        Services' addresses away."""
        paths = self._probing.paths.values()
        self._reached = frozenset(end for path in paths for end in path.ends)

    def now(self) -> Surroundings:
        node, presence, network = self._node(), self._membership.presence, self._membership.network
        return Surroundings(
            pods=node.segments,
            cluster=node.cluster_cidrs,
            gateways=tuple(_gateways(node)),
            is_bridge_filtered=ServicesKernel.is_bridge_filtered(),
            node_ports=self._node_ports,
            reached=self._reached,
            own=frozenset(presence.addresses if presence is not None else ()),
            own_ports=node.own_ports,
            names_at=self._names_at,
            services=network.service_cidrs if network is not None else (),
        )


def _gateways(node: NodeState) -> list[Address]:
    """Addresses of this node among pods: one in the first segment of each IP version."""
    found: dict[int, Address] = {}
    for segment in node.segments:
        found.setdefault(segment.version, ip_address(int(segment.network_address) + 1))
    return list(found.values())
