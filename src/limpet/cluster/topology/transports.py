"""The table of transports: every way in which packets may travel to a peer, one row for each. Pure.

A path (`paths.PeerPath`) stands on one row. A further one needs its row here, and the part that its
row names: who plans and programs it (`datapath.overlay.hop.HOP_PLANNERS`). What the ladder prefers,
what a probe's answer carries, MTUs, and what a person reads follow from the row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import partial

from limpet.cluster.kinds.presence import Presence

MIN_MTU_BYTES = {4: 68, 6: 1280}
"""Below it the kernel takes the IP version off a link. Source: net/ipv4/devinet.c, RFC 8200."""


class ProbeKind(IntEnum):
    """What an answer proves."""

    LINK = 1
    """Both are on one link: no router lies between, neither there nor back."""
    SITE = 2
    """The address is reached, through whatever routers, and nothing translates it."""
    OVERLAY = 3
    """What has an overlay address as source gets through the link to the peer's."""
    TUNNEL = 4
    """What leaves by our tunnel's port gets to the peer's tunnel, through NATs and relays."""


PROBE_WORDS = {
    ProbeKind.LINK: "same link",
    ProbeKind.OVERLAY: "overlay address on the link",
    ProbeKind.SITE: "same site",
    ProbeKind.TUNNEL: "tunnel",
}
"""For a person: where was asked."""


@dataclass(frozen=True, slots=True, eq=False)
class Transport:
    """How packets for a peer travel: a row of the table."""

    name: str
    """In files, metrics and what commands print."""
    preference: int
    """The lower one is taken where several are proven."""
    number: int
    """In answers to probes."""
    proof: ProbeKind
    """The probe that has to be answered; it decides which fields of a path count."""
    part: str
    """The part of the datapath that plans and programs it."""
    overhead_bytes: Mapping[int, int]
    """What it takes off the MTU, by IP version of the underlay."""
    words: str
    """For a person: what it is called."""
    path_words: str
    """For a person: the way of one direction, from the fields of a leg."""
    via_words: str
    """For a person: where packets are sent, from the fields of a peer."""
    encrypted: bool = False
    """Through the node's encrypted tunnel."""
    in_stream: bool = False
    """Through a TCP connection of the agent's, so the path's endpoint is one of loopback that means
    nothing once the agent was started again."""
    versions: Callable[[Presence], Collection[int]] | None = None
    """IP versions of the underlay that a node has said to have a device of its own for; None: it
    needs no such."""

    @property
    def relayed(self) -> bool:
        """By another node, which forwards its packets, and which its words name therefore."""
        return "{relay}" in self.path_words


VXLAN_OVERHEAD_BYTES = {4: 50, 6: 70}
"""Outer IP, UDP, VXLAN and inner Ethernet headers."""
TUNNEL_OVERHEAD_BYTES = {4: 60, 6: 80}
"""Outer IP, UDP, WireGuard's header and authenticator.

Source: WireGuard's paper, section 5.4.6: 16 bytes before and 16 after the inner packet.
"""
TUNNEL_PADDING_BYTES = 16
"""Inner packets are padded to a multiple of it, unless that exceeds the device's MTU."""

ROUTE = Transport(
    "route",
    preference=10,
    number=1,
    proof=ProbeKind.OVERLAY,
    part="overlay",
    overhead_bytes={4: 0, 6: 0},
    words="route",
    path_words="route, over {device} by {next_hop}",
    via_words="{next_hops}",
)
"""Plainly, to the peer's address on a link that both are on."""
VXLAN = Transport(
    "vxlan",
    preference=20,
    number=2,
    proof=ProbeKind.SITE,
    part="overlay",
    overhead_bytes=VXLAN_OVERHEAD_BYTES,
    words="vxlan",
    path_words="vxlan, over {device} to {underlay}",
    via_words="{underlay}",
    versions=lambda presence: presence.vtep_macs,
)
_TUNNELLED = partial(
    Transport,
    proof=ProbeKind.TUNNEL,
    part="tunnel",
    overhead_bytes=TUNNEL_OVERHEAD_BYTES,
    encrypted=True,
)
TUNNEL = _TUNNELLED(
    "tunnel",
    preference=30,
    number=3,
    words="tunnel",
    path_words="tunnel, over {device} to {endpoint}",
    via_words="{endpoint}",
)
"""Encrypted, straight to the peer's tunnel, through whatever NATs."""
RELAY = _TUNNELLED(
    "relay",
    preference=40,
    number=4,
    words="relay",
    path_words="relay {relay}, over {device} to {endpoint}",
    via_words="{relay} ({endpoint})",
)
"""The same encrypted packets, forwarded by a node that cannot read them."""
RELAY_TLS = _TUNNELLED(
    "relay-tls",
    preference=50,
    number=5,
    words="relay over TLS",
    path_words="relay {relay} in TLS, over {device}",
    via_words="{relay} (TLS)",
    in_stream=True,
)
"""The same in a TLS connection to the relay, where UDP does not get through."""

TRANSPORTS: dict[str, Transport] = {
    row.name: row for row in (ROUTE, VXLAN, TUNNEL, RELAY, RELAY_TLS)
}
"""By name; `by_preference` has them in order."""


def by_preference() -> list[Transport]:
    """All rows, the best first."""
    return sorted(TRANSPORTS.values(), key=lambda row: row.preference)


def devices_of(presence: Presence) -> frozenset[tuple[str, int]]:
    """Name and IP version of the underlay of what the node has devices for."""
    return frozenset(
        (row.name, version)
        for row in TRANSPORTS.values()
        if row.versions is not None
        for version in row.versions(presence)
    )


def numbered(number: int) -> Transport:
    """Raises: ValueError."""
    for row in TRANSPORTS.values():
        if row.number == number:
            return row
    raise ValueError(f"no transport has the number {number}")
