"""What a TLS connection between a node and a relay carries: bytes <-> frames, no sockets.

    frame     length of what follows 2 | channel 2 | packet or control
    control   1 for OPEN, 2 for OPENED … as in `Control` | its fields

In every version the first frame is a PING, and PING and PONG begin so: kind, version; a version
that an end does not know ends the connection.

Channel 0 carries control, each other one the packets of one pair; the node chooses its number, and
may use it again once it has closed it. Integers are big-endian; a peer is its uid, raw.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Annotated, Any, Final, get_args

from limpet.base.bounds.members import RELAY_PACKET
from limpet.base.errors import LimpetError
from limpet.relay.layout import Field, Layout, Uid
from limpet.relay.messages import RefusalField

VERSION = 1
MAX_PACKET_BYTES = RELAY_PACKET.most
MAX_CHANNEL = (1 << 16) - 1
CONTROL = 0
"""The channel of control."""
HEADER_BYTES = 4
_HEADER = struct.Struct(">HH")

Frame = tuple[int, bytes]
"""Channel, and its packet or control; never empty."""


class StreamError(LimpetError):
    """Bytes that no node and no relay sends; the rest of the connection means nothing."""


def _packet_channel(channel: int) -> int:
    """Raises: ValueError."""
    if channel == CONTROL:
        raise ValueError("channel 0 is no pair's")
    return channel


Channel = Annotated[int, Field("H", _packet_channel, _packet_channel)]


@dataclass(frozen=True, slots=True)
class Open:
    """By the node: packets of this channel are for and from the peer."""

    channel: Channel
    peer: Uid


@dataclass(frozen=True, slots=True)
class Opened:
    """By the relay: packets of the channel are brought from now on."""

    channel: Channel


@dataclass(frozen=True, slots=True)
class Refused:
    """By the relay: they are not, or not any more."""

    channel: Channel
    refusal: RefusalField


@dataclass(frozen=True, slots=True)
class Close:
    """By the node: the channel is not needed any more."""

    channel: Channel


@dataclass(frozen=True, slots=True)
class Wanted:
    """By the relay: the peer has asked for the two."""

    peer: Uid


@dataclass(frozen=True, slots=True)
class Ping:
    """By the node, before all else."""

    version: Annotated[int, Field("B")] = VERSION


@dataclass(frozen=True, slots=True)
class Pong:
    """The relay's answer."""

    version: Annotated[int, Field("B")] = VERSION


Control = Open | Opened | Refused | Close | Wanted | Ping | Pong
_LAYOUTS: Final[dict[int, Layout[Any]]] = {
    kind: Layout(each) for kind, each in enumerate(get_args(Control), start=1)
}
_KIND_OF: Final[dict[type[Control], int]] = {
    layout.message: kind for kind, layout in _LAYOUTS.items()
}


def encode_frame(channel: int, packet: bytes) -> bytes:
    """`packet` has 1 to `MAX_PACKET_BYTES` bytes."""
    return _HEADER.pack(len(packet), channel) + packet


def encode_control(message: Control) -> bytes:
    """A whole frame. Raises: ValueError, struct.error for what no parser would take."""
    kind = _KIND_OF[type(message)]
    return encode_frame(CONTROL, bytes([kind]) + _LAYOUTS[kind].encode(message))


def parse_control(body: bytes) -> Control:
    """What a frame of channel 0 says. Raises: StreamError."""
    layout = _LAYOUTS.get(body[0]) if body else None
    if layout is None:
        raise StreamError(f"read a control frame: {body[:1]!r} is none")
    if layout.message in (Ping, Pong) and body[1:2] not in (b"", bytes([VERSION])):
        raise StreamError(
            f"read a control frame: it is of version {body[1]}, this Limpet knows {VERSION} "
            "(install the same Limpet on the node and on its relay)"
        )
    try:
        message: Control = layout.parse(body[1:])
    except (struct.error, ValueError) as error:
        name = layout.message.__name__
        raise StreamError(f"read a control frame: it is no {name}: {error}") from error
    return message


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
