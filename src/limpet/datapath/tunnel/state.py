"""Values of the encrypted tunnel: device and peers as planned, set and observed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from limpet.base.addresses import Endpoint, InterfaceAddress, Prefix
from limpet.base.ownership import TUNNEL_MARK

KEY_BYTES = 32
Claim = bytes | Prefix
"""A public key or an allowed prefix: only one peer of a device can have it."""


@dataclass(frozen=True, slots=True)
class TunnelKey:
    """The tunnel's keys and port: derived from the node's identity, so they never change."""

    private_key: bytes = field(repr=False)
    """X25519, 32 bytes."""
    public_key: bytes
    port: int
    """UDP port that the tunnel listens on."""


@dataclass(frozen=True, slots=True)
class TunnelPeer:
    """A peer of the device."""

    public_key: bytes
    allowed: frozenset[Prefix] = frozenset()
    """Inner addresses that it may send from and that are routed to it."""
    endpoint: Endpoint | None = None
    """Planned: where to send first. Observed: where its last packet came from."""
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
    """The device and its peers, as wanted or as observed."""

    device: TunnelDevice | None = None
    peers: Mapping[bytes, TunnelPeer] = field(default_factory=dict)
    """By public key."""


@dataclass(frozen=True, slots=True)
class TunnelPlan:
    """The state that should be, and what it is made of."""

    state: TunnelState = TunnelState()
    wishes: Mapping[str, TunnelPeer] = field(default_factory=dict)
    """What each peer should have, by its uid; two may claim the same key or prefix."""
    holders: Mapping[Claim, str] = field(default_factory=dict)
    """Uid of the peer that gets each claim; absent: of several none does."""
    contested: frozenset[Claim] = frozenset()
    """Claims of several peers at once."""
    addresses: frozenset[InterfaceAddress] = frozenset()
    """Addresses of the device, /32 and /128."""


# Settings and readings of a WireGuard device, the kernel's or a userspace one.


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
    """By the node's wall clock at that time: to be compared, not to compute an age. 0: never."""
    received_bytes: int = 0
    sent_bytes: int = 0
    """Encrypted bytes, handshakes and keepalives included."""


@dataclass(frozen=True, slots=True)
class DeviceReading:
    private_key: bytes = field(default=b"", repr=False)
    """Empty: it has none."""
    port: int = 0
    mark: int = 0
    peers: Mapping[bytes, PeerReading] = field(default_factory=dict)
