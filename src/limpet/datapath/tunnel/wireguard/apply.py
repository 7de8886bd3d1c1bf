"""The tunnel's device: the kernel's WireGuard where there is one, else a userspace one."""

from __future__ import annotations

import errno
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from limpet.base.addresses import Prefix
from limpet.base.errors import KernelError
from limpet.base.ownership import TUNNEL_GROUP, TUNNEL_IFNAME
from limpet.base.settings import KEEPALIVE_S
from limpet.datapath.tunnel.backend import TunnelBackendKernel
from limpet.datapath.tunnel.diff import (
    CallPeer,
    DropEndpoint,
    DropTunnelPeer,
    PeerChange,
    PutTunnelPeer,
    ResetPeer,
    adopted_endpoints,
)
from limpet.datapath.tunnel.state import (
    DeviceSetting,
    PeerReading,
    PeerSetting,
    TunnelDevice,
    TunnelState,
)
from limpet.datapath.tunnel.wireguard.device import (
    GONE,
    KernelWireguard,
    UserspaceWireguard,
    refused,
)
from limpet.datapath.tunnel.wireguard.process import PROGRAM, WireguardProcess
from limpet.linux.netlink import link_codec
from limpet.linux.netlink.socket import RouteSocket

_SINK = b"limpet drops what this key holds"
"""Public key of a peer that nobody is: a prefix that is given to it, and dropped with it, is taken
from its holder without touching the holder's other prefixes."""


class TunnelKernel(TunnelBackendKernel):
    """WireGuard's device and its peers; a thousand peers take some 0.2 s.

    Nothing notifies of changes in peers: nobody else makes any, and where a peer's packets come
    from is read when it is asked for.
    """

    def __init__(
        self,
        route: RouteSocket,
        *,
        log: Path,
        ifname: str = TUNNEL_IFNAME,
        program: str = PROGRAM,
    ) -> None:
        """`log`: of the userspace WireGuard, if one is needed; the rest as `WireguardProcess`."""
        process = WireguardProcess(ifname, log=log, program=program)
        super().__init__(route, ifname, process)
        self._userspace = UserspaceWireguard(process)
        self._kernel: KernelWireguard | None = None
        self._chosen: KernelWireguard | UserspaceWireguard | None = None

    @property
    def runs_program(self) -> bool:
        return self._chosen is self._userspace

    @property
    def made_by(self) -> str:
        return "userspace" if self.runs_program else "kernel"

    @property
    def has_kernels(self) -> bool:
        return self._kernels() is not None

    def close(self) -> None:
        if self._kernel is not None:
            self._kernel.close()

    def observe(self, want: TunnelState) -> TunnelState:
        self.have = TunnelState()
        link = self.link
        if link is not None:
            self.have = self._read(link)
        if self._given is None:
            self._given = adopted_endpoints(want, self.have)
        return self.have

    def _read(self, link: link_codec.LinkInfo) -> TunnelState:
        backend: KernelWireguard | UserspaceWireguard | None = None
        if link.kind == UserspaceWireguard.kind:
            backend = self._userspace
        elif link.kind == KernelWireguard.kind:
            backend = self._kernels()
        if backend is None:
            return self._foreign(link)
        reading = backend.read()
        if link.group != TUNNEL_GROUP and (reading is None or backend is not self._userspace):
            return self._foreign(link)
        if reading is None:
            return TunnelState()  # what served it is gone, and it goes with that
        self._chosen = backend
        device = TunnelDevice(
            self._ifname, link.mtu_bytes, reading.private_key, reading.port, reading.mark, link.up
        )
        return TunnelState(device, {key: each.peer for key, each in reading.peers.items()})

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
        reading = self._chosen.read() if self._chosen is not None else None
        return reading.peers if reading is not None else {}

    # The device

    def _put(self, device: TunnelDevice) -> None:
        link = self.link
        if link is not None and self.have.device is None:  # it came since it was looked for
            self._userspace.process.await_others()
            link = self.link
            self.have = self._read(link) if link is not None else TunnelState()
        found = self.have.device
        if found is not None and not found.ours:
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
            self._forget()
        had = found or TunnelDevice(self._ifname, 0, b"", 0, 0)
        # The same port again would close the socket for a moment. One that is not up takes any.
        is_down = found is None and self.runs_program
        port = device.port if had.port != device.port else None
        self._backend().write(
            DeviceSetting(
                device.private_key if had.private_key != device.private_key else None,
                None if is_down else port,
                device.mark if had.mark != device.mark else None,
            )
        )
        try:
            self._set_link(device, is_new=found is None)
        except KernelError as error:
            if error.errno == errno.EADDRINUSE:  # the kernel's opens its port when it comes up
                raise refused(self._ifname, error.errno) from error
            raise
        if is_down:
            self._open_port(device.port)

    def _open_port(self, port: int) -> None:
        """Has a userspace device that is new listen there. Raises: KernelError."""
        self._userspace.await_up()
        try:
            self._userspace.write(DeviceSetting(port=port))
        except KernelError:
            self._forget()
            raise

    def _drop(self) -> None:
        self._backend().remove()
        self._forget()

    def _backend(self) -> KernelWireguard | UserspaceWireguard:
        if self._chosen is None:
            raise KernelError("find", f"tunnel {self._ifname}", errno.ENODEV)
        return self._chosen

    # Peers

    def _apply_peers(self, changes: list[PeerChange]) -> list[KernelError]:
        # What another peer gets has left its holder by that; taking it then would be from the new.
        moved = {
            prefix for each in changes if isinstance(each, PutTunnelPeer) for prefix in each.add
        }
        resets = any(isinstance(each, ResetPeer) for each in changes)
        readings = self.readings() if resets else {}
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
        self._note(change for change, _ in todo)

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
            case ResetPeer():
                return _reset(readings.get(key))
            case CallPeer():
                return self._call(key)
            case DropTunnelPeer():
                return [PeerSetting(key, remove=True)]

    def _call(self, key: bytes) -> list[PeerSetting]:
        """Keepalives that are switched on begin at once.

        Source: set_peer in drivers/net/wireguard/netlink.c, handlePostConfig in wireguard-go.
        """
        peer = self.have.peers.get(key)
        if peer is None:
            return []
        steps = (0, KEEPALIVE_S, peer.keepalive_s)
        return [PeerSetting(key, keepalive_s=each) for each in steps]


def _reset(reading: PeerReading | None) -> list[PeerSetting]:
    """Its endpoint is where its packets came from last: a request has been answered there."""
    if reading is None:
        return []
    peer = reading.peer
    made = PeerSetting(peer.public_key, tuple(peer.allowed), peer.endpoint, peer.keepalive_s)
    return [PeerSetting(peer.public_key, remove=True), made]
