"""Hosts behind one router, each in a subnet of its own, with WireGuard set up by hand."""

from __future__ import annotations

import itertools
import os
import socket
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from functools import cached_property
from ipaddress import ip_address, ip_network
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from limpet.base.addresses import Address, Endpoint
from limpet.cluster.datagrams.peer_socket import PeerSocket
from limpet.cluster.membership import Membership
from limpet.datapath.tunnel.state import DeviceSetting, PeerSetting
from limpet.datapath.tunnel.wireguard.process import WireguardProcess
from limpet.datapath.tunnel.wireguard.uapi_codec import encode_set, parse_errno
from tests.beds.namespaces import Bed, Netns, connect_namespaces
from tests.beds.tunnel_bed import wireguard_go
from tests.waiting import PATIENCE_S

PORT, TUNNEL_PORT = 7471, 51820
BULK_BYTES = 4 << 20
_numbers = itertools.count()


class RelayBed(Bed):
    """`close` removes everything, whatever became of it."""

    def __init__(self, count: int) -> None:
        super().__init__()
        try:
            self.middle = self.router()
            self.hosts = [Host(self, number) for number in range(1, count + 1)]
        except BaseException:
            self.close()
            raise


class Host:
    """`number` is in its addresses and its key."""

    def __init__(self, bed: RelayBed, number: int) -> None:
        self.bed = bed
        self.number = number
        self.netns = bed.namespace(f"h{number}")
        port = f"port{number}"
        connect_namespaces(self.netns, "eth0", bed.middle, port)
        bed.middle.ip(
            f"addr add 192.0.{number}.254/24 dev {port}",
            f"addr add 2001:db8:{number}::fe/64 dev {port} nodad",
        )
        self.netns.ip(
            f"addr add 192.0.{number}.1/24 dev eth0",
            f"addr add 192.0.{number}.2/24 dev eth0",
            f"addr add 2001:db8:{number}::1/64 dev eth0 nodad",
            f"addr add 2001:db8:{number}::2/64 dev eth0 nodad",
        )
        self.prefer(1)

    def forward(self) -> None:
        """What the agent does on every node."""
        for path in ("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"):
            self.netns.sysctl(path, "1")

    def address(self, version: int = 4, last: int = 1) -> Address:
        """`last`: 1, or 2 for the other one that it has."""
        start = f"192.0.{self.number}." if version == 4 else f"2001:db8:{self.number}::"
        return ip_address(f"{start}{last}")

    def prefer(self, last: int) -> None:
        """What it sends from now on comes from this of its addresses, like after a move."""
        self.netns.ip(
            f"route replace default via 192.0.{self.number}.254 src {self.address(4, last)}",
            f"-6 route replace default via 2001:db8:{self.number}::fe src {self.address(6, last)}",
        )

    @cached_property
    def wireguard(self) -> Wireguard:
        return Wireguard(self.netns, self.number, self.bed.folder, self.bed.undo)

    def open_udp(self, version: int = 4, last: int = 1, port: int = TUNNEL_PORT) -> socket.socket:
        """At one of its addresses; a test that waits for what does not come fails."""
        opened = self.netns.open_socket(version, socket.SOCK_DGRAM)
        opened.bind((str(self.address(version, last)), port))
        opened.settimeout(PATIENCE_S)
        return opened


class Wireguard:
    """One device with real WireGuard; no rekeying, no keepalive, nothing planned."""

    def __init__(self, netns: Netns, number: int, folder: Path, undo: ExitStack) -> None:
        self.netns = netns
        self.inner = f"10.99.0.{number}"
        """What the other ends of its tunnels reach it by."""
        self.key = X25519PrivateKey.from_private_bytes(bytes([number]) * 32)
        # Names are unique on the whole machine: the program's sockets are in one fixed folder.
        self.ifname = f"lre{os.getpid() % 10**7}.{next(_numbers) % 1000}"
        log = folder / f"{self.ifname}.log"
        self._process = WireguardProcess(self.ifname, log=log, program=wireguard_go())
        with netns.entered():
            undo.callback(self._stop)
            self._process.start()
        self._set(DeviceSetting(self.key.private_bytes_raw(), TUNNEL_PORT))
        netns.ip(
            f"addr add {self.inner}/24 dev {self.ifname}",
            f"link set {self.ifname} mtu 1420 up",
        )

    def send_to(self, peers: Mapping[Wireguard, Endpoint]) -> None:
        """Where each peer's packets go from now on."""
        self._set(
            DeviceSetting(
                peers=tuple(
                    PeerSetting(
                        peer.key.public_key().public_bytes_raw(),
                        (ip_network(peer.inner),),
                        endpoint,
                    )
                    for peer, endpoint in peers.items()
                )
            )
        )

    def _set(self, setting: DeviceSetting) -> None:
        with self.netns.entered():
            assert parse_errno(self._process.ask(encode_set(setting))) == 0

    def _stop(self) -> None:
        with self.netns.entered():
            self._process.stop()


def send_bulk(client: Wireguard, server: Wireguard, data: bytes = bytes(BULK_BYTES)) -> None:
    """All of it arrives by the tunnel, as it was. Raises: AssertionError, OSError."""
    with (
        server.netns.listening(server.inner, 5001) as listening,
        client.netns.connected(server.inner, 5001, patience_s=PATIENCE_S) as here,
    ):
        listening.settimeout(PATIENCE_S)
        there, _ = listening.accept()
        sender = threading.Thread(target=here.sendall, args=(data,))
        sender.start()
        got = bytearray()
        with there:
            there.settimeout(PATIENCE_S)
            while len(got) < len(data) and (part := there.recv(1 << 18)):
                got += part
        sender.join()
    assert got == data


def courier_of(membership: Membership, tunnel_port: int = TUNNEL_PORT) -> PeerSocket:
    """Started, in the namespace of the calling thread; it shares the tunnel's port."""
    made = PeerSocket(
        membership.identity,
        port=PORT,
        is_member=membership.is_member,
        is_removed=membership.removal_of,
    )
    made.start()
    made.share_tunnel_port(tunnel_port)
    return made
