"""WebSockets at a client's side: frames as bytes, and messages out of them. Pure.

Source: RFC 6455.
"""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_FINAL, _RESERVED, _MASKED = 0x80, 0x70, 0x80
_MASK_BYTES = 4
_MOST_OF_CONTROL = 125


class Opcode(IntEnum):
    """What a frame is."""

    CONTINUATION = 0x0
    TEXT = 0x1
    BINARY = 0x2
    CLOSE = 0x8
    PING = 0x9
    PONG = 0xA


@dataclass(frozen=True, slots=True)
class WebSocketMessage:
    """What the server said: TEXT or BINARY, whole; or CLOSE, PING, PONG."""

    opcode: Opcode
    body: bytes


def accept_of(key: str) -> str:
    """What a server answers that has understood `key`, the base64 of 16 random bytes."""
    return base64.b64encode(hashlib.sha1(key.encode() + _GUID).digest()).decode()


def encode_frame(opcode: Opcode, body: bytes, mask: bytes) -> bytes:
    """A whole frame of a client, which has to be masked. `mask`: four random bytes."""
    size = len(body)
    if size < 126:
        head = struct.pack("!BB", _FINAL | opcode, _MASKED | size)
    elif size < 1 << 16:
        head = struct.pack("!BBH", _FINAL | opcode, _MASKED | 126, size)
    else:
        head = struct.pack("!BBQ", _FINAL | opcode, _MASKED | 127, size)
    repeated = (mask * (size // _MASK_BYTES + 1))[:size]
    masked = int.from_bytes(body, "big") ^ int.from_bytes(repeated, "big")
    return head + mask + masked.to_bytes(size, "big")


class MessageReader:
    """Puts together what a server sends, however it is cut."""

    def __init__(self, *, most_bytes: int) -> None:
        """`most_bytes`: of one message."""
        self._most_bytes = most_bytes
        self._rest = bytearray()
        self._parts: list[bytes] = []
        self._size = 0
        self._begun: Opcode | None = None

    def take(self, data: bytes) -> Iterator[WebSocketMessage]:
        """Messages that are whole now. Raises: ValueError for what is no such stream."""
        self._rest += data
        while (frame := self._next_frame()) is not None:
            final, opcode, body = frame
            if opcode >= Opcode.CLOSE:
                yield WebSocketMessage(opcode, body)
                continue
            if (opcode is Opcode.CONTINUATION) is (self._begun is None):
                raise ValueError("a part of a message is missing")
            self._begun = self._begun or opcode
            if body:  # parts without any would be kept without bound
                self._parts.append(body)
            if final:
                whole, self._parts, self._size = b"".join(self._parts), [], 0
                begun, self._begun = self._begun, None
                yield WebSocketMessage(begun, whole)

    def _next_frame(self) -> tuple[bool, Opcode, bytes] | None:
        """None: more has to come."""
        rest = self._rest
        if len(rest) < 2:
            return None
        first, second = rest[0], rest[1]
        size, at = second & 0x7F, 2
        if size > 125:
            length = 2 if size == 126 else 8
            if len(rest) < at + length:
                return None
            size, at = int.from_bytes(rest[at : at + length], "big"), at + length
        if first & _RESERVED or second & _MASKED:
            raise ValueError("a frame has bits set that no server sets")
        opcode, final = Opcode(first & 0x0F), bool(first & _FINAL)
        if opcode >= Opcode.CLOSE and (size > _MOST_OF_CONTROL or not final):
            raise ValueError("a frame of control is too large or in parts")
        if opcode < Opcode.CLOSE and self._size + size > self._most_bytes:
            raise ValueError(f"a message is larger than {self._most_bytes >> 10} KiB")
        if len(rest) < at + size:
            return None
        body = bytes(rest[at : at + size])
        del rest[: at + size]
        if opcode < Opcode.CLOSE:
            self._size += size
        return final, opcode, body
