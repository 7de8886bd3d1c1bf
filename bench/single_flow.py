"""What one flow costs from pod to pod, however busy the machine is.

iperf3 has two processes that wait for each other and for the processor. Here one thread sends and
receives by turns, so that all the work of the kernel between both sockets is done on its time, in
batches of about a millisecond; of those the fast ones count, in which nobody else had a turn.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable

from bench.node import Pod

_BATCHES = 120
_DATAGRAMS = 100
_BLOCKS = 16
_BLOCK_BYTES = 65536
_BUFFER_BYTES = 4 << 20
_LIMIT_S = 5


def datagrams_kpps(client: Pod, server: Pod) -> float:
    """64-byte UDP datagrams over IPv4, thousands a second. Raises: RuntimeError if one is lost."""
    data = bytes(64)
    with (
        _socket(server, socket.SOCK_DGRAM) as receiver,
        _socket(client, socket.SOCK_DGRAM) as sender,
    ):
        receiver.bind((server.address(4), 0))
        sender.connect(receiver.getsockname())

        def batch() -> float:
            started_s = time.perf_counter()
            for _ in range(_DATAGRAMS):
                sender.send(data)
            took_s = time.perf_counter() - started_s
            for _ in range(_DATAGRAMS):
                receiver.recv(len(data))
            return took_s

        return _DATAGRAMS / _fast(batch) / 1e3


def stream_gbit_per_s(client: Pod, server: Pod) -> float:
    """One TCP stream over IPv4."""
    data = bytes(_BLOCK_BYTES)
    into = bytearray(_BLOCK_BYTES)
    with (
        _socket(server, socket.SOCK_STREAM) as listener,
        _socket(client, socket.SOCK_STREAM) as sender,
    ):
        listener.bind((server.address(4), 0))
        listener.listen()
        sender.connect(listener.getsockname())
        receiver, _ = listener.accept()
        with receiver:

            def batch() -> float:
                started_s = time.perf_counter()
                for _ in range(_BLOCKS):
                    sender.sendall(data)
                    receiver.recv_into(into, flags=socket.MSG_WAITALL)
                return time.perf_counter() - started_s

            return _BLOCKS * _BLOCK_BYTES * 8 / _fast(batch) / 1e9


def _socket(pod: Pod, kind: socket.SocketKind) -> socket.socket:
    with pod.netns.inside():
        made = socket.socket(socket.AF_INET, kind)
    # Not by settimeout, which asks `poll` before each call.
    limit = struct.pack("@ll", _LIMIT_S, 0)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
    return made


def _fast(batch: Callable[[], float]) -> float:
    """Seconds of a batch that only a tenth are faster than; the first ones are for warming up."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, -20)
    try:
        for _ in range(_BATCHES // 10):
            batch()
        return sorted(batch() for _ in range(_BATCHES))[_BATCHES // 10]
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, before)
