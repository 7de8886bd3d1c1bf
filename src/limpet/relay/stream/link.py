"""A node's TLS connection to one relay, with a channel for each peer."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from limpet.base.addresses import Endpoint
from limpet.base.errors import LimpetError
from limpet.relay.messages import Refusal
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
from limpet.relay.stream.loopback_peer import LoopbackPeer
from limpet.relay.stream.session import TlsSession

PING_EVERY_S = 15.0
PONG_WITHIN_S = 5.0
_REFUSALS = {
    Refusal.NO_RELAY: "it is no relay any more",
    Refusal.MAY_NOT_TALK: "the two nodes share no community, or one was removed",
    Refusal.QUOTA: "this node has as many pairs there as it may have (relay_pairs_per_node)",
    Refusal.FULL: "all of its ports are given away (relay_ports)",
}


@dataclass(slots=True)
class _Channel:
    number: int
    peer: str
    loopback: LoopbackPeer
    answer: asyncio.Future[str]
    """Empty: the relay brings its packets; else why not."""


class _Channels:
    """Of one connection: each stands for a peer, under a number of its own."""

    def __init__(self) -> None:
        self.by_number: dict[int, _Channel] = {}
        self.by_peer: dict[str, _Channel] = {}
        self.lost = 0
        """Packets of those that are closed."""
        self._number = 0

    def renumber(self, channel: _Channel) -> None:
        """Numbers go up, so that late packets of a closed channel are nobody's."""
        self.by_number.pop(channel.number, None)
        self._number = self._number % MAX_CHANNEL + 1
        while self._number in self.by_number:
            self._number = self._number % MAX_CHANNEL + 1
        channel.number = self._number
        self.by_number[channel.number] = self.by_peer[channel.peer] = channel

    def drop(self, channel: _Channel, why: str) -> None:
        del self.by_number[channel.number], self.by_peer[channel.peer]
        self.lost += channel.loopback.lost
        channel.loopback.close()
        if not channel.answer.done():
            channel.answer.set_result(why)


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
        self._timer: asyncio.Handle = self._loop.call_soon(self._ping)

    def stop(self, why: str) -> None:
        self._timer.cancel()
        if not self.answered.done():
            self.answered.set_result(why)

    def hear(self) -> None:
        took_s = self._loop.time() - self._asked_s
        self.rtt_s = took_s if not self.rtt_s else self.rtt_s * 0.75 + took_s * 0.25
        if not self.answered.done():
            self.answered.set_result("")

    def _ping(self) -> None:
        if self.answered.done() and not self._is_needed():
            self._session.end("nobody needs it")
            return
        self._asked_s = self._loop.time()
        self._timer = self._loop.call_later(PONG_WITHIN_S, self._look)
        self._session.send_control(Ping())

    def _look(self) -> None:
        if self._session.heard_s >= self._asked_s:
            self._timer = self._loop.call_later(PING_EVERY_S - PONG_WITHIN_S, self._ping)
        else:
            self._session.end(f"nothing came from it for {PONG_WITHIN_S:g} s")


class RelayLink:
    """From the handshake to the end of the connection."""

    def __init__(
        self,
        connection: ssl.SSLSocket,
        *,
        tunnel_port: int,
        on_end: Callable[[str, bool], None],
        on_refused: Callable[[str], None],
        on_wanted: Callable[[str], None],
    ) -> None:
        """Within a running loop.

        `on_end`: once, with the reason, and whether a peer had an end here. `on_refused`: a peer
        whose end was there and is not any more. `on_wanted`: a peer that has asked for the two.
        """
        self._tunnel_port = tunnel_port
        self._on_end = on_end
        self._on_refused = on_refused
        self._on_wanted = on_wanted
        self._channels = _Channels()
        self._session = TlsSession(connection, self)
        self._heartbeat = _Heartbeat(self._session, lambda: bool(self._channels.by_number))
        self.end = self._session.end

    @property
    def rtt_s(self) -> float:
        return self._heartbeat.rtt_s

    @property
    def peers(self) -> list[str]:
        return sorted(self._channels.by_peer)

    @property
    def lost(self) -> int:
        """Packets that were dropped on this side."""
        live = sum(channel.loopback.lost for channel in self._channels.by_peer.values())
        return self._channels.lost + live + self._session.dropped

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
        channel = self._channels.by_peer.get(peer)
        if channel is None:
            self._ask(channel := self._new_channel(peer))
        elif channel.answer.done():
            self._ask(channel)
        why = await asyncio.shield(channel.answer)
        if why:
            raise LimpetError(why)
        return channel.loopback.endpoint

    def release(self, peer: str) -> None:
        channel = self._channels.by_peer.get(peer)
        if channel is not None:
            self._channels.drop(channel, "it was given back")
            self._session.send_control(Close(channel.number))

    def _new_channel(self, peer: str) -> _Channel:
        """Raises: LimpetError."""
        send = self._session.send_packet
        loopback = LoopbackPeer(self._tunnel_port, lambda packet: send(channel.number, packet))
        channel = _Channel(CONTROL, peer, loopback, asyncio.get_running_loop().create_future())
        return channel

    def _ask(self, channel: _Channel) -> None:
        """Under a new number; the relay lets go that which the peer had before."""
        self._channels.renumber(channel)
        channel.answer = asyncio.get_running_loop().create_future()
        self._session.send_control(Open(channel.number, channel.peer))

    # What the session says

    def session_ended(self, why: str) -> None:
        in_use = bool(self._channels.by_number)
        self._heartbeat.stop(why)
        for channel in list(self._channels.by_peer.values()):
            self._channels.drop(channel, why)
        self._on_end(why, in_use)

    def deliver(self, channel: int, packets: Sequence[bytes]) -> None:
        found = self._channels.by_number.get(channel)
        if found is not None:
            found.loopback.deliver(packets)

    def hear(self, message: Control) -> None:
        """Raises: StreamError."""
        match message:
            case Pong():
                self._heartbeat.hear()
            case Opened(number):
                channel = self._channels.by_number.get(number)
                if channel is not None and not channel.answer.done():
                    channel.answer.set_result("")
            case Refused(number, refusal):
                channel = self._channels.by_number.get(number)
                if channel is not None:
                    was_open = channel.answer.done()
                    self._channels.drop(channel, _REFUSALS.get(refusal, "it gives no reason"))
                    if was_open:
                        self._on_refused(channel.peer)
            case Wanted(peer):
                self._on_wanted(peer)
            case _:
                raise StreamError(f"it says {type(message).__name__}, which only a node says")
