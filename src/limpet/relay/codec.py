"""What nodes and relays say to each other: bytes <-> values, no sockets. Integers are big-endian.

    HELLO   nonce 8
    SEEN    nonce 8 | endpoint 18 | pairs left 2
    ASK     nonce 8 | peer 15 | stream 1
    PAIR    nonce 8 | peer 15 | port 2 | refusal 1 | lifetime 2 | serial 4
    CHECK   nonce 8 | port 2 | token 0 or 16
    TOKEN   nonce 8 | port 2 | token 16
    BOUND   nonce 8 | port 2 | endpoint 18
    FREE    nonce 8 | peer 15

An endpoint is an address of IPv6, that of IPv4 mapped (RFC 4291 section 2.5.5.2), and a port; a
peer is its uid, raw. No port is 0 but that of a pair that was refused.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from limpet.base.addresses import Endpoint, in_16_bytes, of_16_bytes
from limpet.cluster.peer_datagram import UID_BYTES, DatagramError, Drop, Kind, uid_bytes, uid_text
from limpet.relay.messages import (
    NONCE_BYTES,
    TOKEN_BYTES,
    AskPair,
    Bound,
    Check,
    FreePair,
    Hello,
    Pair,
    Refusal,
    RelayMessage,
    Seen,
    Token,
)

KIND_OF: Final[dict[type[RelayMessage], Kind]] = {
    Hello: Kind.RELAY_HELLO,
    Seen: Kind.RELAY_SEEN,
    AskPair: Kind.RELAY_ASK,
    Pair: Kind.RELAY_PAIR,
    Check: Kind.RELAY_CHECK,
    Token: Kind.RELAY_TOKEN,
    Bound: Kind.RELAY_BOUND,
    FreePair: Kind.RELAY_FREE,
}
"""As what a message is sent."""

_HELLO = struct.Struct(f">{NONCE_BYTES}s")
_SEEN = struct.Struct(f">{NONCE_BYTES}s16sHH")
_ASK = struct.Struct(f">{NONCE_BYTES}s{UID_BYTES}sB")
_PAIR = struct.Struct(f">{NONCE_BYTES}s{UID_BYTES}sHBHI")
_CHECK = struct.Struct(f">{NONCE_BYTES}sH")
_TOKEN = struct.Struct(f">{NONCE_BYTES}sH{TOKEN_BYTES}s")
_BOUND = struct.Struct(f">{NONCE_BYTES}sH16sH")
_FREE = struct.Struct(f">{NONCE_BYTES}s{UID_BYTES}s")


def encode(message: RelayMessage) -> bytes:
    """The body. Raises: ValueError, struct.error for what no parser would take."""
    match message:
        case Hello():
            return _HELLO.pack(message.nonce)
        case Seen():
            return _SEEN.pack(
                message.nonce, *_encode_endpoint(message.endpoint), message.pairs_left
            )
        case AskPair():
            return _ASK.pack(message.nonce, uid_bytes(message.peer), message.stream)
        case Pair():
            return _PAIR.pack(
                message.nonce,
                uid_bytes(message.peer),
                message.port,
                message.refusal,
                message.lifetime_s,
                message.serial,
            )
        case Check():
            return _CHECK.pack(message.nonce, message.port) + message.token
        case Token():
            return _TOKEN.pack(message.nonce, message.port, message.token)
        case Bound():
            return _BOUND.pack(message.nonce, message.port, *_encode_endpoint(message.endpoint))
        case FreePair():
            return _FREE.pack(message.nonce, uid_bytes(message.peer))


def parse(kind: int, body: bytes) -> RelayMessage:
    """Raises: DatagramError (malformed)."""
    try:
        return _PARSERS[kind](body)
    except KeyError as error:
        raise DatagramError(Drop.MALFORMED, f"kind {kind} is nothing of relays") from error
    except (struct.error, ValueError) as error:
        raise DatagramError(Drop.MALFORMED, f"it is no {Kind(kind).name}: {error}") from error


def _parse_hello(body: bytes) -> Hello:
    return Hello(*_HELLO.unpack(body))


def _parse_seen(body: bytes) -> Seen:
    nonce, address, port, pairs_left = _SEEN.unpack(body)
    return Seen(nonce, _endpoint(address, port), pairs_left)


def _parse_ask(body: bytes) -> AskPair:
    nonce, peer, stream = _ASK.unpack(body)
    if stream > 1:
        raise ValueError(f"{stream} says nothing of a stream")
    return AskPair(nonce, uid_text(peer), stream=bool(stream))


def _parse_pair(body: bytes) -> Pair:
    nonce, peer, port, refusal, lifetime_s, serial = _PAIR.unpack(body)
    if (Refusal(refusal) is Refusal.NONE) == (port == 0):
        raise ValueError(f"port {port} with the refusal {refusal}")
    return Pair(nonce, uid_text(peer), port, Refusal(refusal), lifetime_s, serial)


def _parse_check(body: bytes) -> Check:
    nonce, port = _CHECK.unpack_from(body)
    token = body[_CHECK.size :]
    if len(token) not in (0, TOKEN_BYTES):
        raise ValueError(f"{len(token)} bytes are no token")
    return Check(nonce, _port(port), token)


def _parse_token(body: bytes) -> Token:
    nonce, port, token = _TOKEN.unpack(body)
    return Token(nonce, _port(port), token)


def _parse_bound(body: bytes) -> Bound:
    nonce, port, address, its_port = _BOUND.unpack(body)
    return Bound(nonce, _port(port), _endpoint(address, its_port))


def _parse_free(body: bytes) -> FreePair:
    nonce, peer = _FREE.unpack(body)
    return FreePair(nonce, uid_text(peer))


_PARSERS: Final[dict[int, Callable[[bytes], RelayMessage]]] = {
    Kind.RELAY_HELLO: _parse_hello,
    Kind.RELAY_SEEN: _parse_seen,
    Kind.RELAY_ASK: _parse_ask,
    Kind.RELAY_PAIR: _parse_pair,
    Kind.RELAY_CHECK: _parse_check,
    Kind.RELAY_TOKEN: _parse_token,
    Kind.RELAY_BOUND: _parse_bound,
    Kind.RELAY_FREE: _parse_free,
}


def _encode_endpoint(endpoint: Endpoint) -> tuple[bytes, int]:
    address, port = endpoint
    return in_16_bytes(address), port


def _endpoint(packed: bytes, port: int) -> Endpoint:
    """Raises: ValueError."""
    return of_16_bytes(packed), _port(port)


def _port(port: int) -> int:
    """Raises: ValueError."""
    if port == 0:
        raise ValueError("a port is missing")
    return port
