"""Addresses from which a socket takes nothing: the kernel drops it before it is queued.

So it takes no room from what others send, and nobody has to read it.
Source: socket(7), SO_ATTACH_FILTER; Documentation/networking/filter.rst; sk_filter_trim_cap in
net/core/filter.c, which udp_queue_rcv_one_skb in net/ipv4/udp.c asks.
"""

from __future__ import annotations

import ctypes
import errno
import socket
import struct
from collections.abc import Collection

MOST_SOURCES = 16
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
_INSTRUCTION = struct.Struct("=HBBI")
"""Code, how many to pass over where a jump is taken and where not, operand."""
_PROGRAM = struct.Struct("@HP")
_LOAD, _IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
"""A word to be compared, of the packet's bytes. Source: include/uapi/linux/bpf_common.h."""
_NETWORK_HEADER = 0xFFF00000
"""As an offset: of the IP header. Source: SKF_NET_OFF in include/uapi/linux/filter.h."""
_SOURCE_AT = {int(socket.AF_INET): 12, int(socket.AF_INET6): 8}
_WHOLE, _NOTHING = 0xFFFFFFFF, 0


def program(family: int, sources: Collection[str]) -> bytes:
    """Instructions that let everything pass but what comes from these addresses of the family."""
    code = b""
    for source in sources:
        packed = socket.inet_pton(family, source.partition("%")[0])
        words = [int.from_bytes(packed[at : at + 4], "big") for at in range(0, len(packed), 4)]
        for number, word in enumerate(words):
            rest = 2 * (len(words) - number - 1) + 1
            at = _NETWORK_HEADER + _SOURCE_AT[family] + 4 * number
            code += _INSTRUCTION.pack(_LOAD, 0, 0, at)
            code += _INSTRUCTION.pack(_IF_EQUAL, 0, rest, word)
        code += _INSTRUCTION.pack(_RETURN, 0, 0, _NOTHING)
    return code + _INSTRUCTION.pack(_RETURN, 0, 0, _WHOLE)


def leave_out(at: socket.socket, sources: Collection[str]) -> None:
    """The socket takes nothing from these any more, and from all others; of more than MOST_SOURCES
    that many. A socket of IPv6 has to be for that alone. Raises: OSError."""
    if not sources:
        try:
            at.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
        except OSError as error:
            if error.errno != errno.ENOENT:  # there was none
                raise
        return
    code = program(at.family, sorted(sources)[:MOST_SOURCES])
    buffer = ctypes.create_string_buffer(code, len(code))
    given = _PROGRAM.pack(len(code) // _INSTRUCTION.size, ctypes.addressof(buffer))
    at.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, given)
