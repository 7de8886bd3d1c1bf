"""Sockets that outlive the process: kept by the service manager, or taken from the process before.

A socket that is open somewhere keeps what arrives: nothing is lost while one process ends and the
next begins. systemd keeps ours in its file descriptor store (`FileDescriptorStoreMax=`), also over
a crash; where none runs, `keeper` does. Source: sd_notify(3), sd_listen_fds(3).
"""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterable, Sequence

from limpet.base.addresses import Address
from limpet.base.disk import cause
from limpet.base.errors import LimpetError
from limpet.base.process.lifetime import store_descriptors, stored_descriptors
from limpet.linux.source_filter import leave_out

PORT = 53
MOST_SOCKETS = 32
_NAME = "dns"
_RECEIVE_BYTES = 4 << 20
"""What arrives while nobody reads: a second of thousands of questions."""
_SO_RCVBUFFORCE, _IP_FREEBIND = 33, 15
_KINDS = (socket.SOCK_DGRAM, socket.SOCK_STREAM)


def wanted_ends(addresses: Iterable[Address]) -> list[tuple[int, str]]:
    """Kind and address of each socket that there should be."""
    return [(kind, str(address)) for address in addresses for kind in _KINDS]


def end_of(each: socket.socket) -> tuple[int, str]:
    return each.type, str(each.getsockname()[0])


def adopt(
    fds: Iterable[int], addresses: Sequence[Address]
) -> tuple[list[socket.socket], list[socket.socket]]:
    """Those among the descriptors that are to listen at these addresses, and those opened now.

    Others are closed. Raises: LimpetError.
    """
    wanted = dict.fromkeys(wanted_ends(addresses))
    adopted: dict[tuple[int, str], socket.socket] = {}
    for fd in fds:
        each = socket.socket(fileno=fd)
        if each.family in (socket.AF_INET, socket.AF_INET6) and end_of(each) in wanted:
            each.setblocking(False)
            leave_out(each, ())  # the process before may have been killed in a flood
            adopted.setdefault(end_of(each), each)
        else:
            each.close()
    opened: list[socket.socket] = []
    try:
        for end in wanted:
            if end not in adopted and (made := _open(*end)) is not None:
                opened.append(made)
    except LimpetError:
        for each in (*adopted.values(), *opened):
            each.close()
        raise
    return list(adopted.values()), opened


def _open(kind: int, address: str) -> socket.socket | None:
    """At an address that need not be the machine's yet; None: the kernel has no such family."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        made = socket.socket(family, kind | socket.SOCK_NONBLOCK)
    except OSError as error:
        if error.errno == errno.EAFNOSUPPORT:
            return None
        raise LimpetError(f"open a socket for {address}: {cause(error)}") from error
    try:
        made.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if kind == socket.SOCK_STREAM:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(PermissionError):
            made.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BYTES)
        made.bind((address, PORT))
        if kind == socket.SOCK_STREAM:
            made.listen(256)
    except OSError as error:
        made.close()
        name = "UDP" if kind == socket.SOCK_DGRAM else "TCP"
        raise LimpetError(
            f"listen at {address} port {PORT} ({name}): {cause(error)} (`ss -lnp 'sport = {PORT}'` "
            "says who does; dns_listen changes the address)"
        ) from error
    return made


# The service manager


def stored_fds() -> list[int]:
    """Descriptors that the service manager has kept for us; they are ours from now on."""
    return [fd for _, fd in stored_descriptors()]


def store(sockets: Sequence[socket.socket]) -> None:
    """The service manager keeps these, and none that it kept before."""
    store_descriptors(_NAME, [each.fileno() for each in sockets])
