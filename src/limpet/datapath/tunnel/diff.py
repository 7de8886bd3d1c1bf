"""diff_tunnel: the ordered changes that bring the tunnel's device to its plan. Pure.

A planned endpoint is set when it is new to the plan, and not because the device has another one:
WireGuard follows a peer that moves as soon as the peer proves itself by a packet, and what it
learnt so is newer than what was planned before it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from limpet.base.addresses import Endpoint, InterfaceAddress, Prefix
from limpet.datapath.tunnel.state import TunnelDevice, TunnelPeer, TunnelState


@dataclass(frozen=True, slots=True)
class PutTunnel:
    """Make the device, or set what differs on it."""

    device: TunnelDevice


@dataclass(frozen=True, slots=True)
class PutTunnelPeer:
    """Make the peer, or change what is given; sessions and everything else stay."""

    public_key: bytes
    add: tuple[Prefix, ...] = ()
    """Prefixes that become the peer's, taken from any other peer that has them."""
    take: tuple[Prefix, ...] = ()
    """Prefixes that are not the peer's any more."""
    endpoint: Endpoint | None = None
    keepalive_s: int | None = None

    def allowed_after(self, had: TunnelPeer) -> frozenset[Prefix]:
        """The prefixes of the peer once this is done."""
        return (had.allowed | set(self.add)) - set(self.take)


@dataclass(frozen=True, slots=True)
class DropEndpoint:
    """No endpoint is planned any more, and the next counts as new. The device keeps its own."""

    public_key: bytes


@dataclass(frozen=True, slots=True)
class ResetPeer:
    """Reset the peer's handshakes: make it again without its sessions and last timestamp.

    For a peer whose clock jumped back: WireGuard refuses handshakes with an older timestamp than
    the last. Only on a request that the peer has signed. Source: WireGuard's paper, section 5.1.
    And where two initiations have crossed: who is made anew may be called without waiting.
    """

    public_key: bytes


@dataclass(frozen=True, slots=True)
class CallPeer:
    """Send a keepalive to the peer now, which begins a session where there is none."""

    public_key: bytes


@dataclass(frozen=True, slots=True)
class DropTunnelPeer:
    public_key: bytes


@dataclass(frozen=True, slots=True)
class DropTunnel:
    ifname: str


@dataclass(frozen=True, slots=True)
class PutAddresses:
    """Give the device these addresses and no others."""

    addresses: frozenset[InterfaceAddress]


PeerChange = PutTunnelPeer | DropEndpoint | ResetPeer | CallPeer | DropTunnelPeer
TunnelChange = PutTunnel | PeerChange | DropTunnel | PutAddresses


def diff_tunnel(
    want: TunnelState,
    have: TunnelState,
    given: Mapping[bytes, Endpoint],
    touched: Collection[bytes] | None = None,
) -> list[TunnelChange]:
    """Changes from `have` to `want`: first what adds reach, last what removes it.

    `given`: the endpoints that were planned when they were last set. `touched`: only these peers,
    and the device, can differ; None: any peer can.
    """
    device, found = want.device, have.device
    if found is not None and not found.ours:
        return [] if device is None else [PutTunnel(device)]
    if device is None:
        return [] if found is None else [DropTunnel(found.ifname)]
    is_new = found is None
    held: Mapping[bytes, TunnelPeer] = {} if is_new else have.peers
    keys = sorted(want.peers.keys() | held.keys() if touched is None or is_new else touched)
    puts: list[PeerChange] = []
    for key in keys:
        if key in want.peers:
            puts += _put(want.peers[key], held.get(key), given.get(key))
    return [
        *([] if found == device else [PutTunnel(device)]),
        *puts,
        *(DropTunnelPeer(key) for key in keys if key in held and key not in want.peers),
    ]


def _put(want: TunnelPeer, have: TunnelPeer | None, given: Endpoint | None) -> list[PeerChange]:
    if have is None:
        add = _sorted(want.allowed)
        return [PutTunnelPeer(want.public_key, add, (), want.endpoint, want.keepalive_s)]
    same = want.allowed == have.allowed and want.keepalive_s == have.keepalive_s
    if same and want.endpoint == given:
        return []  # nearly all, of perhaps thousands
    put = PutTunnelPeer(
        want.public_key,
        _sorted(want.allowed - have.allowed),
        _sorted(have.allowed - want.allowed),
        want.endpoint if want.endpoint != given else None,
        want.keepalive_s if want.keepalive_s != have.keepalive_s else None,
    )
    changes: list[PeerChange] = [put] if put != PutTunnelPeer(want.public_key) else []
    if want.endpoint is None and given is not None:
        changes.append(DropEndpoint(want.public_key))
    return changes


def _sorted(prefixes: Collection[Prefix]) -> tuple[Prefix, ...]:
    return tuple(
        sorted(prefixes, key=lambda each: (each.version, int(each.network_address), each.prefixlen))
    )


def adopted_endpoints(want: TunnelState, have: TunnelState) -> dict[bytes, Endpoint]:
    """The endpoints that count as given after the agent's restart, when nothing is remembered.

    A peer's endpoint on a running device is at least as new as a plan made from the disk.
    """
    return {
        key: peer.endpoint
        for key, peer in want.peers.items()
        if peer.endpoint is not None
        and (found := have.peers.get(key)) is not None
        and found.endpoint is not None
    }
