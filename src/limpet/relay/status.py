"""What an agent tells of relays that its node uses, and of what it relays for others."""

from __future__ import annotations

from msgspec import Struct, field

from limpet.nat.status import PortMappingStatus


class RelaySaid(Struct, frozen=True, kw_only=True):
    """Something that `limpet status` tells of relays."""


class RelayStatus(RelaySaid, frozen=True, kw_only=True):
    """A relay that this node may use."""

    name: str
    uid: str
    answers: bool
    endpoint: str | None
    rtt_ms: float | None


class RelayedPair(RelaySaid, frozen=True, kw_only=True):
    """A way to a peer by a relay."""

    peer: str
    relay: str
    over: str
    endpoint: str | None
    problem: str


class RelaysStatus(RelaySaid, frozen=True, kw_only=True):
    """NATs in front of this node, and relays that it uses."""

    nat: dict[str, str]
    """Kind of NAT, by IP version."""
    endpoints: list[str]
    mapped: list[str]
    port_mapping: PortMappingStatus | None
    relays: list[RelayStatus]
    pairs: list[RelayedPair]


class RelayingPair(RelaySaid, frozen=True, kw_only=True):
    """Two nodes that this relay joins."""

    nodes: list[str]
    ways: list[str]


class Relaying(RelaySaid, frozen=True, kw_only=True):
    """The relay that this node is; only the first two are meant while it is not active."""

    active: bool
    trouble: str
    for_s: float = 0.0
    heard_s: dict[str, float | None] = field(default_factory=dict)
    ports: tuple[int, int] = (0, 0)
    pairs: list[RelayingPair] = field(default_factory=list)
    packets: dict[str, int] = field(default_factory=dict)
    bytes_per_s: float | None = None
    """Bytes per second for all pairs, averaged over a minute; null: not known yet."""
    node_bytes_per_s: int = 0
    """Most bytes per second of each node; 0: no limit."""
    counters: dict[str, int] = field(default_factory=dict)


class RelayingTls(RelaySaid, frozen=True, kw_only=True):
    """What this node relays in TLS connections."""

    listen: list[str]
    troubles: dict[str, str]
    nodes: dict[str, list[str]]
    """Uids that each node has a channel for, by its uid."""
    greeting: int
    refused: dict[str, int]


class TlsRelay(RelaySaid, frozen=True, kw_only=True):
    """A relay that this node is connected with in TLS."""

    rtt_ms: float
    peers: list[str]
    """Uids that it has a channel for."""
    lost: int
