"""What decides which ways to a peer may be proven, of all that is known of it and of us. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from limpet.base.addresses import Address, Endpoint, UnderlayLink
from limpet.base.bounds.neighbours import TUNNEL_HEARD_AT
from limpet.cluster.kinds.network import Encryption, Network
from limpet.cluster.kinds.presence import Presence
from limpet.cluster.nodes import NodeEntry
from limpet.cluster.topology.paths import PeerPath, RelayEnd
from limpet.cluster.topology.transports import VXLAN, devices_of
from limpet.cluster.topology.view import View
from limpet.paths.ladder.candidates import CandidateFacts, tunnel_endpoints, usable

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Learnt:
    """What a peer's presence does not say."""

    heard: Endpoint | None = None
    """Endpoint that it wrote from, when its presence did not name the address."""
    tunnel_heard: tuple[Endpoint, ...] = ()
    """Endpoints that its tunnel wrote from, the newest first."""
    relay_ends: tuple[RelayEnd, ...] = ()

    def with_tunnel_heard(self, end: Endpoint) -> Learnt:
        """Its tunnel writes from there, too."""
        ends = (end, *self.tunnel_heard)[: TUNNEL_HEARD_AT.most]
        return replace(self, tunnel_heard=ends)


@dataclass(slots=True, eq=False)
class OwnEnds:
    """What of this node decides what may be proven, beside what its presence says."""

    port: int
    """Port of a peer that tells none: our own."""
    links: tuple[UnderlayLink, ...] = ()
    """Links that lead to peers."""
    ipv6_last: bool = False
    """Our tunnel is at its best with endpoints of IPv4 (`candidates.nearness`)."""
    _shared: dict[Any, Any] = field(default_factory=dict)

    def facts(
        self, view: View, entry: NodeEntry, own: Presence | None, learnt: Learnt
    ) -> CandidateFacts:
        """Facts of a peer. `own`: this node's presence."""
        presence, network = entry.presence, view.network
        devices = devices_of(own) if own is not None else frozenset()
        theirs = {prefix.version for prefix in view.segments.get(entry.grant.uid, ())}
        addresses = self._nodes_own(network, presence) if presence is not None else ()
        heard = learnt.heard
        endpoints: tuple[Endpoint, ...] = ()
        tunnel = bool(own and own.tunnel_port and presence and presence.tunnel_port)
        if tunnel and presence is not None:
            endpoints = tunnel_endpoints(
                presence,
                learnt.tunnel_heard,
                self.links,
                overlay=(*network.pod_cidrs, *network.service_cidrs) if network is not None else (),
                ipv6_last=self.ipv6_last,
            )
        return CandidateFacts(
            addresses,
            (presence.port if presence is not None else 0) or self.port,
            heard if heard is not None and heard[0] not in addresses else None,
            self._same(tuple(each for each in view.sources if each in theirs)),
            devices if presence is None else self._same(devices & devices_of(presence)),
            clear=network is None or network.encryption is not Encryption.ALL,
            tunnel=tunnel,
            endpoints=endpoints,
            relay_ends=learnt.relay_ends,
            ipv6_last=self.ipv6_last,
        )

    def _nodes_own(self, network: Network | None, presence: Presence) -> tuple[Address, ...]:
        """Addresses without those of pods and Services, and those for everybody on a link."""
        everybody = frozenset().union(*(link.everybody for link in self.links))
        return tuple(
            address
            for address in usable(presence.addresses)
            if address not in everybody and (network is None or not network.holds(address))
        )

    def _same(self, value: T) -> T:
        """The object that others of thousands of peers have too."""
        shared: T = self._shared.setdefault(value, value)
        return shared


def flannel_path(presence: Presence | None) -> PeerPath | None:
    """The way to a node that flannel runs: it answers nothing, so nothing of it is proven. Its own
    peers send there too."""
    if presence is None or not presence.addresses:
        return None
    return PeerPath(VXLAN, presence.link_mtu_bytes, underlay=presence.addresses[0])


def own_facts(view: View) -> tuple[object, ...]:
    """What of this node decides what can be proven with any peer."""
    own, network = view.snapshot.nodes.get(view.uid), view.network
    presence = own.presence if own is not None else None
    return (
        view.grant,
        (
            network.default_community,
            network.encryption,
            network.pod_cidrs,
            network.service_cidrs,
        )
        if network
        else None,
        view.sources,
        (devices_of(presence), presence.tunnel_port) if presence is not None else None,
    )
