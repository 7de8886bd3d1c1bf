"""Encrypted tunnels by IPsec: strongSwan, told through its VICI interface.

ESP, in UDP, is made by the kernel, or by the daemon itself (its kernel-libipsec plugin), with one
tunnel device for all peers.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from limpet.base.errors import KernelError, LimpetError
from limpet.base.ownership import IPSEC_IFNAME, TUNNEL_GROUP
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
from limpet.datapath.tunnel.ipsec.codec import daemon_settings
from limpet.datapath.tunnel.ipsec.daemon import IpsecDaemon
from limpet.datapath.tunnel.ipsec.esp import device_ifindex
from limpet.datapath.tunnel.ipsec.keeper import IpsecKeeper
from limpet.datapath.tunnel.ipsec.plan import begins
from limpet.datapath.tunnel.ipsec.port import IpsecPort
from limpet.datapath.tunnel.ipsec.process import IpsecProcess
from limpet.datapath.tunnel.ipsec.state import IpsecIdentity, IpsecPeer
from limpet.datapath.tunnel.state import PeerReading, TunnelDevice, TunnelPeer, TunnelState
from limpet.linux.netlink import link_codec
from limpet.linux.netlink.socket import RouteSocket

_READ_S = 0.5


class _Reader:
    """What the daemon says of peers' traffic."""

    def __init__(self, daemon: IpsecDaemon) -> None:
        self.daemon = daemon
        self._made_ns: dict[int, int] = {}

    def read(self, peers: Mapping[bytes, TunnelPeer]) -> Mapping[bytes, PeerReading]:
        """Raises: KernelError."""
        readings = {key: PeerReading(replace(peer, endpoint=None)) for key, peer in peers.items()}
        if not readings:
            return readings
        now_ns = time.time_ns()
        made_ns: dict[int, int] = {}
        for sa in self.daemon.sas():
            if sa.public_key not in readings or not sa.established:
                continue
            # Ages are told in whole seconds; what was made of one first stays.
            made_ns[sa.uniqueid] = self._made_ns.get(sa.uniqueid, now_ns - sa.age_s * 10**9)
            reading = readings[sa.public_key]
            readings[sa.public_key] = PeerReading(
                replace(reading.peer, endpoint=sa.remote),
                made_ns[sa.uniqueid],
                reading.received_bytes + sum(child.received_bytes for child in sa.children),
                reading.sent_bytes + sum(child.sent_bytes for child in sa.children),
            )
        self._made_ns = made_ns
        return readings


class IpsecKernel(TunnelBackendKernel):
    """strongSwan's daemon, its device and its peers.

    A thread of its own looks after SAs, from the first `observe` to `close`.
    """

    def __init__(
        self,
        route: RouteSocket,
        process: IpsecProcess,
        *,
        identity: IpsecIdentity,
        own_key: bytes,
        identity_key_of: Callable[[bytes], bytes],
        inner_port: int = 0,
        bridge: str = "limpet0",
    ) -> None:
        """`own_key`: this node's tunnel key; `identity_key_of`: the grant's key of the peer with
        that tunnel key. `inner_port`: where the daemon listens when WireGuard has the tunnel's port
        (`ipsec.port`); 0: it has that port itself. `bridge`: of the pods.
        """
        # These two work in threads of their own, and so with connections of their own.
        self.program: IpsecDaemon = IpsecDaemon(process, identity)
        self._keeper = IpsecKeeper(IpsecDaemon(process, identity))
        super().__init__(route, IPSEC_IFNAME, self.program)
        # Here the agent itself asks, which must not stand still.
        self._daemon = IpsecDaemon(process, identity, asks_anyway=False)
        self._reader = _Reader(IpsecDaemon(process, identity, waits_s=_READ_S, asks_anyway=False))
        self._own_key = own_key
        self._identity_key_of = identity_key_of
        self._bridge = bridge
        self._shared = IpsecPort(inner_port)
        self.process = process
        self._peers: dict[bytes, IpsecPeer] = {}
        """As they are loaded."""

    @property
    def made_by(self) -> str:
        return "strongswan-kernel" if self.process.in_kernel else "strongswan"

    @property
    def problem(self) -> str:
        return self._keeper.problem

    @property
    def without_s(self) -> Mapping[bytes, float]:
        silent_since_s = self.process.silent_since_s
        if silent_since_s is None:
            return self._keeper.without_s
        return {**dict.fromkeys(self._peers, silent_since_s), **self._keeper.without_s}

    def close(self) -> None:
        self._keeper.stop()
        self._daemon.close()
        self._reader.daemon.close()
        self.program.close()
        self._shared.close()

    def observe(self, want: TunnelState) -> TunnelState:
        if self.process.silent_since_s is not None:
            self._keeper.start()  # it finds out when that is over
            raise self.process.error("ask", TimeoutError())
        known = self._peers
        self.have, self._peers = TunnelState(), {}
        try:
            return self._look(want)
        except LimpetError:
            self._peers = known  # whose ways come about no more, as they are told until it answers
            raise

    def _look(self, want: TunnelState) -> TunnelState:
        if want.device is not None:
            self._aim(want.device)
        if self.program.is_starting:
            return self.have
        link = self.link
        if self.process.pid is None:
            if link is not None and device_ifindex(self._route) is None:
                self.have = self._foreign(link)
            return self.have
        if link is None or link.group != TUNNEL_GROUP or not self._daemon.knows_this_node():
            return self.have  # half made, or its device is gone: all of it is made again
        self.have = self._read(link, want.device)
        if self._given is None:
            self._given = adopted_endpoints(want, self.have)
        self._keep_loaded()
        return self.have

    def _aim(self, device: TunnelDevice) -> None:
        """From now on the daemon is to be the one for this device."""
        port = self._shared.inner_port or device.port
        settings = daemon_settings(
            str(self.process.folder),
            port=port,
            mark=device.mark,
            bridge=self._bridge,
            in_kernel=self.process.in_kernel,
        )
        for daemon in (self.program, self._daemon):
            daemon.port, daemon.settings = port, settings
        self._keeper.set_port(port)

    def _read(self, link: link_codec.LinkInfo, want: TunnelDevice | None) -> TunnelState:
        device = TunnelDevice(IPSEC_IFNAME, link.mtu_bytes, b"", 0, 0, link.up)
        if want is not None and not self._daemon.is_right():
            return TunnelState(device)  # it is started again, and knows no peer then
        if want is not None and self._shared.is_put(want.port):
            device = replace(want, mtu_bytes=link.mtu_bytes, up=link.up)
        self._peers = self._daemon.peers()
        endpoints = {sa.public_key: sa.remote for sa in self._daemon.sas() if sa.children}
        return TunnelState(
            device,
            {
                key: TunnelPeer(key, peer.allowed, endpoints.get(key))
                for key, peer in self._peers.items()
            },
        )

    def _keep_loaded(self) -> None:
        """Has the SAs of all loaded peers looked after, also of those an earlier agent loaded."""
        self._keeper.keep(
            {
                key: (replace(peer, endpoint=self.given.get(key)), begins(self._own_key, key))
                for key, peer in self._peers.items()
            }
        )
        self._keeper.start()

    def readings(self) -> Mapping[bytes, PeerReading]:
        return self._reader.read(self.have.peers)

    # What is changed

    def _put(self, device: TunnelDevice) -> None:
        found = self.have.device
        if found is not None and not found.ours:
            hint = "another strongSwan with kernel-libipsec runs here; end it, or use WireGuard"
            raise KernelError("use", f"link {IPSEC_IFNAME}", errno.EEXIST, hint)
        self._aim(device)
        is_new = found is None or not self._daemon.is_right()
        if is_new:
            self._forget()
            self._peers = {}
            if self.link is None:
                self.program.stop()  # its device is gone for good
            self.program.start()
        self._shared.put(device.port)
        self._set_link(device, is_new=is_new)

    def _drop(self) -> None:
        self._keeper.rest()
        self.program.stop()
        self._shared.drop()
        self._forget()
        self._peers = {}

    # Peers: they are loaded here, and SAs follow in the background.

    def _apply_peers(self, changes: list[PeerChange]) -> list[KernelError]:
        failures: list[KernelError] = []
        for change in changes:
            try:
                self._apply_peer(change)
            except KernelError as error:
                failures.append(error)
                if error.errno != errno.EPROTO:
                    break  # without a daemon that answers there is nothing to try
            else:
                self._note([change])
        return failures

    def _apply_peer(self, change: PeerChange) -> None:
        key = change.public_key
        match change:
            case PutTunnelPeer(endpoint=endpoint):
                allowed = change.allowed_after(self.have.peers.get(key, TunnelPeer(key)))
                where = endpoint or self.given.get(key)
                self._load(
                    IpsecPeer(key, self._identity_key_of(key), allowed, where),
                    moved=endpoint is not None,
                )
            case DropTunnelPeer():
                self._unload(key)
            case ResetPeer():
                self._end_sas(key)
            case CallPeer():
                self._keeper.hurry(key)
            case DropEndpoint():
                pass

    def _load(self, peer: IpsecPeer, *, moved: bool) -> None:
        before = self._peers.get(peer.public_key)
        if before is not None:
            peer = replace(peer, generation=before.generation + moved)
        self._daemon.put(peer)
        self._peers[peer.public_key] = peer
        self._keeper.put(peer, first=begins(self._own_key, peer.public_key))
        # Until now the keeper's thread may have loaded what it knew of the peer before.
        if before is not None and before.generation != peer.generation:
            self._daemon.forget(before)
        elif before is not None:
            self._daemon.put(peer)

    def _unload(self, key: bytes) -> None:
        self._keeper.drop(key)
        peer = self._peers.pop(key, None)
        if peer is not None:
            self._daemon.forget(peer)
        self._end_sas(key)
        self._keeper.end_late(key)

    def _end_sas(self, key: bytes) -> None:
        for sa in self._daemon.sas():
            if sa.public_key == key:
                # The peer may be one that is not to be trusted any more.
                self._daemon.end_ike(sa.uniqueid, at_once=True)
