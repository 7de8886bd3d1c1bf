"""Handshake reset: a node whose clock jumped back asks a peer to forget its last handshake.

WireGuard refuses a handshake with an older timestamp than the last one. The peer forgets that
timestamp on a signed request that is proven to be of now, and calls back at once.

    node                             peer
     | ASK --------------------------> |
     | <------------------ TOKEN (t) - |
     | CONFIRM (t) ------------------> |   sessions and the last timestamp are forgotten

The token shows that the request is of now: one that was recorded does nothing.

    step 1 | token 8
"""

from __future__ import annotations

import os
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from enum import IntEnum
from typing import TypeVar

import structlog

from limpet.base.addresses import Endpoint
from limpet.base.bounds.neighbours import TUNNEL_RESETS
from limpet.base.rate_limit import TokenBuckets
from limpet.cluster.datagrams.peer_datagram import BodyKind, DatagramError, DropReason
from limpet.cluster.datagrams.peer_socket import PeerSocket, Received

_log = structlog.get_logger("tunnel")

TOKEN_BYTES = 8
_FRESH_S = 10.0
_EVERY_S = 5.0
"""Between two tokens for one peer: sessions are lost by it."""
_MOST = TUNNEL_RESETS.most
_V = TypeVar("_V")


class Step(IntEnum):
    ASK = 1
    TOKEN = 2
    CONFIRM = 3


def encode(step: Step, token: bytes) -> bytes:
    """`token`: of an ASK any fresh bytes, as two equal datagrams count as one."""
    if len(token) != TOKEN_BYTES:
        raise ValueError(f"a token of {len(token)} bytes")
    return bytes([step]) + token


def parse(body: bytes) -> tuple[Step, bytes]:
    """Raises: DatagramError."""
    if len(body) != 1 + TOKEN_BYTES or body[0] not in frozenset(Step):
        raise DatagramError(DropReason.MALFORMED, "no request to take a tunnel anew")
    return Step(body[0]), body[1:]


class HandshakeReset:
    """Runs on the event loop."""

    def __init__(
        self,
        courier: PeerSocket,
        *,
        may_talk: Callable[[str], bool],
        take: Callable[[str, Endpoint], None],
    ) -> None:
        """`take` resets the handshakes of a uid's tunnel and calls it at that endpoint."""
        self.counters: Counter[str] = Counter()
        """`asked`, `taken`, `refused`."""
        self._courier = courier
        self._may_talk = may_talk
        self._take = take
        self._asked_s: OrderedDict[str, float] = OrderedDict()
        self._tokens: OrderedDict[str, tuple[bytes, float]] = OrderedDict()
        self._rate = TokenBuckets(1 / _EVERY_S, 1, most=_MOST)
        courier.on(BodyKind.HANDSHAKE_RESET, self._heard)

    def ask(self, uid: str, endpoint: Endpoint) -> None:
        """Asks the peer, whose tunnel is at `endpoint` and answers no handshake of ours."""
        _put(self._asked_s, uid, time.monotonic())
        self.counters["asked"] += 1
        _log.info("a peer is asked to take this node's tunnel anew", uid=uid)
        self._courier.send(
            BodyKind.HANDSHAKE_RESET,
            encode(Step.ASK, os.urandom(TOKEN_BYTES)),
            to_uid=uid,
            address=endpoint[0],
            port=endpoint[1],
            by_tunnel=True,
        )

    def _heard(self, received: Received) -> None:
        step, token = parse(received.body)
        now_s, uid = time.monotonic(), received.uid
        # Only what came by the tunnel's port says where the tunnel is.
        if not (received.by_tunnel and self._may_talk(uid)):
            self.counters["refused"] += 1
            return
        match step:
            case Step.ASK:
                if not self._rate.take(uid, now_s):
                    self.counters["refused"] += 1
                    return
                made = os.urandom(TOKEN_BYTES)
                _put(self._tokens, uid, (made, now_s))
                self._courier.answer(received, BodyKind.HANDSHAKE_RESET, encode(Step.TOKEN, made))
            case Step.TOKEN:
                if now_s - self._asked_s.get(uid, float("-inf")) < _FRESH_S:
                    self._courier.answer(
                        received, BodyKind.HANDSHAKE_RESET, encode(Step.CONFIRM, token)
                    )
            case Step.CONFIRM:
                made, made_s = self._tokens.pop(uid, (b"", 0.0))
                if made != token or now_s - made_s > _FRESH_S:
                    self.counters["refused"] += 1
                    return
                self.counters["taken"] += 1
                _log.info("the tunnel of a peer is taken anew, as it asked", uid=uid)
                self._take(uid, (received.address, received.port))


def _put(found: OrderedDict[str, _V], key: str, value: _V) -> None:
    found[key] = value
    found.move_to_end(key)
    if len(found) > _MOST:
        found.popitem(last=False)
