"""One node's TLS connection, as its relay has it: channels, each an end of a pair."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import structlog

from limpet.base.errors import LimpetError
from limpet.base.rate_limit import TokenBucket
from limpet.relay.messages import Refusal
from limpet.relay.stream.codec import (
    Close,
    Control,
    Open,
    Opened,
    Ping,
    Pong,
    Refused,
    StreamError,
)
from limpet.relay.stream.session import TlsSession

_log = structlog.get_logger("relay")

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
        self.session = TlsSession(connection, self)
        self._service = service
        self._counters = counters
        self._on_end = on_end
        self._early: list[Callable[[], None]] | None = []
        """What came before `begin`."""
        self._ends: dict[int, tuple[str, StreamEnd]] = {}
        self._channels: dict[str, int] = {}
        self._asks = TokenBucket(_ASKS_PER_S, _ASKS_BURST, self.session.heard_s)

    @property
    def peers(self) -> list[str]:
        """Uids that it has a channel for."""
        return sorted(self._channels)

    @property
    def silent(self) -> bool:
        return asyncio.get_running_loop().time() - self.session.heard_s > IDLE_S

    def begin(self) -> None:
        early, self._early = self._early or [], None
        for do in early:
            if not self.session.why_ended:
                try:
                    do()
                except StreamError as error:
                    self.session.refuse(error)

    def close(self) -> None:
        self.session.end("it is not served any more")

    # What the session says

    def session_ended(self, why: str) -> None:
        if self.session.malformed:
            self._counters["malformed"] += 1
            _log.warning("a node's TLS connection was ended", uid=self.uid, error=why)
        ends, self._ends = self._ends, {}
        self._channels.clear()
        for _, end in ends.values():
            end.close()
        self.spoke.set()
        self._on_end(self, why)

    def deliver(self, channel: int, packets: Sequence[bytes]) -> None:
        if self._early is not None:
            self._early.append(partial(self.deliver, channel, packets))
            self.spoke.set()
            return
        found = self._ends.get(channel)
        if found is None:  # packets that were on the way when it was closed, or a node that tries
            self._counters["no_channel"] += len(packets)
            return
        for packet in packets:
            found[1].send(packet)

    def hear(self, message: Control) -> None:
        """Raises: StreamError."""
        if self._early is not None:
            self._early.append(partial(self.hear, message))
            self.spoke.set()
            return
        if not self._asks.take(asyncio.get_running_loop().time()):
            raise StreamError("it asks too often")
        match message:
            case Ping():
                self.session.send_control(Pong())
            case Open(channel, peer):
                self._attach(channel, peer)
            case Close(channel):
                self._detach(channel)
            case _:
                raise StreamError(f"it says {type(message).__name__}, which only a relay says")

    # Channels

    def _attach(self, channel: int, peer: str) -> None:
        """Raises: StreamError."""
        if channel in self._ends:
            raise StreamError(f"it opens channel {channel} twice")
        if peer in self._channels:
            self._detach(self._channels[peer])
        send = self.session.send_packet
        try:
            end = self._service.attach_stream(self.uid, peer, lambda packet: send(channel, packet))
        except LimpetError as error:
            refusal = getattr(error, "refusal", Refusal.NO_RELAY)
            self._counters[f"refused_{refusal.name.lower()}"] += 1
            self.session.send_control(Refused(channel, refusal))
            return
        end.on_gone = lambda: self._refuse(channel)
        self._ends[channel] = (peer, end)
        self._channels[peer] = channel
        self.session.send_control(Opened(channel))

    def _refuse(self, channel: int) -> None:
        """Its pair is no more: a community was left, or a node removed."""
        if channel in self._ends:
            self._detach(channel)
            self.session.send_control(Refused(channel, Refusal.MAY_NOT_TALK))

    def _detach(self, channel: int) -> None:
        found = self._ends.pop(channel, None)
        if found is not None:
            peer, end = found
            self._channels.pop(peer, None)
            end.close()
