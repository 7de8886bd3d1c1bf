"""What a TLS connection between a node and a relay carries: bytes <-> frames, no sockets.

    frame     length of what follows 2 | channel 2 | packet or control
    OPEN      1 | channel 2 | peer 15     node: packets of this channel are for and from the peer
    OPENED    2 | channel 2               relay: they are brought from now on
    REFUSED   3 | channel 2 | refusal 1   relay: they are not, or not any more
    CLOSE     4 | channel 2               node: they are not needed any more
    WANTED    5 | peer 15                 relay: the peer has asked for the two
    PING      6 | version 1               node, before all else
    PONG      7 | version 1               relay

In every version the first frame is a PING, and PING and PONG begin so; a version that an end does
not know ends the connection.

Channel 0 carries control, each other one the packets of one pair; the node chooses its number, and
may use it again once it has closed it. Integers are big-endian; a peer is its uid, raw.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from limpet.base.errors import LimpetError
from limpet.cluster.peer_datagram import UID_BYTES, uid_bytes, uid_text
from limpet.relay.messages import Refusal

VERSION = 1
MAX_PACKET_BYTES = 9216
"""Of one packet: jumbo frames have 9000 bytes and a little more."""
MAX_CHANNEL = (1 << 16) - 1
CONTROL = 0
"""The channel of control."""
HEADER_BYTES = 4
_HEADER = struct.Struct(">HH")
_CHANNEL = struct.Struct(">H")
_OPEN = struct.Struct(f">H{UID_BYTES}s")
_REFUSED = struct.Struct(">HB")
_WANTED = struct.Struct(f">{UID_BYTES}s")

Frame = tuple[int, bytes]
"""Channel, and its packet or control; never empty."""


class StreamError(LimpetError):
    """Bytes that no node and no relay sends; the rest of the connection means nothing."""


@dataclass(frozen=True, slots=True)
class Open:
    channel: int
    peer: str
    """Uid."""


@dataclass(frozen=True, slots=True)
class Opened:
    channel: int


@dataclass(frozen=True, slots=True)
class Refused:
    channel: int
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class Close:
    channel: int


@dataclass(frozen=True, slots=True)
class Wanted:
    peer: str
    """Uid."""


@dataclass(frozen=True, slots=True)
class Ping:
    """Its version is `VERSION`."""


@dataclass(frozen=True, slots=True)
class Pong:
    """Its version is `VERSION`."""


Control = Open | Opened | Refused | Close | Wanted | Ping | Pong


class _Kind(IntEnum):
    OPEN = 1
    OPENED = 2
    REFUSED = 3
    CLOSE = 4
    WANTED = 5
    PING = 6
    PONG = 7


def encode_frame(channel: int, packet: bytes) -> bytes:
    """`packet` has 1 to `MAX_PACKET_BYTES` bytes."""
    return _HEADER.pack(len(packet), channel) + packet


def encode_control(message: Control) -> bytes:
    """A whole frame. Raises: ValueError, struct.error for what no parser would take."""
    match message:
        case Open(channel, peer):
            body = bytes([_Kind.OPEN]) + _OPEN.pack(_packet_channel(channel), uid_bytes(peer))
        case Opened(channel):
            body = bytes([_Kind.OPENED]) + _CHANNEL.pack(_packet_channel(channel))
        case Refused(channel, refusal):
            body = bytes([_Kind.REFUSED]) + _REFUSED.pack(_packet_channel(channel), refusal)
        case Close(channel):
            body = bytes([_Kind.CLOSE]) + _CHANNEL.pack(_packet_channel(channel))
        case Wanted(peer):
            body = bytes([_Kind.WANTED]) + _WANTED.pack(uid_bytes(peer))
        case Ping():
            body = bytes([_Kind.PING, VERSION])
        case Pong():
            body = bytes([_Kind.PONG, VERSION])
    return encode_frame(CONTROL, body)


def parse_control(body: bytes) -> Control:
    """What a frame of channel 0 says. Raises: StreamError."""
    try:
        return _PARSERS[body[0]](body[1:])
    except (KeyError, IndexError) as error:
        raise StreamError(f"read a control frame: {body[:1]!r} is none") from error
    except (struct.error, ValueError) as error:
        raise StreamError(
            f"read a control frame: it is no {_Kind(body[0]).name}: {error}"
        ) from error


class FrameParser:
    """Bytes in, frames out; holds less than one frame meanwhile."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are complete by now, however the bytes were cut.

        Raises: StreamError: what was complete before is lost with it, and nothing can follow.
        """
        if self._rest:
            data = self._rest + data
        frames: list[Frame] = []
        at, end = 0, len(data)
        while end - at >= HEADER_BYTES:
            length, channel = _HEADER.unpack_from(data, at)
            if not 0 < length <= MAX_PACKET_BYTES:
                raise StreamError(
                    f"read a frame: {length} bytes instead of 1 to {MAX_PACKET_BYTES}"
                )
            stop = at + HEADER_BYTES + length
            if stop > end:
                break
            frames.append((channel, data[at + HEADER_BYTES : stop]))
            at = stop
        self._rest = data[at:]
        return frames


def _parse_open(body: bytes) -> Open:
    channel, peer = _OPEN.unpack(body)
    return Open(_packet_channel(channel), uid_text(peer))


def _parse_refused(body: bytes) -> Refused:
    channel, refusal = _REFUSED.unpack(body)
    return Refused(_packet_channel(channel), Refusal(refusal))


def _parse_ping(body: bytes) -> Ping:
    _check_version(body)
    return Ping()


def _parse_pong(body: bytes) -> Pong:
    _check_version(body)
    return Pong()


def _check_version(body: bytes) -> None:
    """Raises: ValueError, StreamError for a version that is not ours."""
    if not body or (body[0] == VERSION and len(body) > 1):
        raise ValueError(f"{len(body)} bytes instead of 1")
    if body[0] != VERSION:
        raise StreamError(
            f"read a control frame: it is of version {body[0]}, this Limpet knows {VERSION} "
            "(install the same Limpet on the node and on its relay)"
        )


_PARSERS: Final[dict[int, Callable[[bytes], Control]]] = {
    _Kind.OPEN: _parse_open,
    _Kind.OPENED: lambda body: Opened(_packet_channel(*_CHANNEL.unpack(body))),
    _Kind.REFUSED: _parse_refused,
    _Kind.CLOSE: lambda body: Close(_packet_channel(*_CHANNEL.unpack(body))),
    _Kind.WANTED: lambda body: Wanted(uid_text(*_WANTED.unpack(body))),
    _Kind.PING: _parse_ping,
    _Kind.PONG: _parse_pong,
}


def _packet_channel(channel: int) -> int:
    """Raises: ValueError."""
    if channel == CONTROL:
        raise ValueError("channel 0 is no pair's")
    return channel
