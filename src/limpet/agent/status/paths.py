"""Answers about peers, and the ways to them."""

from __future__ import annotations

from limpet.agent.status.cluster import Traffic
from limpet.agent.status.said import Said, Seconds
from limpet.agent.status.services import ServiceWay


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
    behind: tuple[str, ...] = ()
    """Prefixes of other networks that this node reaches by way of it."""


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


class Watched(Said, frozen=True, kw_only=True):
    """Whom this node asks every second whether they are there, and why no more of them."""

    watched: int
    peers: int
    """Peers that are asked at all."""


class PathAnswer(Said, frozen=True, kw_only=True):
    """`limpet path`; to a Service, the ways to its endpoints that are in rotation here."""

    paths: list[PathStatus]
    probes: list[ProbeStatus]
    nat: dict[str, str]
    failed: list[str]
    service: ServiceWay | None = None
