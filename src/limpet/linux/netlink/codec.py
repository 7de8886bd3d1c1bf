"""Netlink messages and their attributes: bytes <-> values, no sockets.

A message is built without its sequence number (`frame` puts it in), so that encoders stay pure and
a caller may send several in one datagram. Integers are host-endian except addresses and ports.

Source: include/uapi/linux/{netlink,rtnetlink}.h.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass

NLMSG_ERROR, NLMSG_DONE = 2, 3
RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK, RTM_SETLINK = 16, 17, 18, 19
RTM_NEWADDR, RTM_DELADDR, RTM_GETADDR = 20, 21, 22
RTM_NEWROUTE, RTM_DELROUTE, RTM_GETROUTE = 24, 25, 26
RTM_NEWNEIGH, RTM_DELNEIGH, RTM_GETNEIGH = 28, 29, 30
RTM_NEWRULE, RTM_DELRULE, RTM_GETRULE = 32, 33, 34
RTM_NEWQDISC = 36
RTM_NEWTFILTER = 44

REQUEST, ACK, ROOT_MATCH = 0x1, 0x4, 0x300
REPLACE, EXCL, CREATE = 0x100, 0x200, 0x400
DUMP_INTERRUPTED = 0x10
AF_UNSPEC, AF_INET, AF_BRIDGE, AF_INET6 = 0, 2, 7, 10
NESTED = 0x8000

_NLMSG = struct.Struct("=IHHII")
_ATTR = struct.Struct("=HH")
_U32 = struct.Struct("=I")


@dataclass(frozen=True, slots=True)
class Request:
    """One message without its sequence number."""

    type: int
    flags: int
    body: bytes
    about: tuple[object, ...] = ()
    """Words for error texts (`link`, `lim1234`), joined only when there is an error."""
    ignore_errno: tuple[int, ...] = ()
    """Errors that mean that the wanted state is there already."""

    @property
    def what(self) -> str:
        """Object of the request: `link lim1234`, `route 10.0.0.0/8 table 5148`."""
        return " ".join(map(str, self.about))


def attr(kind: int, payload: bytes) -> bytes:
    length = 4 + len(payload)
    return _ATTR.pack(length, kind) + payload + b"\0" * (-length & 3)


def attr_u32(kind: int, value: int) -> bytes:
    return _ATTR.pack(8, kind) + _U32.pack(value)


def attr_text(kind: int, value: str) -> bytes:
    return attr(kind, value.encode() + b"\0")


def nest(kind: int, *parts: bytes) -> bytes:
    return attr(kind | NESTED, b"".join(parts))


def frame(request: Request, sequence: int, *, ack: bool) -> bytes:
    """The message as it is sent; without `ack` the kernel answers only a failure."""
    flags = request.flags | REQUEST | (ACK if ack else 0)
    body = request.body
    padding = b"\0" * (-len(body) & 3)
    return _NLMSG.pack(16 + len(body), request.type, flags, sequence, 0) + body + padding


@dataclass(frozen=True, slots=True)
class Message:
    """One received message."""

    type: int
    flags: int
    sequence: int
    body: memoryview


def parse_messages(datagram: bytes) -> Iterator[Message]:
    """The messages of one datagram; a truncated tail is dropped."""
    view = memoryview(datagram)
    offset = 0
    while offset + 16 <= len(view):
        length, kind, flags, sequence, _pid = _NLMSG.unpack_from(view, offset)
        if length < 16 or offset + length > len(view):
            return
        yield Message(kind, flags, sequence, view[offset + 16 : offset + length])
        offset += (length + 3) & ~3


def parse_attrs(body: memoryview, offset: int) -> dict[int, bytes]:
    """Attributes by kind (nested flag removed); of a repeated kind the last one counts."""
    found: dict[int, bytes] = {}
    end = len(body)
    while offset + 4 <= end:
        length, kind = _ATTR.unpack_from(body, offset)
        if length < 4 or offset + length > end:
            break
        found[kind & 0x3FFF] = bytes(body[offset + 4 : offset + length])
        offset += (length + 3) & ~3
    return found


def parse_error(message: Message) -> tuple[int, str]:
    """(errno, kernel's own words) of an NLMSG_ERROR or NLMSG_DONE; errno 0 means success.

    Source: Documentation/userspace-api/netlink/intro.rst, 'Extended ACK'; needs NETLINK_CAP_ACK.
    """
    errno = -struct.unpack_from("=i", message.body)[0]
    words = ""
    if message.type == NLMSG_ERROR and message.flags & 0x200:  # NLM_F_ACK_TLVS
        offset = 4 + 16
        if not message.flags & 0x100:  # not NLM_F_CAPPED: the request is repeated in full
            offset = 4 + ((struct.unpack_from("=I", message.body, 4)[0] + 3) & ~3)
        words = text(parse_attrs(message.body, offset).get(1))
    return errno, words


def text(payload: bytes | None) -> str:
    """A payload that may end in NUL; empty when there is none."""
    return (payload or b"").rstrip(b"\0").decode(errors="replace")


def number(payload: bytes | None) -> int:
    """A payload in the host's order; 0 when there is none."""
    return int.from_bytes(payload or b"", sys.byteorder)


def parse_mac(text: str) -> bytes:
    """Six bytes. Raises: ValueError."""
    octets = bytes.fromhex(text.replace(":", ""))
    if len(octets) != 6 or octets.hex(":") != text.lower():
        raise ValueError(f"not a MAC address: {text!r}")
    return octets


def mac_text(octets: bytes) -> str:
    return octets.hex(":")


def family(version: int) -> int:
    """Address family of an IP version."""
    return AF_INET if version == 4 else AF_INET6
