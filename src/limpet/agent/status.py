"""What the agent says to the command line; both import it, and JSON output has the same keys.

A struct that would have more than a dozen fields is put together of nouns, so that a person's JSON
stays flat.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from limpet.ipam import leases

Seconds = float


class Said(Struct, frozen=True, kw_only=True):
    """Something that the agent says."""


# This node and its pods


class LastRound(Said, frozen=True, kw_only=True):
    """What became of the last round of a loop."""

    changes: int
    failed: list[str]
    took_ms: float


class SegmentUse(Said, frozen=True, kw_only=True):
    """A segment of this node, and how many of its addresses are in each state."""

    prefix: str
    size: int
    free: int
    live: int
    resting: int
    bound: int


class NetworkUse(Said, frozen=True, kw_only=True):
    """A CNI network, and how many addresses it has in use and keeps for absent pods."""

    name: str
    live: int
    bound: int


class UnknownKey(Said, frozen=True, kw_only=True):
    """A key of a network's configuration that nobody knows."""

    network: str
    key: str


class RecordFinding(Said, frozen=True, kw_only=True):
    """What is wrong with a file of the records of addresses."""

    path: str
    problem: str
    advice: str


class Process(Said, frozen=True, kw_only=True):
    """The process of the agent, and whether pods can be started."""

    version: str
    pid: int
    uptime_s: Seconds
    ready: bool
    reasons: list[str]


class Status(Process, frozen=True, kw_only=True):
    """`limpet status`."""

    cluster: ClusterStatus | None
    bridge: str
    mtu_bytes: int
    cluster_cidrs: list[str]
    segments: list[SegmentUse]
    networks: list[NetworkUse]
    attachments: int
    unknown_keys: list[UnknownKey]
    findings: list[RecordFinding]
    last_round: LastRound


class AddressRecord(Said, frozen=True, kw_only=True):
    """A line of `limpet ipam list`."""

    network: str
    address: str
    state: str
    container_id: str
    ifname: str
    pod_namespace: str
    pod: str
    order: int


def record_line(network: str, record: leases.AddressRecord) -> AddressRecord:
    """One line of `limpet ipam list`."""
    return AddressRecord(
        network=network,
        address=str(record.address),
        state=record.state.value,
        container_id=record.holder.container_id if record.holder else "",
        ifname=record.holder.ifname if record.holder else "",
        pod_namespace=record.key.namespace if record.key else "",
        pod=record.key.pod if record.key else "",
        order=record.order,
    )


class Leak(Said, frozen=True, kw_only=True):
    """An address that is held, and that nothing uses."""

    network: str
    address: str
    container_id: str
    ifname: str
    why: str


class Records(Said, frozen=True, kw_only=True):
    """`limpet ipam list`."""

    records: list[AddressRecord]


class RecordCheck(Said, frozen=True, kw_only=True):
    """`limpet ipam check`."""

    leaks: list[Leak] | None
    """None: only an agent can tell which addresses are in use."""
    findings: list[RecordFinding]


class Repaired(Said, frozen=True, kw_only=True):
    """`limpet ipam repair`."""

    released: list[Leak]


class Released(Said, frozen=True, kw_only=True):
    """`limpet ipam release`."""

    released: list[str]


class Attached(Said, frozen=True, kw_only=True):
    """What is attached, as it is kept in /run."""

    attachments: list[dict[str, Any]]


# The cluster


class ControllerStatus(Said, frozen=True, kw_only=True):
    """How the node stands with its controller; `for_s`: seconds of being connected, or not."""

    address: str
    connected: bool
    for_s: Seconds
    error: str
    refused: str
    over: bool
    told: list[str] = []
    """What the controller says of this node."""


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


class LinkStatus(Said, frozen=True, kw_only=True):
    """A link to other nodes."""

    ifname: str
    mtu_bytes: int
    addresses: list[str]


class SharedEndpoint(Said, frozen=True, kw_only=True):
    """An endpoint that this node tells and others too."""

    endpoint: str
    nodes: list[str]


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


class PortMappingStatus(Said, frozen=True, kw_only=True):
    """What a gateway was asked for."""

    by: str | None
    gateway: str | None
    problem: str


class RelayStatus(Said, frozen=True, kw_only=True):
    """A relay that this node may use."""

    name: str
    uid: str
    answers: bool
    endpoint: str | None
    rtt_ms: float | None


class RelayedPair(Said, frozen=True, kw_only=True):
    """A way to a peer by a relay."""

    peer: str
    relay: str
    over: str
    endpoint: str | None
    problem: str


class RelaysStatus(Said, frozen=True, kw_only=True):
    """NATs in front of this node, and relays that it uses."""

    nat: dict[str, str]
    """Kind of NAT, by IP version."""
    endpoints: list[str]
    mapped: list[str]
    port_mapping: PortMappingStatus | None
    relays: list[RelayStatus]
    pairs: list[RelayedPair]


class RelayingPair(Said, frozen=True, kw_only=True):
    """Two nodes that this relay joins."""

    nodes: list[str]
    ways: list[str]


class Relaying(Said, frozen=True, kw_only=True):
    """The relay that this node is; only the first two are meant while it is not active."""

    active: bool
    trouble: str
    for_s: Seconds = 0.0
    heard_s: dict[str, Seconds | None] = {}
    ports: tuple[int, int] = (0, 0)
    pairs: list[RelayingPair] = []
    packets: dict[str, int] = {}
    counters: dict[str, int] = {}


class RelayingTls(Said, frozen=True, kw_only=True):
    """What this node relays in TLS connections."""

    listen: list[str]
    troubles: dict[str, str]
    nodes: dict[str, list[str]]
    """Uids that each node has a channel for, by its uid."""
    greeting: int
    refused: dict[str, int]


class TlsRelay(Said, frozen=True, kw_only=True):
    """A relay that this node is connected with in TLS."""

    rtt_ms: float
    peers: list[str]
    """Uids that it has a channel for."""
    lost: int


class NatTraversalStatus(Said, frozen=True, kw_only=True):
    """How packets get across NATs."""

    relays: RelaysStatus
    relaying: Relaying | None
    relaying_tls: RelayingTls | None
    tls: dict[str, TlsRelay]


class ServicesStatus(Said, frozen=True, kw_only=True):
    """Who serves Kubernetes' Services on this node."""

    on: bool
    """This node does, by itself."""
    why: str
    backend: str
    """What it does it by; empty: it does not."""
    why_not_ebpf: str = ""
    """Why it is not eBPF although that is asked for; empty: it is, or nobody asks."""
    asked_backend: str = "nftables"
    """As configured: nftables, ebpf or auto."""
    kube_proxy: str
    """Where rules of kube-proxy are; empty: nowhere."""


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
    contested: int
    shared_endpoints: list[SharedEndpoint]
    tunnel: TunnelStatus
    ipsec: TunnelStatus | None
    nat_traversal: NatTraversalStatus
    last_round: PeerRound
    services: ServicesStatus | None = None
    """None: nothing tells this node of Services."""


# Other nodes and ways to them


class PeerWay(Traffic, frozen=True, kw_only=True):
    """How a peer is reached."""

    rung: str
    endpoint: str
    relay: str
    devices: list[str]
    next_hops: list[str]
    underlay: str
    mtu_bytes: int | None


class PeerStatus(PeerWay, frozen=True, kw_only=True):
    """A line of `limpet peer list`."""

    name: str
    uid: str
    state: str
    segments: list[str]
    addresses: list[str]
    sequence: int | None
    why: str
    without: list[str]
    heard_s: Seconds | None
    """Since its last message."""
    handshake_s: Seconds | None


class Peers(Said, frozen=True, kw_only=True):
    """`limpet peer list`."""

    peers: list[PeerStatus]


class LetIn(Said, frozen=True, kw_only=True):
    """What this node lets in of a peer that chooses the way."""

    sources: list[str]
    outer: list[str]
    tunnel: bool


class LegEnds(Said, frozen=True, kw_only=True):
    """From where, and where to."""

    origin: str
    origin_pod: str
    origin_node: str
    target: str
    target_pod: str
    target_node: str


class LegWay(LegEnds, frozen=True, kw_only=True):
    """Rung, device and next hop of a leg; empty where there is none or it is not known."""

    rung: str = ""
    device: str = ""
    next_hop: str = ""
    underlay: str = ""
    endpoint: str = ""
    relay: str = ""
    mtu_bytes: int | None = None


class Leg(LegWay, frozen=True, kw_only=True):
    """One direction."""

    known: bool
    reason: str
    let_in: LetIn | None


class PathStatus(Said, frozen=True, kw_only=True):
    """The ways between two addresses; `reachable` is None where only other nodes know."""

    version: int
    reachable: bool | None
    there: Leg
    back: Leg
    peer_uid: str
    notes: list[str]


class ProbeStatus(Said, frozen=True, kw_only=True):
    """What became of probes of one kind."""

    node: str
    uid: str
    asked: str
    address: str
    endpoint: str
    relay: str
    device: str
    version: int
    in_use: bool
    sent: int
    answered: int
    rtts_ms: list[float]


# Services


class EndpointStatus(Said, frozen=True, kw_only=True):
    """An endpoint of a Service's port, as this node sees it."""

    port: str
    """Name, number and protocol of the Service's port."""
    service_port: int
    protocol: str
    address: str
    target_port: int
    node: str
    pod: str
    weight: int
    """How often it is drawn, beside others of the port; 0: it is not in rotation here."""
    why: str
    """Why it is not; empty: it is."""
    connections: int = 0
    """From and through this node, by the Service's addresses, as the kernel tracks them."""


class ServiceWay(Said, frozen=True, kw_only=True):
    """A Service that a way leads to: its endpoints, of which this node chooses one."""

    name: str
    """NAMESPACE/NAME."""
    address: str
    ports: list[str]
    endpoints: list[EndpointStatus]


class PathAnswer(Said, frozen=True, kw_only=True):
    """`limpet path`; to a Service, the ways to its endpoints that are in rotation here."""

    paths: list[PathStatus]
    probes: list[ProbeStatus]
    nat: dict[str, str]
    failed: list[str]
    service: ServiceWay | None = None


class ServiceLine(Said, frozen=True, kw_only=True):
    """A Service in `limpet service list`."""

    namespace: str
    name: str
    type: str
    addresses: list[str]
    ports: list[str]
    endpoints: int
    used: int
    """How many of them are in rotation on this node."""


class ServicesAnswer(Said, frozen=True, kw_only=True):
    """`limpet service list`."""

    services: list[ServiceLine]
    connected: bool
    """The API server tells what changes; else what is known is from the disk, or from before."""
    error: str
    kube_proxy: str
    """Where rules of kube-proxy were found at the agent's start; empty: nowhere."""
    failed: list[str]
    """What of the last round could not be done."""
    backend: str = "nftables"
    """By what pods and processes of this node are served: ebpf or nftables."""
    why_not_ebpf: str = ""
    """Although it is asked for; empty: it is used, or nobody asks."""


class ServiceAnswer(Said, frozen=True, kw_only=True):
    """`limpet service show`."""

    service: ServiceLine
    external: list[str]
    affinity_s: int
    internal_local: bool
    external_local: bool
    distribution: str
    endpoints: list[EndpointStatus]
    failed: list[str]
