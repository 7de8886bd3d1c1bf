"""Asking a peer to take this node's tunnel anew: bytes <-> values.

    node                             peer
     | ASK --------------------------> |
     | <------------------ TOKEN (t) - |
     | CONFIRM (t) ------------------> |   sessions and the last timestamp are forgotten

The token shows that the request is of now: one that was recorded does nothing.

    step 1 | token 8
"""

from __future__ import annotations

from enum import IntEnum

from limpet.cluster.peer_datagram import DatagramError, Drop

TOKEN_BYTES = 8


class Step(IntEnum):
    ASK = 1
    TOKEN = 2
    CONFIRM = 3


def encode(step: Step, token: bytes) -> bytes:
    """`token`: of an ASK any bytes that it has not had before, or two were the same datagram."""
    if len(token) != TOKEN_BYTES:
        raise ValueError(f"a token of {len(token)} bytes")
    return bytes([step]) + token


def parse(body: bytes) -> tuple[Step, bytes]:
    """Raises: DatagramError."""
    if len(body) != 1 + TOKEN_BYTES or body[0] not in frozenset(Step):
        raise DatagramError(Drop.MALFORMED, "no request to take a tunnel anew")
    return Step(body[0]), body[1:]
