"""Ending sockets of a network namespace.

Source: sock_diag(7), include/uapi/linux/{inet_diag,sock_diag}.h.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Collection

from limpet.base.errors import KernelError
from limpet.linux.netlink import codec as wire
from limpet.linux.netlink.socket import NetlinkSocket

_NETLINK_SOCK_DIAG = 4
_BY_FAMILY, _DESTROY = 20, 21
_REQUEST = struct.Struct("=BBBxI")
_ID_BYTES, _ID_AT = 48, 4
"""Ports, addresses, link and cookie of a socket, as they stand in an answer and in a request."""
_ALL_STATES = 0xFFFFFFFF
_COOKIE = struct.Struct("=II")
_GONE = (errno.ENOENT, errno.ESTALE)
_FAMILIES = (socket.AF_INET, socket.AF_INET6)


def end_sockets(cookies: Collection[int]) -> None:
    """Ends sockets of UDP in the calling thread's namespace: whoever waits for one, or uses it
    next, gets ECONNABORTED. Raises: KernelError."""
    with NetlinkSocket(_NETLINK_SOCK_DIAG) as diag:
        for family in _FAMILIES:
            asked = _request(family, bytes(_ID_BYTES))
            about = ("sockets of UDP",)
            found = diag.dump(wire.Request(_BY_FAMILY, wire.ROOT_MATCH, asked, about))
            ids = [bytes(each.body[_ID_AT : _ID_AT + _ID_BYTES]) for each in found]
            diag.try_each(  # what is closed meanwhile is no failure
                wire.Request(_DESTROY, 0, _request(family, each), about, ignore_errno=_GONE)
                for each in ids
                if _cookie(each) in cookies
            )


def can_end_sockets() -> bool:
    """Tried with one of our own (CONFIG_INET_DIAG_DESTROY, CONFIG_INET_UDP_DIAG)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            one.bind(("127.0.0.1", 0))
            one.connect(one.getsockname())
            with NetlinkSocket(_NETLINK_SOCK_DIAG) as diag:
                diag.apply(wire.Request(_DESTROY, 0, _request(socket.AF_INET, _id_of(one))))
            return True
        except (KernelError, OSError):
            return False


def _id_of(connected: socket.socket) -> bytes:
    """Of one of IPv4; any cookie."""
    ends = connected.getsockname(), connected.getpeername()
    ports = struct.pack(">HH", ends[0][1], ends[1][1])
    addresses = (socket.inet_aton(host).ljust(16, b"\0") for host, _ in ends)
    return ports + b"".join(addresses) + bytes(4) + b"\xff" * 8


def _request(family: int, at: bytes) -> bytes:
    return _REQUEST.pack(family, socket.IPPROTO_UDP, 0, _ALL_STATES) + at


def _cookie(at: bytes) -> int:
    low, high = _COOKIE.unpack_from(at, _ID_BYTES - _COOKIE.size)
    return int(low | high << 32)
