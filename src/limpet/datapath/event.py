"""What parts of an agent tell: frozen values. Who hears each, in which order, is said in
`agent.wiring`, and of policies and port security in `agent.main`; what is new in the cluster's
documents is told as `cluster.membership.News`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from limpet.base.addresses import Endpoint, Prefix, UnderlayLink
from limpet.cluster.topology.paths import RelayEnd


@dataclass(frozen=True, slots=True)
class LinksChanged:
    """These links lead to other nodes now."""

    links: tuple[UnderlayLink, ...]


@dataclass(frozen=True, slots=True)
class NetworksChanged:
    """The machine is in these subnets now, by links to other nodes or any others."""

    networks: tuple[Prefix, ...]


@dataclass(frozen=True, slots=True)
class SegmentsChanged:
    """Pods get addresses of these segments from now on, or the cluster's network is another."""

    segments: tuple[Prefix, ...]


@dataclass(frozen=True, slots=True)
class PodsChanged:
    """An address was given or came free."""


@dataclass(frozen=True, slots=True)
class DamageSuspected:
    """Others may have changed nftables: what no part of the loop keeps there is to be looked at."""


@dataclass(frozen=True, slots=True)
class BridgeMade:
    """A bridge of pods is new, or has another MAC."""


@dataclass(frozen=True, slots=True)
class ServingNodesChanged:
    """New connections to Services may go to these nodes, by name; who serves most comes first."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlaceChanged:
    """This node's zone, or which endpoints of Services are known to be gone, is other than
    before."""


@dataclass(frozen=True, slots=True)
class PeersPlanned:
    """What leads to peers is planned from other paths or other documents than before."""

    by_paths: bool
    """Paths are others, and not documents alone."""


@dataclass(frozen=True, slots=True)
class TunnelsChanged:
    """This node can have other tunnels than before."""


@dataclass(frozen=True, slots=True)
class PathsChanged:
    """Other paths than before lead to these peers."""

    uids: frozenset[str]


@dataclass(frozen=True, slots=True)
class ReachChanged:
    """Other peers than before are silent, or may be soon, or the round trip to some is much longer
    or shorter."""


@dataclass(frozen=True, slots=True)
class TunnelOnlyChanged:
    """These peers, and no others, send to this node through tunnels only."""

    uids: frozenset[str]


@dataclass(frozen=True, slots=True)
class PeerIsNewer:
    """A peer has said that its presence is newer than what is known here."""

    uid: str


@dataclass(frozen=True, slots=True)
class RelayNeeded:
    """A peer is reached by a relay only, as far as is known; or, not `wanted`, by a direct way for
    a while. Told again while a relay that is in use does not answer."""

    uid: str
    wanted: bool


@dataclass(frozen=True, slots=True)
class AnswerSeen:
    """A peer's tunnel's port was asked without a relay, and has told where that came from."""

    uid: str
    asked: Endpoint
    seen: Endpoint


@dataclass(frozen=True, slots=True)
class ActivePeersChanged:
    """These peers, and no others, have packets of pods by a tunnel."""

    uids: frozenset[str]


@dataclass(frozen=True, slots=True)
class PeerUnanswered:
    """Handshakes are sent to a peer at that endpoint in vain."""

    uid: str
    endpoint: Endpoint


@dataclass(frozen=True, slots=True)
class EndpointsChanged:
    """The tunnel is reached from outside at these; to be published."""

    endpoints: tuple[Endpoint, ...]


@dataclass(frozen=True, slots=True)
class RelayEndsChanged:
    """These ends, at relays, lead to a peer."""

    uid: str
    ends: tuple[RelayEnd, ...]


@dataclass(frozen=True, slots=True)
class OwnEndChanged:
    """A peer is connected in TLS with this node, as its relay; None: it is not any more."""

    uid: str
    end: RelayEnd | None


@dataclass(frozen=True, slots=True)
class RelayingChanged:
    """This node has begun or ended to work as a relay."""


@dataclass(frozen=True, slots=True)
class RelayTlsPortChanged:
    """Nodes are served in TLS at that port, which is to be published; 0: at none."""

    port: int


@dataclass(frozen=True, slots=True)
class NodeAwaited:
    """At this relay a node waits for another, which may be in touch by a stream only."""

    uid: str
    peer_uid: str


Event = (
    LinksChanged
    | NetworksChanged
    | SegmentsChanged
    | PodsChanged
    | DamageSuspected
    | BridgeMade
    | ServingNodesChanged
    | PlaceChanged
    | PeersPlanned
    | TunnelsChanged
    | PathsChanged
    | ReachChanged
    | TunnelOnlyChanged
    | PeerIsNewer
    | RelayNeeded
    | AnswerSeen
    | ActivePeersChanged
    | PeerUnanswered
    | EndpointsChanged
    | RelayEndsChanged
    | OwnEndChanged
    | RelayingChanged
    | RelayTlsPortChanged
    | NodeAwaited
)
Tell = Callable[[Event], None]


def nobody(_event: Event) -> None:
    """There is none who has to be told."""
