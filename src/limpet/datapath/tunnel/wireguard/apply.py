"""The encrypted tunnel's device: the kernel's WireGuard where there is one, else a userspace one.

`TunnelKernel` is the same for both. Blocking: a thousand peers take some 0.2 s of it.
"""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from limpet.base.addresses import Endpoint, Prefix
from limpet.base.errors import KernelError
from limpet.base.ownership import ALIAS, TUNNEL_GROUP, TUNNEL_IFNAME
from limpet.base.settings import KEEPALIVE_S
from limpet.datapath.tunnel.diff import (
    CallPeer,
    DropEndpoint,
    DropTunnel,
    DropTunnelPeer,
    PeerChange,
    PutTunnel,
    PutTunnelPeer,
    TakePeerAnew,
    TunnelChange,
    adopted_endpoints,
)
from limpet.datapath.tunnel.state import (
    DeviceSetting,
    PeerReading,
    PeerSetting,
    TunnelDevice,
    TunnelPeer,
    TunnelState,
)
from limpet.datapath.tunnel.wireguard.device import (
    GONE,
    KernelWireguard,
    UserspaceWireguard,
    Wireguard,
    refused,
)
from limpet.datapath.tunnel.wireguard.process import PROGRAM, WireguardProcess
from limpet.linux.netlink import link_codec
from limpet.linux.netlink.link_codec import no_made_up_addresses
from limpet.linux.netlink.socket import RouteSocket

_SINK = b"limpet drops what this key holds"
"""Public key of a peer that nobody is: a prefix that is given to it, and dropped with it, is taken
from its holder without touching the holder's other prefixes."""


class TunnelKernel:
    """One tunnel device and its peers, as far as they are ours.

    `have` is what `observe` read and `apply` changed. Nothing notifies of changes in peers: nobody
    else makes any, and where a peer's packets come from is read when it is asked for.
    """

    def __init__(
        self,
        route: RouteSocket,
        *,
        log: Path,
        ifname: str = TUNNEL_IFNAME,
        program: str = PROGRAM,
    ) -> None:
        """`log`: of the userspace WireGuard, if one is needed; the rest as `WireguardProcess`.

        In the network namespace of the calling thread.
        """
        self._route = route
        self._ifname = ifname
        self._userspace = UserspaceWireguard(WireguardProcess(ifname, log=log, program=program))
        self._kernel: KernelWireguard | None = None
        self._chosen: Wireguard | None = None
        self._have = TunnelState()
        self._given: dict[bytes, Endpoint] | None = None

    @property
    def have(self) -> TunnelState:
        return self._have

    @property
    def given(self) -> Mapping[bytes, Endpoint]:
        """The endpoints that were planned when they were last set, by public key."""
        return self._given or {}

    @property
    def process(self) -> WireguardProcess | None:
        """None: the device is the kernel's, or there is none yet."""
        return self._userspace.process if self._chosen is self._userspace else None

    @property
    def runs_program(self) -> bool:
        """The device that there is was made by a program."""
        return self.process is not None

    @property
    def made_by(self) -> str:
        """`userspace` or `kernel`."""
        return "userspace" if self.process is not None else "kernel"

    @property
    def has_kernels(self) -> bool:
        """A device that is made is the kernel's. Raises: KernelError."""
        return self._kernels() is not None

    @property
    def program(self) -> WireguardProcess:
        """That serves a device where the kernel has no WireGuard, running or not."""
        return self._userspace.process

    @property
    def problem(self) -> str:
        """What goes wrong beside rounds; empty: nothing does."""
        return self._userspace.process.problem

    @property
    def hangs(self) -> bool:
        """Its program has given no answer, again and again, and has to be started anew."""
        return self._userspace.process.hangs

    @property
    def is_in_doubt(self) -> bool:
        """Its program gave no answer, and is to be asked again now."""
        return self._userspace.process.is_in_doubt

    @property
    def without_s(self) -> Mapping[bytes, float]:
        """As for IPsec; here sessions are made when there are packets, so there is none to miss."""
        return {}

    def close(self) -> None:
        """The device stays."""
        if self._kernel is not None:
            self._kernel.close()

    def observe(self, want: TunnelState) -> TunnelState:
        """What is, read anew. Raises: KernelError."""
        self._have = TunnelState()
        link = self._route.link(self._ifname)
        if link is not None:
            self._have = self._read(link)
        if self._given is None:
            self._given = adopted_endpoints(want, self._have)
        return self._have

    def _read(self, link: link_codec.LinkInfo) -> TunnelState:
        foreign = TunnelState(TunnelDevice(self._ifname, link.mtu_bytes, b"", 0, 0, ours=False))
        backend = self._backend_of(link)
        if backend is None:
            return foreign
        reading = backend.read()
        if link.group != TUNNEL_GROUP and (reading is None or backend is not self._userspace):
            return foreign
        if reading is None:
            return TunnelState()  # what served it is gone, and it goes with that
        self._chosen = backend
        device = TunnelDevice(
            self._ifname, link.mtu_bytes, reading.private_key, reading.port, reading.mark, link.up
        )
        return TunnelState(device, {key: each.peer for key, each in reading.peers.items()})

    def _backend_of(self, link: link_codec.LinkInfo) -> Wireguard | None:
        if link.kind == self._userspace.kind:
            return self._userspace
        return self._kernels() if link.kind == KernelWireguard.kind else None

    def _kernels(self) -> KernelWireguard | None:
        """None: this kernel has no WireGuard."""
        if self._kernel is None:
            try:
                self._kernel = KernelWireguard(self._route, self._ifname)
            except KernelError as error:
                if error.errno not in (errno.ENOENT, errno.EOPNOTSUPP, errno.EPROTONOSUPPORT):
                    raise
        return self._kernel

    def readings(self) -> Mapping[bytes, PeerReading]:
        """Traffic, last handshake and present endpoint of each peer. Raises: KernelError."""
        reading = self._chosen.read() if self._chosen is not None else None
        return reading.peers if reading is not None else {}

    def apply(self, changes: Iterable[TunnelChange]) -> list[KernelError]:
        """Tries every change, all peers' in one go; returns the failures."""
        failures: list[KernelError] = []
        peers: list[PeerChange] = []
        for change in changes:
            try:
                match change:
                    case PutTunnel(device):
                        self._put(device)
                    case DropTunnel():
                        self._drop()
                    case _:
                        peers.append(change)
            except KernelError as error:
                failures.append(error)
        if peers and not failures:
            failures += self._apply_peers(peers)
        return failures

    # The device

    def _put(self, device: TunnelDevice) -> None:
        link = self._route.link(self._ifname)
        found = self._have.device
        if link is not None and not (found.ours if found else link.group == TUNNEL_GROUP):
            hint = "somebody else made it; remove or rename it"
            raise KernelError("use", f"link {self._ifname}", errno.EEXIST, hint)
        if link is None or found is None:
            if link is not None:
                self._route.apply(
                    link_codec.delete_link(
                        link.ifindex, what=self._ifname, ignore_errno=(errno.ENODEV,)
                    )
                )
            self._chosen = self._kernels() or self._userspace
            self._chosen.make()
            found = None
            self._have, self._given = TunnelState(), {}
        had = found or TunnelDevice(self._ifname, 0, b"", 0, 0)
        self._backend().write(
            DeviceSetting(
                device.private_key if had.private_key != device.private_key else None,
                # The same port again would close the socket for a moment.
                device.port if had.port != device.port else None,
                device.mark if had.mark != device.mark else None,
            )
        )
        if found is None:
            self._route.apply(no_made_up_addresses(self._ifname))
        self._set_link(device)
        self._have = TunnelState(device, self._have.peers)

    def _set_link(self, device: TunnelDevice) -> None:
        link = link_codec.set_link(
            0,
            what=self._ifname,
            ifname=self._ifname,
            alias=ALIAS,
            group=TUNNEL_GROUP,
            mtu_bytes=device.mtu_bytes,
            up=device.up,
        )
        try:
            self._route.apply(link)
        except KernelError as error:
            if error.errno == errno.EADDRINUSE:  # the kernel's opens its port when it comes up
                raise refused(self._ifname, error.errno) from error
            raise

    def _drop(self) -> None:
        self._backend().remove()
        self._have, self._given = TunnelState(), {}

    def _backend(self) -> Wireguard:
        if self._chosen is None:
            raise KernelError("find", f"tunnel {self._ifname}", errno.ENODEV)
        return self._chosen

    # Peers

    def _apply_peers(self, changes: list[PeerChange]) -> list[KernelError]:
        # What another peer gets has left its holder by that; taking it then would be from the new.
        moved = {
            prefix for each in changes if isinstance(each, PutTunnelPeer) for prefix in each.add
        }
        anew = any(isinstance(each, TakePeerAnew) for each in changes)
        readings = self.readings() if anew else {}
        todo = [(change, self._settings(change, moved, readings)) for change in changes]
        try:
            self._write_peers(todo)
        except KernelError as error:
            if len(todo) == 1 or error.errno in GONE:
                return [error]
        else:
            return []
        # One of them is at fault; it must not keep the others out.
        failures = []
        for each in todo:
            try:
                self._write_peers([each])
            except KernelError as error:
                failures.append(error)
        return failures

    def _write_peers(self, todo: Sequence[tuple[PeerChange, list[PeerSetting]]]) -> None:
        settings = tuple(setting for _, settings in todo for setting in settings)
        if settings:
            self._backend().write(DeviceSetting(peers=settings))
        peers = dict(self._have.peers)
        given = dict(self.given)
        for change, _ in todo:
            _note(change, peers, given)
        self._have, self._given = TunnelState(self._have.device, peers), given

    def _settings(
        self,
        change: PeerChange,
        moved: Collection[Prefix],
        readings: Mapping[bytes, PeerReading],
    ) -> list[PeerSetting]:
        key = change.public_key
        match change:
            case PutTunnelPeer(add=add, take=take, endpoint=endpoint, keepalive_s=keepalive_s):
                put = PeerSetting(key, add, endpoint, keepalive_s)
                gone = tuple(prefix for prefix in take if prefix not in moved)
                sink = [PeerSetting(_SINK, gone), PeerSetting(_SINK, remove=True)]
                only_takes = take and put == PeerSetting(key)
                return [*([] if only_takes else [put]), *(sink if gone else [])]
            case DropEndpoint():
                return []
            case TakePeerAnew():
                return _anew(readings.get(key))
            case CallPeer():
                return self._call(key)
            case DropTunnelPeer():
                return [PeerSetting(key, remove=True)]

    def _call(self, key: bytes) -> list[PeerSetting]:
        """Keepalives that are switched on begin at once.

        Source: set_peer in drivers/net/wireguard/netlink.c, handlePostConfig in wireguard-go.
        """
        peer = self._have.peers.get(key)
        if peer is None:
            return []
        steps = (0, KEEPALIVE_S, peer.keepalive_s)
        return [PeerSetting(key, keepalive_s=each) for each in steps]


def _anew(reading: PeerReading | None) -> list[PeerSetting]:
    """Its endpoint is where its packets came from last: a request has been answered there."""
    if reading is None:
        return []
    peer = reading.peer
    made = PeerSetting(peer.public_key, tuple(peer.allowed), peer.endpoint, peer.keepalive_s)
    return [PeerSetting(peer.public_key, remove=True), made]


def _note(change: PeerChange, peers: dict[bytes, TunnelPeer], given: dict[bytes, Endpoint]) -> None:
    """Keeps up with a change that was made."""
    key = change.public_key
    match change:
        case PutTunnelPeer(add=add, take=take, endpoint=endpoint, keepalive_s=keepalive_s):
            had = peers.get(key, TunnelPeer(key))
            peers[key] = TunnelPeer(
                key,
                (had.allowed | set(add)) - set(take),
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
        case TakePeerAnew() | CallPeer():
            pass
