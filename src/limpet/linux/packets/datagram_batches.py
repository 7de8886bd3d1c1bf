"""Many UDP datagrams in one system call, where the kernel can (Linux 5.0 and later).

What was sent in one call comes in one call, and packets of one size that follow each other leave
in one. Rules of nftables see such a batch as one packet, by the first one's head: so only packets
that carry a tunnel's data are put together, never one of the courier's with others.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence

_SOL_UDP, _UDP_SEGMENT, _UDP_GRO = 17, 103, 104
"""Source: include/uapi/linux/udp.h."""
_MAX_BYTES = 60_000
"""Largest batch: with its headers it is one IP packet."""
_MAX_SEGMENTS = 64
"""Source: UDP_MAX_SEGMENTS, include/linux/udp.h."""
_LARGEST = 1 << 16
_SIZE = struct.Struct("=i")
_SEGMENT = struct.Struct("=H")
_ANCILLARY_BYTES = socket.CMSG_SPACE(_SIZE.size)
TUNNEL_DATA = b"\x04\x00\x00\x00"
"""First word of a transport message. Source: WireGuard's paper, section 5.4.6."""


def takes_batches(connected: socket.socket) -> bool:
    """What comes in is put together from now on; whether what goes out can be, too."""
    try:
        connected.setsockopt(_SOL_UDP, _UDP_GRO, 1)
        connected.getsockopt(_SOL_UDP, _UDP_SEGMENT)
    except OSError:
        return False
    return True


def receive_batch(connected: socket.socket) -> list[bytes]:
    """Datagrams that came together, one at least. Raises: OSError (BlockingIOError: none)."""
    data, ancillary, _, _ = connected.recvmsg(_LARGEST, _ANCILLARY_BYTES)
    for level, kind, value in ancillary:
        if level == _SOL_UDP and kind == _UDP_GRO:
            (size,) = _SIZE.unpack(value[: _SIZE.size])
            return [data[at : at + size] for at in range(0, len(data), size)]
    return [data]


def send_batch(connected: socket.socket, packets: Sequence[bytes], *, together: bool) -> int:
    """Sends in this order; returns how many the kernel did not take. `together`: it can."""
    lost = 0
    at = 0
    while at < len(packets):
        stop = _end_of_run(packets, at) if together else at + 1
        try:
            if stop - at == 1:
                connected.send(packets[at])
            else:
                size = _SEGMENT.pack(len(packets[at]))
                connected.sendmsg([b"".join(packets[at:stop])], [(_SOL_UDP, _UDP_SEGMENT, size)])
        except OSError:  # nobody listens there now, or the buffer is full: UDP
            lost += stop - at
        at = stop
    return lost


def _end_of_run(packets: Sequence[bytes], at: int) -> int:
    """Where the packets end that leave with that at `at`: of its size, and one smaller."""
    size = len(packets[at])
    stop = at + 1
    if not packets[at].startswith(TUNNEL_DATA):
        return stop
    most = min(len(packets), at + _MAX_SEGMENTS, at + max(1, _MAX_BYTES // size))
    while stop < most and packets[stop].startswith(TUNNEL_DATA) and len(packets[stop]) <= size:
        stop += 1
        if len(packets[stop - 1]) < size:
            break
    return stop
