"""A node's TLS connection to one relay, with a channel for each peer."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from limpet.base.addresses import Endpoint
from limpet.base.errors import LimpetError
from limpet.base.timer import Timer
from limpet.relay.client.peer import StreamEvent, StreamFailed, StreamWanted
from limpet.relay.messages import REASONS
from limpet.relay.stream.codec import (
    CONTROL,
    MAX_CHANNEL,
    Close,
    Control,
    Open,
    Opened,
    Ping,
    Pong,
    Refused,
    StreamError,
    Wanted,
)
from limpet.relay.stream.packet_socket import PacketSocket, loopback_socket
from limpet.relay.stream.session import TlsSession

PING_EVERY_S = 15.0
PONG_WITHIN_S = 5.0


@dataclass(slots=True, eq=False)
class _Channel:
    peer: str
    tunnel: PacketSocket
    """Stands for the peer: this node's tunnel sends to it and hears it."""
    answer: asyncio.Future[str]
    """Empty: the relay brings its packets; else why not."""
    number: int = CONTROL


class _Heartbeat:
    """Asks the relay now and then whether it is there."""

    def __init__(self, session: TlsSession, is_needed: Callable[[], bool]) -> None:
        self.rtt_s = 0.0
        self._session = session
        self._is_needed = is_needed
        self._loop = asyncio.get_running_loop()
        self.answered: asyncio.Future[str] = self._loop.create_future()
        """With the first answer, empty; else why there is none."""
        self._asked_s = 0.0
        self._next = Timer("relay over TLS", self._ping)
        self._overdue = Timer("relay over TLS", self._look)
        self._next.set_in(0.0)

    def stop(self, why: str) -> None:
        self._next.stop()
        self._overdue.stop()
        _answer(self.answered, why)

    def hear(self) -> None:
        took_s = self._loop.time() - self._asked_s
        self.rtt_s = took_s if not self.rtt_s else self.rtt_s * 0.75 + took_s * 0.25
        _answer(self.answered, "")

    def _ping(self) -> None:
        if self.answered.done() and not self._is_needed():
            self._session.end("nobody needs it")
            return
        self._asked_s = self._loop.time()
        self._overdue.set_in(PONG_WITHIN_S)
        self._session.send_control(Ping())

    def _look(self) -> None:
        if self._session.heard_s >= self._asked_s:
            self._next.set_in(PING_EVERY_S - PONG_WITHIN_S)
        else:
            self._session.end(f"nothing came from it for {PONG_WITHIN_S:g} s")


class RelayLink:
    """One connection, from the handshake to its end."""

    def __init__(
        self,
        relay: str,
        connection: ssl.SSLSocket,
        *,
        tunnel_port: int,
        tell: Callable[[StreamEvent], None],
        on_end: Callable[[str], None],
    ) -> None:
        """Within a running loop. `relay`: its uid. `on_end`: once, with the reason.

        Tells StreamFailed of peers whose end was there and is not any more, and StreamWanted.
        """
        self._relay = relay
        self._tunnel_port = tunnel_port
        self._tell = tell
        self._on_end = on_end
        self._channels: dict[int, _Channel] = {}
        """By number."""
        self._number = CONTROL
        self._counters: Counter[str] = Counter()
        self._session = TlsSession(connection, self)
        self._heartbeat = _Heartbeat(self._session, lambda: bool(self._channels))
        self.end = self._session.end

    @property
    def rtt_s(self) -> float:
        return self._heartbeat.rtt_s

    @property
    def peers(self) -> list[str]:
        return sorted(channel.peer for channel in self._channels.values())

    @property
    def lost(self) -> int:
        """Packets that were dropped on this side."""
        return self._counters.total() + self._session.dropped

    async def answered(self) -> None:
        """The relay takes this node. Raises: LimpetError."""
        why = await asyncio.shield(self._heartbeat.answered) or self._session.why_ended
        if why:
            raise LimpetError(why)

    async def open(self, peer: str) -> Endpoint:
        """Where the tunnel sends what is for the peer. Raises: LimpetError.

        One that was open is opened again: what is for this node comes by it from then on, also if
        it had gone by UDP.
        """
        if self._session.why_ended:
            raise LimpetError(self._session.why_ended)
        channel = self._channel_of(peer)
        if channel is None or channel.answer.done():
            answer = asyncio.get_running_loop().create_future()
            if channel is None:
                channel = _Channel(peer, loopback_socket(self._tunnel_port, self._counters), answer)
                channel.tunnel.onward = partial(self._send, channel)
            channel.answer = answer
            self._renumber(channel)
            self._session.send_control(Open(channel.number, peer))
        why = await asyncio.shield(channel.answer)
        if why:
            raise LimpetError(why)
        return channel.tunnel.local

    def release(self, peer: str) -> None:
        channel = self._channel_of(peer)
        if channel is not None:
            self._drop(channel, "it was given back")
            self._session.send_control(Close(channel.number))

    def _channel_of(self, peer: str) -> _Channel | None:
        return next((each for each in self._channels.values() if each.peer == peer), None)

    def _send(self, channel: _Channel, packet: bytes) -> None:
        self._session.send_packet(channel.number, packet)

    def _renumber(self, channel: _Channel) -> None:
        """Numbers go up, so that late packets of a closed channel are nobody's; the relay lets go
        the number that the peer had before."""
        self._channels.pop(channel.number, None)
        self._number = self._number % MAX_CHANNEL + 1
        while self._number in self._channels:
            self._number = self._number % MAX_CHANNEL + 1
        channel.number = self._number
        self._channels[channel.number] = channel

    def _drop(self, channel: _Channel, why: str) -> bool:
        """Whether the channel was open."""
        del self._channels[channel.number]
        channel.tunnel.close()
        was_open = channel.answer.done()
        _answer(channel.answer, why)
        return was_open

    # What the session says

    def session_ended(self, why: str) -> None:
        self._heartbeat.stop(why)
        self._on_end(why)
        lost = [each for each in list(self._channels.values()) if self._drop(each, why)]
        for channel in lost:
            self._tell(StreamFailed(channel.peer, self._relay, "the connection was lost"))

    def deliver(self, channel: int, packets: Sequence[bytes]) -> None:
        found = self._channels.get(channel)
        if found is not None:
            for packet in packets:
                found.tunnel.send(packet)

    def hear(self, message: Control) -> None:
        """Raises: StreamError."""
        match message:
            case Pong():
                self._heartbeat.hear()
            case Opened(number):
                channel = self._channels.get(number)
                if channel is not None:
                    _answer(channel.answer, "")
            case Refused(number, refusal):
                channel = self._channels.get(number)
                if channel is not None and self._drop(channel, REASONS[refusal]):
                    problem = "the relay takes no packets for it any more"
                    self._tell(StreamFailed(channel.peer, self._relay, problem))
            case Wanted(peer):
                self._tell(StreamWanted(peer, self._relay))
            case _:
                raise StreamError(f"it says {type(message).__name__}, which only a node says")


def _answer(future: asyncio.Future[str], words: str) -> None:
    """The first answer counts."""
    if not future.done():
        future.set_result(words)
