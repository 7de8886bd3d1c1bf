"""Nodes, and what each has."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from msgspec import field

from limpet.picture.said import AtS, Shown


class NodeState(Enum):
    """What is known of whether a node answers."""

    ANSWERS = "answers"
    SILENT = "silent"
    """It was heard of and is not any more."""
    UNKNOWN = "unknown"
    """Nobody who could know has told: no path to it is wanted, or it has not reported."""
    REMOVED = "removed"


class Segment(Shown, frozen=True, kw_only=True):
    """A segment of a node. Counts are of addresses; None: only the node itself knows."""

    prefix: str
    size: int
    free: int | None = None
    live: int | None = None
    resting: int | None = None
    bound: int | None = None
    """Kept for absent pods; given up where nothing else is free."""


class Named(Shown, frozen=True, kw_only=True):
    """Who a node is."""

    uid: str
    name: str
    site: str = ""
    """Name of its site in `Picture.sites`; empty: in none that is known."""
    roles: tuple[str, ...] = ()
    communities: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)


class Machine(Shown, frozen=True, kw_only=True):
    """What a node says of itself."""

    addresses: tuple[str, ...] = ()
    endpoints: tuple[str, ...] = ()
    """Where its tunnel is seen from outside."""
    nat: Mapping[str, str] = field(default_factory=dict)
    """Kind of NAT in front of it by IP version (`ipv4`, `ipv6`), as `limpet path` calls it."""
    link_mtu_bytes: int | None = None
    version: str = ""
    """Version of its agent."""
    backend: str = ""
    """What makes its tunnel."""
    joined_at_s: AtS | None = None
    heard_at_s: AtS | None = None
    """When anything was heard from it last."""


class Node(Named, frozen=True, kw_only=True):
    """A node of the cluster."""

    state: NodeState = NodeState.UNKNOWN
    why: str = ""
    """In words, where it does not answer, or one other node alone says that it does."""
    segments: tuple[Segment, ...] = ()
    pods: int | None = None
    machine: Machine = Machine()


class Site(Shown, frozen=True, kw_only=True):
    """Nodes that stand together: by the label `site` (or Kubernetes' zone) that they have, else by
    having proven that they reach each other without a tunnel."""

    name: str
    by: str
    """`label`, `proven`, or `nat`: one public address in front of them, which is a guess."""
    nat: str = ""
    """Kind of NAT that its nodes see in front of them; empty: none, or they differ."""


class RelayLoad(Shown, frozen=True, kw_only=True):
    """What a relay carries. None: only the relay itself knows."""

    pairs: int | None = None
    connections: int | None = None
    """In TLS."""
    bytes_per_s: float | None = None
    """Bytes per second of all pairs, averaged over a minute."""
    most_pairs: int | None = None
    """Pairs for which it has ports: a pair takes two."""
    node_most_bytes_per_s: float | None = None
    """Most bytes per second of each node; None: no limit, or not known."""


class Relay(Shown, frozen=True, kw_only=True):
    """A node that hands on others' encrypted packets."""

    uid: str
    endpoint: str = ""
    tls: str = ""
    """Where it takes TLS connections."""
    answers: bool | None = None
    rtt_ms: float | None = None
    """Round trip from who looks."""
    trouble: str = ""
    load: RelayLoad = RelayLoad()
