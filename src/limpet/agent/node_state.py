"""What the node is in its cluster, put together and told to the reconciler of its pods."""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from limpet.agent.routed_prefixes import RoutedPrefixes
from limpet.agent.settings import Settings
from limpet.base.addresses import Prefix, UnderlayLink
from limpet.base.node_state import NodeState, PortRange
from limpet.base.ownership import IPSEC_IFNAME, VXLAN_IFNAME_PREFIX
from limpet.base.settings import PeerSettings, RelaySettings, TunnelSettings
from limpet.cluster.kinds.grant import Role
from limpet.cluster.membership import Membership, News
from limpet.datapath.node.part import NodePart

_log = structlog.get_logger("cluster")


class NodeInCluster:
    """Runs on the event loop. A new state is followed by a round of pods."""

    def __init__(
        self,
        membership: Membership,
        settings: Settings,
        node_part: NodePart,
        segments: tuple[Prefix, ...],
    ) -> None:
        """`segments`: of this node, as they are planned at first."""
        self._membership = membership
        self._configured_cidrs = settings.pods.cluster_cidrs
        self._overlay_links = overlay_links(settings.tunnel)
        self._peers = settings.peers
        self._relay = settings.relay
        self._node_part = node_part
        self._routed = RoutedPrefixes(membership)
        self._segments = segments
        self._removed = membership.removed
        self._mtu_bytes: int | None = None
        node_part.follow(self._state())

    def hear(self, news: News) -> None:
        if self._routed.hear(news):
            self._follow("the networks behind nodes changed")
        if not news.network and self._membership.uid not in news.uids:
            return
        if self._removed == self._membership.removed:
            self._follow("the ports of this node, or the cluster's network, changed")
            return
        self._removed = self._membership.removed
        self._follow("this node was removed, or never was")
        if self._removed:
            _log.error(
                "this node was removed from the cluster: it reaches no other node any more",
                what_to_do="`limpet join --new-identity` with a new token, if it should be there",
            )

    def set_links(self, links: tuple[UnderlayLink, ...]) -> None:
        self._mtu_bytes = min((link.mtu_bytes for link in links), default=None)
        self._follow("the links to other nodes changed")

    def set_networks(self, networks: tuple[Prefix, ...]) -> None:
        """The machine is in these subnets."""
        if self._routed.set_networks(networks):
            self._follow("the networks behind nodes changed")

    def set_segments(self, segments: tuple[Prefix, ...]) -> None:
        """Pods get addresses of these from now on."""
        if segments != self._segments:
            self._segments = segments
            _log.info("segments of this node", segments=" ".join(map(str, segments)) or "none")
        self._follow("the node's segments changed")

    def _follow(self, why: str) -> None:
        self._node_part.follow(self._state(), why)

    def _state(self) -> NodeState:
        network = self._membership.network
        presence, grant = self._membership.presence, self._membership.grant
        cidrs = network.pod_cidrs if network is not None else ()
        told = (
            network.vxlan_port if network is not None else 0,
            presence.tunnel_port if presence is not None else 0,
        )
        is_relay = grant is not None and Role.RELAY in grant.roles
        return NodeState(
            segments=() if self._membership.removed else self._segments,
            cluster_cidrs=tuple(dict.fromkeys((*self._configured_cidrs, *cidrs))),
            behind=self._routed.networks,
            in_cluster=True,
            underlay_mtu_bytes=self._mtu_bytes,
            overlay_links=self._overlay_links,
            own_ports=own_ports(self._peers, self._relay if is_relay else None, told),
        )


def own_ports(
    peers: PeerSettings, relay: RelaySettings | None, told: Iterable[int]
) -> frozenset[PortRange]:
    """Those that other nodes, and relays' clients, know a node by. `relay`: of one that is.
    `told`: its UDP ports that the cluster says, those of VXLAN and tunnels; 0 counts for none."""
    ports = {("UDP", port, port) for port in (peers.port, *told) if port}
    if relay is not None:
        ports.add(("UDP", *relay.ports))
        ports |= {("TCP", port, port) for _, port in relay.tls_listen}
    return frozenset(ports)


def overlay_links(tunnel: TunnelSettings) -> frozenset[str]:
    """Names of all devices by which packets come from peers, whether they are there now or not."""
    vxlan = (f"{VXLAN_IFNAME_PREFIX}{version}" for version in (4, 6))
    return frozenset((*vxlan, tunnel.ifname, IPSEC_IFNAME))
