"""One node's TLS connection, as its relay has it: channels, each an end of a pair."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from limpet.base.errors import LimpetError
from limpet.base.rate_limit import TokenBucket
from limpet.relay.messages import Refusal
from limpet.relay.stream.codec import (
    CONTROL,
    Close,
    Control,
    Frame,
    Open,
    Opened,
    Ping,
    Pong,
    Refused,
    StreamError,
    parse_control,
)
from limpet.relay.stream.tls_stream import TlsStream

IDLE_S = 45.0
"""Three pings of a node that did not come."""
_ASKS_PER_S, _ASKS_BURST = 50.0, 500.0
"""Control frames of one node."""


class StreamEnd(Protocol):
    """A node's end of a pair, as the relay's service gives it."""

    on_gone: Callable[[], None]
    """Is called when the pair is no more, though nobody has closed this end."""

    def send(self, packet: bytes) -> None:
        """To the other end, if it is there."""

    def close(self) -> None:
        """The node's end is gone."""


class StreamService(Protocol):
    """As much of the relay's service as is needed here."""

    def attach_stream(
        self, uid: str, peer_uid: str, on_packet: Callable[[bytes], None]
    ) -> StreamEnd:
        """Raises: LimpetError with a `refusal`."""


class RelayedNode:
    """Takes nothing before `begin`, but notes in `spoke` that there is something."""

    def __init__(
        self,
        uid: str,
        connection: ssl.SSLSocket,
        service: StreamService,
        counters: Counter[str],
        *,
        on_end: Callable[[RelayedNode, str], None],
    ) -> None:
        """`on_end`: the node's side has ended it, or does not keep to the rules."""
        self.uid = uid
        self.spoke = asyncio.Event()
        self.ended = False
        self.stream = TlsStream(connection, on_frames=self._take, on_end=self._end)
        self._service = service
        self._counters = counters
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._early: list[Frame] | None = []
        self._ends: dict[int, tuple[str, StreamEnd]] = {}
        self._channels: dict[str, int] = {}
        self._asks = TokenBucket(_ASKS_PER_S, _ASKS_BURST, self._loop.time())
        self._heard_s = self._loop.time()

    @property
    def peers(self) -> list[str]:
        """Uids that it has a channel for."""
        return sorted(self._channels)

    @property
    def silent(self) -> bool:
        return self._loop.time() - self._heard_s > IDLE_S

    def begin(self) -> None:
        early, self._early = self._early or [], None
        self._take(early)

    def close(self) -> None:
        self.ended = True
        self.stream.close()
        ends, self._ends = self._ends, {}
        self._channels.clear()
        for _, end in ends.values():
            end.close()

    def _end(self, why: str) -> None:
        self.ended = True
        self.spoke.set()
        self._on_end(self, why)

    def _take(self, frames: list[Frame]) -> None:
        if self._early is not None:
            self._early += frames
            self.spoke.set()
            return
        self._heard_s = self._loop.time()
        ends = self._ends
        for channel, body in frames:
            found = ends.get(channel)
            if found is not None:
                found[1].send(body)
            elif channel == CONTROL:
                if not self._obey(body):
                    return
            else:  # packets that were on the way when it was closed, or a node that tries
                self._counters["no_channel"] += 1

    def _obey(self, body: bytes) -> bool:
        """False: the connection is closed."""
        try:
            message = parse_control(body)
            if not self._asks.take(self._loop.time()):
                raise StreamError("it asks too often")
            self._answer(message)
        except StreamError as error:
            self._counters["malformed"] += 1
            self.stream.close()
            self._end(str(error))
        return not self.ended

    def _answer(self, message: Control) -> None:
        """Raises: StreamError."""
        match message:
            case Ping():
                self.stream.send_control(Pong())
            case Open(channel, peer):
                self._attach(channel, peer)
            case Close(channel):
                self._detach(channel)
            case _:
                raise StreamError(f"it says {type(message).__name__}, which only a relay says")

    def _attach(self, channel: int, peer: str) -> None:
        """Raises: StreamError."""
        if channel in self._ends:
            raise StreamError(f"it opens channel {channel} twice")
        if peer in self._channels:
            self._detach(self._channels[peer])
        send = self.stream.send_packet
        try:
            end = self._service.attach_stream(self.uid, peer, lambda packet: send(channel, packet))
        except LimpetError as error:
            refusal = getattr(error, "refusal", Refusal.NO_RELAY)
            self._counters[f"refused_{refusal.name.lower()}"] += 1
            self.stream.send_control(Refused(channel, refusal))
            return
        end.on_gone = lambda: self._refuse(channel)
        self._ends[channel] = (peer, end)
        self._channels[peer] = channel
        self.stream.send_control(Opened(channel))

    def _refuse(self, channel: int) -> None:
        """Its pair is no more: a community was left, or a node removed."""
        if channel in self._ends:
            self._detach(channel)
            self.stream.send_control(Refused(channel, Refusal.MAY_NOT_TALK))

    def _detach(self, channel: int) -> None:
        found = self._ends.pop(channel, None)
        if found is not None:
            peer, end = found
            self._channels.pop(peer, None)
            end.close()
