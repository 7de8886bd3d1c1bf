"""Finding and ending sockets of a network namespace.

Source: sock_diag(7), include/uapi/linux/{inet_diag,sock_diag}.h.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterable
from typing import NamedTuple

from limpet.base.errors import KernelError
from limpet.linux.netlink import codec as wire
from limpet.linux.netlink.socket import NetlinkSocket

TCP, UDP = socket.IPPROTO_TCP, socket.IPPROTO_UDP
ESTABLISHED, SYN_SENT = 1, 2
"""States, the former also of connected sockets of UDP. Source: include/net/tcp_states.h."""
_NETLINK_SOCK_DIAG = 4
_BY_FAMILY, _DESTROY = 20, 21
_REQUEST = struct.Struct("=BBBxI")
_ID_BYTES, _ID_AT = 48, 4
"""Ports, addresses, link and cookie of a socket, as they stand in an answer and in a request."""
_INODE, _INODE_AT = struct.Struct("=I"), 68
_PEER_PORT = struct.Struct(">2xH")
_PEER_AT = 20
_ADDRESS_BYTES = {int(socket.AF_INET): 4, int(socket.AF_INET6): 16}
_MAPPED = bytes(10) + b"\xff\xff"
_ALL_STATES = 0xFFFFFFFF
_COOKIE = struct.Struct("=II")
_GONE = (errno.ENOENT, errno.ESTALE)


class FoundSocket(NamedTuple):
    """A socket of TCP or UDP."""

    family: int
    place: bytes
    """As it stands in requests."""
    is_open: bool
    """Somebody has it, which is not so after it was closed, as long as TCP goes on with it."""

    @property
    def cookie(self) -> int:
        """What eBPF programs know it by."""
        low, high = _COOKIE.unpack_from(self.place, _ID_BYTES - _COOKIE.size)
        return int(low | high << 32)

    @property
    def peer(self) -> tuple[bytes, int]:
        """Packed address and port; of IPv4 also where the socket is one of IPv6."""
        address = self.place[_PEER_AT : _PEER_AT + _ADDRESS_BYTES[self.family]]
        (port,) = _PEER_PORT.unpack_from(self.place)
        return address.removeprefix(_MAPPED), port


def sockets(protocol: int, state: int | None = None) -> list[FoundSocket]:
    """Those of the calling thread's namespace; `state`: that are in it. Raises: KernelError."""
    states = _ALL_STATES if state is None else 1 << state
    found = []
    with NetlinkSocket(_NETLINK_SOCK_DIAG) as diag:
        for family in _ADDRESS_BYTES:
            asked = _request(family, protocol, bytes(_ID_BYTES), states)
            about = ("sockets",)
            for each in diag.dump(wire.Request(_BY_FAMILY, wire.ROOT_MATCH, asked, about)):
                place = bytes(each.body[_ID_AT : _ID_AT + _ID_BYTES])
                (inode,) = _INODE.unpack_from(each.body, _INODE_AT)
                found.append(FoundSocket(family, place, inode != 0))
    return found


def end_sockets(protocol: int, found: Iterable[FoundSocket]) -> None:
    """Ends sockets of the thread's namespace: who waits for one or uses it next gets ECONNABORTED.

    What is closed meanwhile is no failure. Raises: KernelError.
    """
    with NetlinkSocket(_NETLINK_SOCK_DIAG) as diag:
        diag.try_each(
            wire.Request(
                _DESTROY,
                0,
                _request(each.family, protocol, each.place),
                ("socket",),
                ignore_errno=_GONE,
            )
            for each in found
        )


def can_end_sockets() -> bool:
    """Tried with one of our own (CONFIG_INET_DIAG_DESTROY, CONFIG_INET_TCP_DIAG and _UDP_DIAG)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            one.bind(("127.0.0.1", 0))
            one.connect(one.getsockname())
            with NetlinkSocket(_NETLINK_SOCK_DIAG) as diag:
                diag.apply(wire.Request(_DESTROY, 0, _request(socket.AF_INET, UDP, _id_of(one))))
            sockets(TCP, SYN_SENT)
            return True
        except (KernelError, OSError):
            return False


def _id_of(connected: socket.socket) -> bytes:
    """Id of an IPv4 socket in requests, with any cookie."""
    ends = connected.getsockname(), connected.getpeername()
    ports = struct.pack(">HH", ends[0][1], ends[1][1])
    addresses = (socket.inet_aton(host).ljust(16, b"\0") for host, _ in ends)
    return ports + b"".join(addresses) + bytes(4) + b"\xff" * 8


def _request(family: int, protocol: int, at: bytes, states: int = _ALL_STATES) -> bytes:
    return _REQUEST.pack(family, protocol, 0, states) + at
