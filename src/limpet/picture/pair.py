"""Two nodes, and the ways between them."""

from __future__ import annotations

from enum import Enum

from limpet.picture.said import AtS, Shown


class Reach(Enum):
    """Whether one node reaches another."""

    REACHED = "reached"
    LOST = "lost"
    """A path was proven and has gone silent; packets still go there."""
    NO_PATH = "no path"
    """None was ever proven."""
    NOT_ALLOWED = "not allowed"
    """No community of both, so nothing is planned."""
    UNKNOWN = "unknown"
    """The node that would know has not told."""


class Way(Shown, frozen=True, kw_only=True):
    """One direction, as the node it begins at says."""

    reach: Reach = Reach.UNKNOWN
    rung: str = ""
    """As in `cluster.topology.transports`: route, vxlan, tunnel, relay, relay-tls."""
    relay: str = ""
    """Uid."""
    rtt_ms: float | None = None
    loss: float | None = None
    """Share of the last probes of this way that were not answered, 0 to 1."""
    since_at_s: AtS | None = None
    """Time from which on it is on this rung."""


class Pair(Shown, frozen=True, kw_only=True):
    """Two nodes, `one` the lower uid. On a node those that it is one of."""

    one: str
    other: str
    there: Way = Way()
    """From `one`."""
    back: Way = Way()


class Probe(Shown, frozen=True, kw_only=True):
    """The last that was tried by one candidate of a rung."""

    rung: str
    what: str
    """In words: same link, same site, overlay address on the link, tunnel."""
    to: str = ""
    """Address, endpoint, or the relay's name."""
    device: str = ""
    answered: bool | None = None
    """None: it was never asked."""
    asked_at_s: AtS | None = None
    answered_at_s: AtS | None = None
    rtt_ms: float | None = None
    misses: int = 0
    """Since the last answer."""
    in_use: bool = False
    why: str = ""
    """In words, where it is not used, or not asked."""


class Outward(Shown, frozen=True, kw_only=True):
    """Where packets of one direction go."""

    device: str = ""
    next_hop: str = ""
    underlay: str = ""
    endpoint: str = ""
    mtu_bytes: int | None = None


class Traffic(Shown, frozen=True, kw_only=True):
    """Traffic of a tunnel, as counted by the node that the direction begins at."""

    sent_bytes: int | None = None
    received_bytes: int | None = None
    handshake_at_s: AtS | None = None


class Direction(Shown, frozen=True, kw_only=True):
    """All that the node it begins at knows of one direction."""

    way: Way
    outward: Outward = Outward()
    traffic: Traffic = Traffic()
    nat: str = ""
    """Kind of NAT in front of the node that it begins at."""
    endpoints: tuple[str, ...] = ()
    """Where that node is seen from outside."""
    probes: tuple[Probe, ...] = ()
    """Best rung first."""
    why_not_direct: str = ""
    mend: tuple[str, ...] = ()
    """What would mend it, the likeliest first."""
    notes: tuple[str, ...] = ()


class PolicyOnPair(Shown, frozen=True, kw_only=True):
    """A policy that says what pods of the two nodes may send each other."""

    name: str
    """NAMESPACE/NAME."""
    direction: str
    """ingress or egress."""
    node: str = ""
    """Uid of the node that holds it in force; empty: each of the two."""
    pods: int = 0
    """Pods of that node that it selects; 0 also where nobody here knows."""
    words: str = ""


class PairDetail(Shown, frozen=True, kw_only=True):
    """A pair that was clicked."""

    one: str
    other: str
    there: Direction | None = None
    """None: the node it begins at has not told, and `why_unknown` says why."""
    back: Direction | None = None
    communities: tuple[str, ...] = ()
    """Communities of both."""
    why_not_allowed: str = ""
    why_unknown: str = ""
    policies: tuple[PolicyOnPair, ...] = ()
    policies_say: tuple[str, ...] = ()
    """What they come to together, or why none is told."""
    as_of_s: AtS = 0.0
