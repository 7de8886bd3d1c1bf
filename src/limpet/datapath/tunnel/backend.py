"""What WireGuard and IPsec have in common as makers of a tunnel's device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping

from limpet.base.addresses import Endpoint, InterfaceAddress
from limpet.base.errors import KernelError
from limpet.base.ownership import ALIAS, TUNNEL_GROUP
from limpet.datapath.tunnel.diff import (
    CallPeer,
    DropEndpoint,
    DropTunnel,
    DropTunnelPeer,
    PeerChange,
    PutAddresses,
    PutTunnel,
    PutTunnelPeer,
    ResetPeer,
    TunnelChange,
)
from limpet.datapath.tunnel.program import Program
from limpet.datapath.tunnel.state import PeerReading, TunnelDevice, TunnelPeer, TunnelState
from limpet.linux.netlink import address_codec, link_codec, route_codec
from limpet.linux.netlink import codec as wire
from limpet.linux.netlink.socket import RouteSocket


class TunnelBackendKernel(ABC):
    """Makes a tunnel's device and has its peers, as far as they are ours.

    Blocking, in the network namespace of the calling thread.
    """

    def __init__(self, route: RouteSocket, ifname: str, program: Program) -> None:
        self.have = TunnelState()
        """What `observe` read and `apply` changed."""
        self.program = program
        """Makes the device where the kernel does not; it may not be running."""
        self._route = route
        self._ifname = ifname
        self._given: dict[bytes, Endpoint] | None = None
        """None: unknown, as after the agent's start."""

    @property
    def given(self) -> Mapping[bytes, Endpoint]:
        """The endpoints that were planned when they were last set, by public key."""
        return self._given or {}

    @property
    def link(self) -> link_codec.LinkInfo | None:
        """The device's link, whoever made it. Raises: KernelError."""
        return self._route.link(self._ifname)

    @property
    def has_kernels(self) -> bool:
        """There is no program to start: the kernel does it. Raises: KernelError."""
        return False

    @property
    def runs_program(self) -> bool:
        """The device that there is was made by `program`."""
        return True

    @property
    def is_userspace(self) -> bool:
        """Whether packets go by the program: it serves the device that there is, also where the
        kernel can do it by now, or would serve one. Raises: KernelError."""
        return self.runs_program or not self.has_kernels

    @property
    @abstractmethod
    def made_by(self) -> str:
        """`kernel`, `userspace`, `strongswan` or `strongswan-kernel`."""

    @property
    def problem(self) -> str:
        """What goes wrong beside rounds; empty: nothing does."""
        return self.program.problem

    @property
    def without_s(self) -> Mapping[bytes, float]:
        """Peers that should have a session and have none, and since when (monotonic)."""
        return {}

    @abstractmethod
    def close(self) -> None:
        """Closes sockets; the device and its peers stay."""

    @abstractmethod
    def observe(self, want: TunnelState) -> TunnelState:
        """Reads `have` from the kernel and returns it. Raises: KernelError."""

    @abstractmethod
    def readings(self) -> Mapping[bytes, PeerReading]:
        """Traffic, last handshake and present endpoint of each peer. Raises: KernelError."""

    def apply(self, changes: Iterable[TunnelChange]) -> list[KernelError]:
        """Tries every change, addresses last; returns the failures. After a failure of the device
        no peer is tried."""
        failures: list[KernelError] = []
        peers: list[PeerChange] = []
        addresses: frozenset[InterfaceAddress] | None = None
        for change in changes:
            try:
                match change:
                    case PutTunnel(device):
                        self._put(device)
                    case DropTunnel():
                        self._drop()
                    case PutAddresses(addresses):
                        pass
                    case _:
                        peers.append(change)
            except KernelError as error:
                failures.append(error)
        if peers and not failures:
            failures += self._apply_peers(peers)
        if addresses is not None:
            failures += self.put_addresses(addresses)
        return failures

    def needed_addresses(self, wanted: Collection[InterfaceAddress]) -> list[wire.Request]:
        """Requests that give the device these addresses and no others; none without a device.

        New ones first: with its last IPv4 address a link loses its routes. Raises: KernelError.
        """
        link = self.link
        if link is None:
            return []
        held = {
            info.interface
            for info in self._route.addresses()
            if info.ifindex == link.ifindex and info.scope != route_codec.RT_SCOPE_LINK
        }
        index, on = link.ifindex, self._ifname
        return [
            *(
                address_codec.new_address(index, each, on=on, prefix_route=False)
                for each in sorted(set(wanted) - held, key=_order)
            ),
            *(
                address_codec.delete_address(index, each, on=on)
                for each in sorted(held - set(wanted), key=_order)
            ),
        ]

    def put_addresses(self, wanted: Collection[InterfaceAddress]) -> list[KernelError]:
        """Gives the device these addresses and no others; returns the failures."""
        try:
            self._route.apply(*self.needed_addresses(wanted))
        except KernelError as error:
            return [error]
        return []

    @abstractmethod
    def _put(self, device: TunnelDevice) -> None:
        """Makes the device or sets what differs, ending with `_set_link`. Raises: KernelError."""

    @abstractmethod
    def _drop(self) -> None:
        """Raises: KernelError."""

    @abstractmethod
    def _apply_peers(self, changes: list[PeerChange]) -> list[KernelError]:
        """Makes the changes and notes those that were made (`_note`); returns the failures."""

    def _foreign(self, link: link_codec.LinkInfo) -> TunnelState:
        """The link is somebody else's."""
        return TunnelState(TunnelDevice(self._ifname, link.mtu_bytes, b"", 0, 0, ours=False))

    def _set_link(self, device: TunnelDevice, *, is_new: bool) -> None:
        if is_new:
            self._route.apply(link_codec.no_made_up_addresses(self._ifname))
        link = link_codec.set_link(
            0,
            what=self._ifname,
            ifname=self._ifname,
            alias=ALIAS,
            group=TUNNEL_GROUP,
            mtu_bytes=device.mtu_bytes,
            up=device.up,
        )
        self._route.apply(link)
        self.have = TunnelState(device, self.have.peers)

    def _forget(self) -> None:
        """There is no device, or a new one without peers."""
        self.have, self._given = TunnelState(), {}

    def _note(self, changes: Iterable[PeerChange]) -> None:
        """Brings `have` and `given` up to changes that were made."""
        peers, given = dict(self.have.peers), dict(self.given)
        for change in changes:
            key = change.public_key
            match change:
                case PutTunnelPeer(endpoint=endpoint, keepalive_s=keepalive_s):
                    had = peers.get(key, TunnelPeer(key))
                    peers[key] = TunnelPeer(
                        key,
                        change.allowed_after(had),
                        endpoint or had.endpoint,
                        had.keepalive_s if keepalive_s is None else keepalive_s,
                    )
                    if endpoint is not None:
                        given[key] = endpoint
                case DropTunnelPeer():
                    peers.pop(key, None)
                    given.pop(key, None)
                case DropEndpoint():
                    given.pop(key, None)
                case ResetPeer() | CallPeer():
                    pass
        self.have, self._given = TunnelState(self.have.device, peers), given


def _order(address: InterfaceAddress) -> tuple[int, int]:
    return address.version, int(address)
