"""Answers about a node's part in a cluster."""

from __future__ import annotations

from msgspec import field

from limpet.agent.status.said import LastRound, Said, Seconds
from limpet.agent.status.services import ServicesStatus
from limpet.relay.status import Relaying, RelayingTls, RelaysStatus, TlsRelay


class ControllerStatus(Said, frozen=True, kw_only=True):
    """How the node stands with its controller; `for_s`: seconds of being connected, or not."""

    address: str
    connected: bool
    for_s: Seconds
    error: str
    refused: str
    """What the controller does not take now."""
    over: bool
    told: list[str] = field(default_factory=list)
    """What the controller says of this node."""
    segment_refused: str = ""
    """Why the controller gives no further segment now."""


class ApiServerStatus(Said, frozen=True, kw_only=True):
    """How the node stands with the Kubernetes API server that it hears; `for_s`: seconds of being
    connected, or not."""

    server: str
    connected: bool
    for_s: Seconds
    error: str
    refused: str
    unusable: list[str]
    told: list[str]
    clock_ahead_s: Seconds = 0.0
    """How far this machine's clock is ahead of the API server's, if it is wrong."""
    refuses: bool = False
    """It answers, and says that this node's account is nobody's or may not."""


class LinkStatus(Said, frozen=True, kw_only=True):
    """A link to other nodes."""

    ifname: str
    mtu_bytes: int
    addresses: list[str]


class SharedEndpoint(Said, frozen=True, kw_only=True):
    """An endpoint that this node tells and others too."""

    endpoint: str
    nodes: list[str]


class PeerClaim(Said, frozen=True, kw_only=True):
    """What another node says of itself that is another's, or nobody's: it gets nothing by it."""

    node: str
    uid: str
    what: str


class ToldByFormerKey(Said, frozen=True, kw_only=True):
    """What another tells that a revoked key of the cluster has signed: it is refused."""

    by: str
    """Name of the node; empty: the controller, or the API server."""
    uid: str
    what: str
    count: int
    last_s: Seconds


class Traffic(Said, frozen=True, kw_only=True):
    """Encrypted bytes."""

    received_bytes: int
    sent_bytes: int


class TunnelStatus(Traffic, frozen=True, kw_only=True):
    """An encrypted tunnel's device; `backend` is empty while there is none."""

    ifname: str
    port: int
    problem: str
    needed: bool
    backend: str
    version: str
    slow: bool
    mtu_bytes: int | None
    rules: list[int]
    peers: int
    sessions: int
    active: int


class PeerRound(LastRound, frozen=True, kw_only=True):
    """The last round of the parts for other nodes, and how many there were."""

    rounds: int


class NatTraversalStatus(Said, frozen=True, kw_only=True):
    """How packets get across NATs."""

    relays: RelaysStatus
    relaying: Relaying | None
    relaying_tls: RelayingTls | None
    tls: dict[str, TlsRelay]


class Counted(Said, frozen=True, kw_only=True):
    """Messages by what became of them."""

    messages: dict[str, int]
    exchange: dict[str, int]
    probes: dict[str, int]
    offers: dict[str, int]


class Granted(Counted, frozen=True, kw_only=True):
    """What the cluster has granted, and what it is like."""

    segments: list[str]
    pod_cidrs: list[str]
    vxlan_id: int
    vxlan_port: int
    encryption: str = ""
    """Traffic between nodes that is encrypted; empty: it is not known yet."""
    key: str = ""
    """Key that signs for the cluster, in short; as `limpet network show` has it in the cloud."""
    rotations: int = 0


class Member(Granted, frozen=True, kw_only=True):
    """Who the node is in its cluster."""

    name: str
    node: str
    uid: str
    granted: bool
    removed: bool
    cloned: bool
    controller: ControllerStatus
    api_server: ApiServerStatus | None = None
    """None: the controller tells what there is."""
    revision: int
    disk: list[str]


class ClusterStatus(Member, frozen=True, kw_only=True):
    """The cluster's part of `limpet status`."""

    links: list[LinkStatus]
    peers: dict[str, int]
    """How many are reached on each rung, are not, and are not to be."""
    silent_peers: int
    """How many have a rung and answer by no way at present."""
    partly_reached_peers: int = 0
    """How many have a rung, answer, and are not reached in one of their segments, of an IP version
    that this node has too."""
    claims: list[PeerClaim]
    by_former_keys: list[ToldByFormerKey]
    shared_endpoints: list[SharedEndpoint]
    tunnel: TunnelStatus
    ipsec: TunnelStatus | None
    nat_traversal: NatTraversalStatus
    last_round: PeerRound
    services: ServicesStatus | None = None
    """None: nothing tells this node of Services."""
