"""What nodes ask each other to find out by which way they are reached."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from limpet.base.addresses import Address
from limpet.cluster.topology.paths import PeerPath
from limpet.cluster.topology.transports import ProbeKind

NONCE_BYTES = 8


@dataclass(frozen=True, slots=True)
class Probe:
    """A question; who asks, and that it is for us, is the datagram's to say."""

    nonce: bytes
    kind: ProbeKind
    sequence: int
    """Number of the asking node's presence: so the other knows whether it has the newest one."""
    answer_at: Address | None = None
    """Overlay: underlay address of the asking node; its overlay address may not be reached yet."""
    punch: bool = False
    """Tunnel: just now the asking node tries every way to the other, which should do the same, so
    that each opens its NAT for the other."""
    relayed: bool = False
    """Tunnel: it was sent to a relay, so where it comes from is no address of the asking node."""
    in_use: bool = False
    """Tunnel: the asking node sends its packets by this way."""
    padding_bytes: int = 0
    """Tunnel: zeros that make the datagram as large as what the path is asked to carry."""


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    nonce: bytes
    """The probe's nonce: who knows it has got the probe."""
    sequence: int
    """Number of the answering node's presence."""
    seen_from: Address
    """Where the probe came from, as the answering node saw it."""
    seen_port: int
    arrived_at: Address
    """Address that the probe had as its destination when it came."""
    way: PeerPath | None = None
    """Path by which the answering node reaches the asking one; None: by none."""


class AnsweredBy(NamedTuple):
    """How an answer came in."""

    ifname: str = ""
    own: Address | None = None
    """Address of this node that the question came from, as the peer saw it."""


class Candidate(NamedTuple):
    """A probe that is sent again and again."""

    kind: ProbeKind
    address: Address
    """The peer's, on the underlay; overlay: the next hop that the packet is handed to."""
    port: int
    device: str = ""
    """Link that it goes over; empty: whichever the routes say."""
    version: int = 0
    """Overlay: IP version of the two overlay addresses."""
    relay: str = ""
    """Tunnel: uid of the relay that the address is of; empty: none is in between."""
