"""A cable on which frames are on their way for a time: `python -m limpet.lab.world.delay`.

frame on one device ── lost? ──► queue, due later ──► sent on the other device

It runs in a namespace with two devices and nothing else, for kernels without netem. Frames are
taken and given as the kernel holds them: what is still to be cut into packets (GSO) or to be
summed goes on in one piece, with the words that say so in front of it.
Source: man 7 packet; linux/if_packet.h, linux/virtio_net.h.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import select
import socket
import time
from collections import deque
from collections.abc import Sequence

from limpet.base.process.lifetime import notify_service_manager

_ETH_P_ALL = 3
_PACKET_VNET_HDR, _PACKET_IGNORE_OUTGOING = 15, 23
_SOL_PACKET = 263
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33
_LARGEST_BYTES = 1 << 17
"""Room for a frame: the kernel's are of 64 KiB at most, and a header."""
_KERNEL_QUEUE_BYTES = 16 << 20
"""Size of the kernel's queue for frames that come while this process has no processor."""
_QUEUE_BYTES = 64 << 20
"""Most that is on its way at once in one direction; further frames are lost."""
_AT_ONCE = 64
"""Frames that are taken before others are sent."""


class DelayedWay:
    """One direction; frames do not overtake each other."""

    def __init__(
        self, source: socket.socket, target: socket.socket, delay_s: float, loss: float
    ) -> None:
        """`loss`: of 1.0."""
        self.source = source
        self._target = target
        self._delay_s = delay_s
        self._loss = loss
        self._frames: deque[tuple[float, bytes]] = deque()
        self._queued_bytes = 0
        self._room = bytearray(_LARGEST_BYTES)

    @property
    def due_s(self) -> float | None:
        """When the next one arrives; None: none is on its way."""
        return self._frames[0][0] if self._frames else None

    def take(self) -> None:
        """What has come since the last time, or some of it."""
        for _ in range(_AT_ONCE):
            try:
                size = self.source.recv_into(self._room, 0, socket.MSG_DONTWAIT)
            except OSError:
                return  # nothing more, or the device is just being taken away
            lost = self._loss and random.random() < self._loss
            if not lost and self._queued_bytes + size <= _QUEUE_BYTES:
                self._queued_bytes += size
                frame = bytes(memoryview(self._room)[:size])
                self._frames.append((time.monotonic() + self._delay_s, frame))

    def send_due(self) -> None:
        now_s = time.monotonic()
        while self._frames and self._frames[0][0] <= now_s:
            _, frame = self._frames.popleft()
            self._queued_bytes -= len(frame)
            with contextlib.suppress(OSError):  # as a wire that nobody is at
                self._target.send(frame)


def open_end(ifname: str) -> socket.socket:
    """All frames that come in by a device, each behind a virtio_net_hdr. Raises: OSError."""
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    end.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
    end.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    end.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _KERNEL_QUEUE_BYTES)
    end.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _KERNEL_QUEUE_BYTES)
    end.bind((ifname, _ETH_P_ALL))
    return end


def pass_on(ways: Sequence[DelayedWay]) -> None:
    """Passes frames on for ever."""
    by_source = {way.source: way for way in ways}
    while True:
        dues = [way.due_s for way in ways if way.due_s is not None]
        wait_s = max(min(dues) - time.monotonic(), 0.0) if dues else None
        for source in select.select(list(by_source), [], [], wait_s)[0]:
            by_source[source].take()
        for way in ways:
            way.send_due()


def main() -> None:
    """Says that it is ready once frames pass. Ends by a signal."""
    parser = argparse.ArgumentParser(prog="python -m limpet.lab.world.delay", description=__doc__)
    parser.add_argument("one")
    parser.add_argument("other")
    parser.add_argument("--delay-ms", type=float, required=True)
    parser.add_argument("--loss-percent", type=float, required=True)
    given = parser.parse_args()
    one, other = open_end(given.one), open_end(given.other)
    delay_s, loss = given.delay_ms / 1e3, given.loss_percent / 100
    notify_service_manager("READY=1")
    pass_on((DelayedWay(one, other, delay_s, loss), DelayedWay(other, one, delay_s, loss)))


if __name__ == "__main__":
    main()
