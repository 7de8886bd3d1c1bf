"""Encrypted tunnels by IPsec: strongSwan, told through its VICI interface.

`IpsecKernel` is to the agent what `TunnelKernel` of WireGuard is: the same plan, the same
changes. ESP is made by the daemon itself (its kernel-libipsec plugin), in UDP, with one tunnel
device for all peers.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from limpet.base.addresses import Endpoint
from limpet.base.errors import KernelError
from limpet.base.ownership import ALIAS, IPSEC_IFNAME, TUNNEL_GROUP
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
from limpet.datapath.tunnel.ipsec.codec import daemon_settings
from limpet.datapath.tunnel.ipsec.daemon import IpsecDaemon, IpsecProgram
from limpet.datapath.tunnel.ipsec.esp import device_ifindex
from limpet.datapath.tunnel.ipsec.keeper import IpsecKeeper
from limpet.datapath.tunnel.ipsec.plan import begins
from limpet.datapath.tunnel.ipsec.port import IpsecPort
from limpet.datapath.tunnel.ipsec.process import IpsecProcess
from limpet.datapath.tunnel.ipsec.state import IpsecIdentity, IpsecPeer
from limpet.datapath.tunnel.state import PeerReading, TunnelDevice, TunnelPeer, TunnelState
from limpet.linux.netlink import link_codec
from limpet.linux.netlink.link_codec import no_made_up_addresses
from limpet.linux.netlink.socket import RouteSocket

_HANGS_S = 10.0
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


@dataclass(frozen=True, slots=True)
class _Names:
    """By which the tunnel's plan knows this node and its peers."""

    own_key: bytes
    uid_of: Callable[[bytes], str]


class IpsecKernel:
    """The daemon, its device and its peers, as far as they are ours.

    `have` is what `observe` read and `apply` changed. SAs are looked after by a thread of its own,
    from the first `observe` to `close`.
    """

    def __init__(
        self,
        route: RouteSocket,
        process: IpsecProcess,
        *,
        identity: IpsecIdentity,
        own_key: bytes,
        uid_of: Callable[[bytes], str],
        inner_port: int = 0,
        bridge: str = "limpet0",
    ) -> None:
        """`own_key`, `uid_of`: what the plan names this node and its peers by (the tunnel's public
        keys), and the uid in a peer's certificate. `inner_port`: where the daemon listens when
        WireGuard has the tunnel's port (`ipsec_port`); 0: it has that port itself. `bridge`: of the
        pods.

        In the network namespace of the calling thread.
        """
        self._route = route
        self._names = _Names(own_key, uid_of)
        self._bridge = bridge
        self._shared = IpsecPort(inner_port)
        self.process = process
        # Whoever asks here is the agent itself, which must not stand still.
        self._daemon = IpsecDaemon(self.process, identity, asks_anyway=False)
        self._reader = _Reader(
            IpsecDaemon(self.process, identity, waits_s=_READ_S, asks_anyway=False)
        )
        # Both work in threads of their own, and so with connections of their own.
        self.program = IpsecProgram(IpsecDaemon(self.process, identity))
        self._keeper = IpsecKeeper(IpsecDaemon(self.process, identity))
        self._have = TunnelState()
        self._given: dict[bytes, Endpoint] | None = None
        self._peers: dict[bytes, IpsecPeer] = {}
        """As they are loaded."""

    @property
    def have(self) -> TunnelState:
        return self._have

    @property
    def given(self) -> Mapping[bytes, Endpoint]:
        """The endpoints that were planned when they were last set, by public key."""
        return self._given or {}

    @property
    def has_kernels(self) -> bool:
        """There is a program that has to be started, whoever makes ESP."""
        return False

    @property
    def runs_program(self) -> bool:
        """Whoever makes ESP."""
        return True

    @property
    def made_by(self) -> str:
        """`strongswan-kernel`: the kernel makes ESP; `strongswan`: the daemon does it itself."""
        return "strongswan-kernel" if self.process.in_kernel else "strongswan"

    @property
    def problem(self) -> str:
        """Why SAs could not be looked after, last; empty: they could."""
        return self._keeper.problem

    @property
    def hangs(self) -> bool:
        """The daemon has given no answer for so long that it has to be started anew."""
        since_s = self.process.silent_since_s
        return since_s is not None and time.monotonic() - since_s > _HANGS_S

    @property
    def is_in_doubt(self) -> bool:
        """Whether it is to be asked again if it answers: that is done beside the rounds."""
        return False

    @property
    def without_s(self) -> Mapping[bytes, float]:
        """Peers that have no SA which carries packets, and since when, by the monotonic clock."""
        silent_since_s = self.process.silent_since_s
        if silent_since_s is None:
            return self._keeper.without_s
        return {**dict.fromkeys(self._peers, silent_since_s), **self._keeper.without_s}

    def close(self) -> None:
        """The daemon, its device and all tunnels stay."""
        self._keeper.stop()
        self._daemon.close()
        self._reader.daemon.close()
        self.program.close()
        self._shared.close()

    # What is

    def observe(self, want: TunnelState) -> TunnelState:
        """What is, read anew. Raises: KernelError."""
        if self.process.silent_since_s is not None:
            self._keeper.start()  # it finds out when that is over
            raise self.process.error("ask", TimeoutError())
        self._have, self._peers = TunnelState(), {}
        if want.device is not None:
            self._aim(want.device)
        if self.program.is_starting:
            return self._have
        link = self._route.link(IPSEC_IFNAME)
        if self.process.pid is None:
            if link is not None and device_ifindex(self._route) is None:
                foreign = TunnelDevice(IPSEC_IFNAME, link.mtu_bytes, b"", 0, 0, ours=False)
                self._have = TunnelState(foreign)
            return self._have
        if link is None or link.group != TUNNEL_GROUP or not self._daemon.knows_this_node():
            return self._have  # half made, or its device is gone: all of it is made anew
        self._have = self._read(link, want.device)
        if self._given is None:
            self._given = adopted_endpoints(want, self._have)
        self._care()
        return self._have

    def _aim(self, device: TunnelDevice) -> None:
        """From now on the daemon is to be the one for this device."""
        port = self._shared.inner_port or device.port
        self.program.port = self._daemon.port = port
        self.program.settings = daemon_settings(
            str(self.process.folder),
            port=port,
            mark=device.mark,
            bridge=self._bridge,
            in_kernel=self.process.in_kernel,
        )
        self._keeper.set_port(port)

    def _read(self, link: link_codec.LinkInfo, want: TunnelDevice | None) -> TunnelState:
        device = TunnelDevice(IPSEC_IFNAME, link.mtu_bytes, b"", 0, 0, link.up)
        if want is not None and not self._daemon.is_right(self.program.settings):
            return TunnelState(device)  # it is started anew, and knows no peer then
        if want is not None and self._shared.is_put(want.port):
            device = replace(want, ifname=IPSEC_IFNAME, mtu_bytes=link.mtu_bytes, up=link.up)
        self._peers = self._daemon.peers()
        endpoints = {sa.public_key: sa.remote for sa in self._daemon.sas() if sa.children}
        return TunnelState(
            device,
            {
                key: TunnelPeer(key, peer.allowed, endpoints.get(key))
                for key, peer in self._peers.items()
            },
        )

    def _care(self) -> None:
        """Also for what an earlier agent has loaded."""
        cared = {
            key: replace(peer, endpoint=self.given.get(key)) for key, peer in self._peers.items()
        }
        self._keeper.keep(
            {key: (peer, begins(self._names.own_key, key)) for key, peer in cared.items()}
        )
        self._keeper.start()

    def readings(self) -> Mapping[bytes, PeerReading]:
        """Traffic, last handshake and present endpoint of each peer. Raises: KernelError."""
        return self._reader.read(self._have.peers)

    # What is changed

    def apply(self, changes: Iterable[TunnelChange]) -> list[KernelError]:
        """Tries every change; returns the failures. SAs of peers follow in the background."""
        failures: list[KernelError] = []
        for change in changes:
            try:
                match change:
                    case PutTunnel(device):
                        self._put(device)
                    case DropTunnel():
                        self._drop()
                    case _:
                        self._apply_peer(change)
            except KernelError as error:
                failures.append(error)
                if isinstance(change, PutTunnel) or error.errno != errno.EPROTO:
                    break  # without a daemon that answers there is nothing to try
        return failures

    def _put(self, device: TunnelDevice) -> None:
        found = self._have.device
        if found is not None and not found.ours:
            hint = "another strongSwan with kernel-libipsec runs here; end it, or use WireGuard"
            raise KernelError("use", f"link {IPSEC_IFNAME}", errno.EEXIST, hint)
        self._aim(device)
        if found is None or not self._daemon.is_right(self.program.settings):
            self._have, self._given, self._peers = TunnelState(), {}, {}
            if self._route.link(IPSEC_IFNAME) is None:
                self.program.stop()  # its device is gone for good
            self.program.start()
            self._route.apply(no_made_up_addresses(IPSEC_IFNAME))
        self._shared.put(device.port)
        link = link_codec.set_link(
            0,
            what=IPSEC_IFNAME,
            ifname=IPSEC_IFNAME,
            alias=ALIAS,
            group=TUNNEL_GROUP,
            mtu_bytes=device.mtu_bytes,
            up=device.up,
        )
        self._route.apply(link)
        self._have = TunnelState(replace(device, ifname=IPSEC_IFNAME), self._have.peers)

    def _drop(self) -> None:
        self._keeper.keep({})
        self.program.stop()
        self._shared.drop()
        self._have, self._given, self._peers = TunnelState(), {}, {}

    # Peers

    def _apply_peer(self, change: PeerChange) -> None:
        key = change.public_key
        peers, given = dict(self._have.peers), dict(self.given)
        match change:
            case PutTunnelPeer(add=add, take=take, endpoint=endpoint):
                had = peers.get(key, TunnelPeer(key))
                allowed = (had.allowed | set(add)) - set(take)
                peers[key] = TunnelPeer(key, allowed, had.endpoint or endpoint)
                if endpoint is not None:
                    given[key] = endpoint
                self._load(
                    IpsecPeer(key, self._names.uid_of(key), allowed, given.get(key)),
                    moved=endpoint is not None,
                )
            case DropTunnelPeer():
                self._unload(key)
                peers.pop(key, None)
                given.pop(key, None)
            case DropEndpoint():
                given.pop(key, None)
            case TakePeerAnew():
                self._end_sas(key)
            case CallPeer():
                self._keeper.hurry(key)
        self._have, self._given = TunnelState(self._have.device, peers), given

    def _load(self, peer: IpsecPeer, *, moved: bool) -> None:
        before = self._peers.get(peer.public_key)
        if before is not None:
            peer = replace(peer, generation=before.generation + moved)
        self._daemon.put(peer)
        self._peers[peer.public_key] = peer
        if before is not None and before.generation != peer.generation:
            self._daemon.forget(before)
        self._keeper.put(peer, first=begins(self._names.own_key, peer.public_key))

    def _unload(self, key: bytes) -> None:
        self._keeper.drop(key)
        peer = self._peers.pop(key, None)
        if peer is not None:
            self._daemon.forget(peer)
        self._end_sas(key)

    def _end_sas(self, key: bytes) -> None:
        for sa in self._daemon.sas():
            if sa.public_key == key:
                # The peer may be one that is not to be trusted any more.
                self._daemon.end_ike(sa.uniqueid, at_once=True)
