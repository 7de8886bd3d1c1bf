"""What one flow costs from pod to pod, however busy the machine is.

iperf3 has two processes that wait for each other and for the processor. Here one thread sends and
receives by turns, so that all the work of the kernel between both sockets is done on its time, in
batches of less than a millisecond; of those the fast ones count, in which nobody else had a turn.

Sides are compared in turns of some milliseconds: what the machine does besides meets both alike.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from bench.figures import ratio_interval
from bench.nodes.node import Pod

_BATCHES = 8
_DATAGRAMS = 100
_BLOCKS = 16
_BLOCK_BYTES = 65536
_BUFFER_BYTES = 4 << 20
_LIMIT_S = 5
_MOST_LOOKS = 20

Turn = Callable[[], float]
"""Some batches; what came through a second."""
Open = Callable[[Pod, Pod, ExitStack], Turn]
Pods = tuple[Pod, Pod]


def pairs_until_narrow(
    flow: Open, ours: Pods, other: Pods, *, pairs: int, width: float
) -> tuple[list[float], list[float]]:
    """Rates of both sides, `pairs` at a time until their ratio is known within `width`.

    That is the width of the 95 % interval. Ends after 20 times as many, narrow or not.
    """
    mine: list[float] = []
    theirs: list[float] = []
    with ExitStack() as undo:
        turns = [(flow(*ours, undo), mine), (flow(*other, undo), theirs)]
        undo.enter_context(before_all_others())
        for turn, _ in turns:
            turn()
        for _ in range(_MOST_LOOKS):
            for number in range(pairs):
                for turn, rates in turns if number % 2 == 0 else reversed(turns):
                    rates.append(turn())
            interval = ratio_interval(mine, theirs, resamples=500)
            if interval is not None and interval[1] - interval[0] < width:
                break
    return mine, theirs


def datagrams(client: Pod, server: Pod, undo: ExitStack) -> Turn:
    """64-byte UDP datagrams over IPv4, thousands a second. A turn raises OSError if one is lost."""
    data = bytes(64)
    receiver = undo.enter_context(_socket(server, socket.SOCK_DGRAM))
    sender = undo.enter_context(_socket(client, socket.SOCK_DGRAM))
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

    return lambda: _DATAGRAMS / fast_s(batch) / 1e3


def stream(client: Pod, server: Pod, undo: ExitStack) -> Turn:
    """One TCP stream over IPv4, Gbit/s."""
    data = bytes(_BLOCK_BYTES)
    into = bytearray(_BLOCK_BYTES)
    listener = undo.enter_context(_socket(server, socket.SOCK_STREAM))
    sender = undo.enter_context(_socket(client, socket.SOCK_STREAM))
    listener.bind((server.address(4), 0))
    listener.listen()
    sender.connect(listener.getsockname())
    receiver = undo.enter_context(listener.accept()[0])

    def batch() -> float:
        started_s = time.perf_counter()
        for _ in range(_BLOCKS):
            sender.sendall(data)
            receiver.recv_into(into, flags=socket.MSG_WAITALL)
        return time.perf_counter() - started_s

    return lambda: _BLOCKS * _BLOCK_BYTES * 8 / fast_s(batch) / 1e9


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


def fast_s(batch: Callable[[], float]) -> float:
    """Seconds of a batch that a quarter are faster than; the first is for warming up."""
    batch()
    return sorted(batch() for _ in range(_BATCHES))[_BATCHES // 4]


@contextmanager
def before_all_others() -> Iterator[None]:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, -20)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, before)
