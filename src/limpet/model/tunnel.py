"""The encrypted tunnel between sites: one device, all peers; as planned, as set and as observed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from limpet.model.network import Address, InterfaceAddress, Prefix

TUNNEL_IFNAME = "limwg0"
TUNNEL_GROUP = 0x6C696D07
"""Link group of our tunnel device; an alias cannot be given at creation."""
TUNNEL_MARK = 0x1000
"""Mark of the packets that carry a tunnel: a rule keeps them out of our routing table."""
TUNNEL_RULE_PRIORITY = 5147
"""Of that rule: just before the one that looks up our table."""
TUNNEL_OVERHEAD_BYTES = {4: 60, 6: 80}
"""Outer IP, UDP, WireGuard's header and authenticator, by IP version of the underlay.

Source: WireGuard's paper, section 5.4.6: 16 bytes before and 16 after the inner packet.
"""
TUNNEL_PADDING_BYTES = 16
"""Inner packets are padded to a multiple of it, unless that exceeds the device's MTU."""
NAT_TIMEOUT_S, KEEPALIVE_S = 30, 25
"""Strict NATs forget UDP after that, and so often something is sent. Source: wg(8)."""
KEY_BYTES = 32

Endpoint = tuple[Address, int]
"""Address and UDP port of the underlay."""
Claim = bytes | Prefix
"""A public key or an allowed prefix: one peer of a device has it."""


@dataclass(frozen=True, slots=True)
class TunnelKey:
    """What peers know this node's tunnel by: made of its identity, for life."""

    private_key: bytes = field(repr=False)
    """X25519, 32 bytes."""
    public_key: bytes
    port: int
    """UDP port that the tunnel listens on."""


@dataclass(frozen=True, slots=True)
class TunnelEnd:
    """What is known of the way to a peer's tunnel."""

    endpoint: Endpoint | None = None
    """None: the peer has to speak first."""
    behind_nat: bool = False
    """A NAT is in the way that forgets a silent flow: either end's."""
    mtu_bytes: int = 1500
    """Of the underlay: the smallest link on the way, as far as known."""


@dataclass(frozen=True, slots=True)
class TunnelPeer:
    """A peer of the device."""

    public_key: bytes
    allowed: frozenset[Prefix] = frozenset()
    """Inner addresses that it may send from and that are sent to it."""
    endpoint: Endpoint | None = None
    """Planned: where it is tried first. Observed: where its last packet came from."""
    keepalive_s: int = 0
    """0: none."""


@dataclass(frozen=True, slots=True)
class TunnelDevice:
    ifname: str
    mtu_bytes: int
    private_key: bytes = field(repr=False)
    port: int
    mark: int = TUNNEL_MARK
    up: bool = True
    ours: bool = True
    """False: an observed link of that name that somebody else made; it is never touched."""


@dataclass(frozen=True, slots=True)
class TunnelState:
    """What should be; as an observation, what is."""

    device: TunnelDevice | None = None
    peers: Mapping[bytes, TunnelPeer] = field(default_factory=dict)
    """By public key."""


@dataclass(frozen=True, slots=True)
class TunnelPart:
    """What one peer adds to the plan."""

    peer: TunnelPeer | None = None
    mtu_bytes: int = 0
    """Of routes to the peer through the tunnel."""
    refused: str = ""
    """Why the peer has no tunnel, or none that this node could begin; empty: it has."""


@dataclass(frozen=True, slots=True)
class TunnelPlan:
    """The state that should be, and what each peer adds to it."""

    state: TunnelState = TunnelState()
    parts: Mapping[str, TunnelPart] = field(default_factory=dict)
    """By the peer's uid."""
    holders: Mapping[Claim, str] = field(default_factory=dict)
    """Uid of the peer that has what is claimed; of several that claim one thing the lowest."""
    contested: frozenset[Claim] = frozenset()
    """What several peers claim."""
    addresses: frozenset[InterfaceAddress] = frozenset()
    """Of the device, /32 and /128."""


# What a device is told, and what it says of itself: the same for the kernel's and a userspace one.


@dataclass(frozen=True, slots=True)
class PeerSetting:
    """Changes to one peer, which is made if it is not there; None leaves as it is."""

    public_key: bytes
    allowed: tuple[Prefix, ...] = ()
    """Added; taken from the peer that had it."""
    endpoint: Endpoint | None = None
    keepalive_s: int | None = None
    remove: bool = False


@dataclass(frozen=True, slots=True)
class DeviceSetting:
    """Changes to a device, in this order; None leaves as it is."""

    private_key: bytes | None = field(default=None, repr=False)
    port: int | None = None
    mark: int | None = None
    peers: tuple[PeerSetting, ...] = ()


@dataclass(frozen=True, slots=True)
class PeerReading:
    peer: TunnelPeer
    last_handshake_ns: int = 0
    """By the node's wall clock of that time: good for being compared, not for an age. 0: never."""
    received_bytes: int = 0
    sent_bytes: int = 0
    """Encrypted ones, handshakes and keepalives among them."""


@dataclass(frozen=True, slots=True)
class DeviceReading:
    private_key: bytes = field(default=b"", repr=False)
    """Empty: it has none."""
    port: int = 0
    mark: int = 0
    peers: Mapping[bytes, PeerReading] = field(default_factory=dict)
