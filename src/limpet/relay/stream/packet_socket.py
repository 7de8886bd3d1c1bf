"""A UDP socket for the packets of one place, for what the kernel cannot hand on."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import Counter
from collections.abc import Callable
from ipaddress import IPv4Address

from limpet.base.addresses import Endpoint
from limpet.base.errors import KernelError
from limpet.cluster.datagrams.peer_datagram import MAGIC
from limpet.cluster.datagrams.udp_sockets import APART_HOP_LIMIT
from limpet.linux.packets.datagram_batches import receive_batch, send_batch, takes_batches

_LOOPBACK = IPv4Address("127.0.0.1")
_IP_MTU_DISCOVER, _IPV6_MTU_DISCOVER, _IP_PMTUDISC_PROBE = 10, 23, 3
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33
"""Source: include/uapi/linux/in.h, in6.h, include/uapi/asm-generic/socket.h."""
_HOP_LIMIT = struct.pack("=i", APART_HOP_LIMIT)
_BUFFER_BYTES = 4 << 20
_BATCHES = 16
_LOOPBACK_BATCHES = 4
"""Reads of at most 64 KiB: no more in one turn than a session's queue holds (RELAY_UNREAD)."""

Sink = Callable[[bytes], None]
"""Takes a packet and never fails."""


def nowhere(_packet: bytes) -> None:
    """Drops the packet: no end is attached."""


class PacketSocket:
    """Hears and sends for one place only, as the kernel sees to. On the event loop's thread."""

    def __init__(
        self, local: Endpoint, remote: Endpoint, counters: Counter[str], batches: int = _BATCHES
    ) -> None:
        """In the network namespace of the calling thread. Raises: KernelError.

        `local`: port 0 is any. `counters`: of packets that the kernel did not take.
        `batches`: reads before others have their turn.
        """
        self.onward: Sink = nowhere
        self.remote = remote
        self._counters = counters
        self._batches = batches
        self._queue: list[bytes] = []
        self._loop = asyncio.get_running_loop()
        try:
            self._socket = _open(local, remote)
        except OSError as error:
            what = f"UDP port {local[1]} at {local[0]}"
            raise KernelError("open", what, error.errno or 0) from error
        self.local: Endpoint = (local[0], self._socket.getsockname()[1])
        self._together = takes_batches(self._socket)
        self._apart = (
            (socket.IPPROTO_IP, socket.IP_TTL, _HOP_LIMIT)
            if local[0].version == 4
            else (socket.IPPROTO_IPV6, socket.IPV6_HOPLIMIT, _HOP_LIMIT)
        )
        self._loop.add_reader(self._socket.fileno(), self._read)

    def close(self) -> None:
        """Safe to call again."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
        self._queue.clear()
        self.onward = nowhere

    def send(self, packet: bytes) -> None:
        """Queues the packet until the end of this turn of the loop."""
        if not self._queue:
            self._loop.call_soon(self._flush)
        self._queue.append(packet)

    def _read(self) -> None:
        for _ in range(self._batches):
            try:
                packets = receive_batch(self._socket)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:  # of an earlier packet, as an ICMP error came back
                continue
            onward = self.onward
            for packet in packets:
                onward(packet)

    def _flush(self) -> None:
        queue, self._queue = self._queue, []
        if self._socket.fileno() < 0:
            return
        start = 0
        for at, packet in enumerate(queue):
            if packet.startswith(MAGIC):
                self._send_together(queue[start:at])
                self._send_apart(packet)
                start = at + 1
        self._send_together(queue[start:])

    def _send_together(self, packets: list[bytes]) -> None:
        lost = send_batch(self._socket, packets, together=self._together)
        if lost:
            self._counters["unsendable"] += lost

    def _send_apart(self, packet: bytes) -> None:
        """As the node's courier has sent it."""
        try:
            self._socket.sendmsg([packet], [self._apart])
        except OSError:
            self._counters["unsendable"] += 1


def loopback_socket(tunnel_port: int, counters: Counter[str]) -> PacketSocket:
    """Stands for a peer: the node's own tunnel sends to it and hears it. Raises: KernelError."""
    local, remote = (_LOOPBACK, 0), (_LOOPBACK, tunnel_port)
    return PacketSocket(local, remote, counters, _LOOPBACK_BATCHES)


def _open(local: Endpoint, remote: Endpoint) -> socket.socket:
    """Raises: OSError."""
    v4 = local[0].version == 4
    family = socket.AF_INET if v4 else socket.AF_INET6
    opened = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        opened.bind((str(local[0]), local[1]))
        opened.connect((str(remote[0]), remote[1]))
        # A packet that is too large for the way is lost, as it is in the kernel's.
        level, option = (
            (socket.IPPROTO_IP, _IP_MTU_DISCOVER)
            if v4
            else (socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER)
        )
        opened.setsockopt(level, option, _IP_PMTUDISC_PROBE)
        for each in (_SO_SNDBUFFORCE, _SO_RCVBUFFORCE):
            opened.setsockopt(socket.SOL_SOCKET, each, _BUFFER_BYTES)
    except OSError:
        opened.close()
        raise
    return opened
