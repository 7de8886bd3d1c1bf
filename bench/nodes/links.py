"""Links of a namespace as the kernel tells of them: which there are, and when they are gone.

Source: linux/rtnetlink.h, linux/if_link.h.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator

_RTM_NEWLINK, _RTM_DELLINK, _RTM_GETLINK = 16, 17, 18
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_NLM_F_REQUEST_DUMP = 0x301
_RTMGRP_LINK = 1
_SO_RCVBUFFORCE = 33
_IFLA_IFNAME = 3
_IFLA_NEW_NETNSID = 45
_HEADER = struct.Struct("=IHHII")
_IFINFO = struct.Struct("=BxHiII")
_ATTRIBUTE = struct.Struct("=HH")


class Links:
    """Listens to the links of the namespace that its maker is in."""

    def __init__(self) -> None:
        self._dumps = _netlink_socket(0)
        self._events = _netlink_socket(_RTMGRP_LINK)

    def close(self) -> None:
        self._dumps.close()
        self._events.close()

    def present(self) -> dict[int, str]:
        """The links that are there now: name by index."""
        request = _HEADER.pack(_HEADER.size + _IFINFO.size, _RTM_GETLINK, _NLM_F_REQUEST_DUMP, 1, 0)
        self._dumps.send(request + _IFINFO.pack(0, 0, 0, 0, 0))
        links: dict[int, str] = {}
        while True:
            for kind, body in _messages(self._dumps.recv(1 << 20)):
                if kind == _NLMSG_DONE:
                    return links
                if kind == _NLMSG_ERROR:
                    raise OSError(-struct.unpack_from("=i", body)[0], "list links")
                if kind == _RTM_NEWLINK:
                    name = _attributes(body)[_IFLA_IFNAME].rstrip(b"\0").decode()
                    links[_IFINFO.unpack_from(body)[2]] = name
        raise AssertionError

    def forget_events(self) -> None:
        """What happened until now is not waited for."""
        self._events.setblocking(False)
        try:
            while self._events.recv(1 << 20):
                pass
        except BlockingIOError:
            pass

    def wait_until_gone(self, indexes: set[int], *, limit_s: float) -> int | None:
        """When the last of these links was deleted: monotonic ns of the kernel's word of it.

        None when they were gone before the call: the kernel had said so already. A link that is
        only moved to another namespace is not gone. Listens from the last forget_events() on.
        Raises TimeoutError with the names of those that stay.
        """
        missing = set(indexes)
        deadline = time.monotonic() + limit_s
        waited = False
        while missing:
            try:
                self._events.setblocking(False)
                received = self._events.recv(1 << 20)
            except BlockingIOError:
                waited = True
                received = b""
            try:
                if not received:
                    self._events.settimeout(max(0.001, deadline - time.monotonic()))
                    received = self._events.recv(1 << 20)
            except TimeoutError:
                present = self.present()
                names = [present.get(index, f"index {index}") for index in sorted(missing)]
                raise TimeoutError(f"links still there after {limit_s} s: {names}") from None
            for kind, body in _messages(received):
                # Bridges announce the loss of a port as a DELLINK of their own family.
                family, _, index, _, _ = _IFINFO.unpack_from(body)
                if kind == _RTM_DELLINK and family == 0:
                    if index in missing and _IFLA_NEW_NETNSID in _attributes(body):
                        raise RuntimeError(f"link {index} was moved away instead of deleted")
                    missing.discard(index)
        return time.monotonic_ns() if waited else None


def _netlink_socket(groups: int) -> socket.socket:
    made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC)
    made.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 16 << 20)
    made.bind((0, groups))
    return made


def _messages(received: bytes) -> Iterator[tuple[int, bytes]]:
    offset = 0
    while offset < len(received):
        length, kind, _, _, _ = _HEADER.unpack_from(received, offset)
        yield kind, received[offset + _HEADER.size : offset + length]
        offset += (length + 3) & ~3


def _attributes(body: bytes) -> dict[int, bytes]:
    found = {}
    offset = _IFINFO.size
    while offset + _ATTRIBUTE.size <= len(body):
        length, kind = _ATTRIBUTE.unpack_from(body, offset)
        found[kind & 0x3FFF] = body[offset + _ATTRIBUTE.size : offset + length]
        offset += max((length + 3) & ~3, _ATTRIBUTE.size)
    return found
