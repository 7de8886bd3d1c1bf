"""A UDP socket on loopback that stands for a peer: the node's tunnel sends to it and hears it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address

from limpet.base.addresses import Endpoint
from limpet.base.errors import KernelError
from limpet.linux.datagram_batches import receive_batch, send_batch, takes_batches

_LOOPBACK = "127.0.0.1"
_BATCHES_PER_TURN = 4
"""Then others have their turn."""
_BUFFER_BYTES = 1 << 20
_SO_RCVBUFFORCE = 33
"""Source: include/uapi/asm-generic/socket.h."""


class LoopbackPeer:
    """Hears the tunnel's port only."""

    def __init__(self, tunnel_port: int, on_packet: Callable[[bytes], None]) -> None:
        """Within a running loop. Raises: KernelError."""
        self._on_packet = on_packet
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
            self._socket.bind((_LOOPBACK, 0))
            self._socket.connect((_LOOPBACK, tunnel_port))
        except OSError as error:
            self._socket.close()
            raise KernelError("open", "a UDP socket on loopback", error.errno or 0) from error
        self.endpoint: Endpoint = (IPv4Address(_LOOPBACK), self._socket.getsockname()[1])
        self.lost = 0
        """Packets that the tunnel did not take."""
        self._together = takes_batches(self._socket)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.fileno(), self._readable)

    def deliver(self, packets: Sequence[bytes]) -> None:
        """To the tunnel, or nowhere."""
        self.lost += send_batch(self._socket, packets, together=self._together)

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()

    def _readable(self) -> None:
        for _ in range(_BATCHES_PER_TURN):
            try:
                packets = receive_batch(self._socket)
            except OSError:  # nothing more, or a packet of ours that nobody took
                return
            for packet in packets:
                self._on_packet(packet)
