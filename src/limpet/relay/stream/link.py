"""A node's TLS connection to one relay, with a channel for each peer."""

from __future__ import annotations

import asyncio
import ssl
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from limpet.base.addresses import Endpoint
from limpet.base.errors import LimpetError
from limpet.relay.messages import Refusal
from limpet.relay.stream.codec import (
    CONTROL,
    MAX_CHANNEL,
    Close,
    Control,
    Frame,
    Open,
    Opened,
    Ping,
    Pong,
    Refused,
    StreamError,
    Wanted,
    parse_control,
)
from limpet.relay.stream.loopback_peer import LoopbackPeer
from limpet.relay.stream.tls_stream import TlsStream

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
        self.rtt_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._tunnel_port = tunnel_port
        self._on_end = on_end
        self._on_refused = on_refused
        self._on_wanted = on_wanted
        self._channels: dict[int, _Channel] = {}
        self._of_peer: dict[str, _Channel] = {}
        self._number = 0
        self._lost = 0
        self._ended = ""
        self._pong = self._loop.create_future()
        self._asked_s = 0.0
        self._heard = False
        self._stream = TlsStream(connection, on_frames=self._take, on_end=self.end)
        self._timer = self._loop.call_soon(self._ping)

    @property
    def peers(self) -> list[str]:
        return sorted(self._of_peer)

    @property
    def lost(self) -> int:
        """Packets that were dropped on this side."""
        live = sum(channel.loopback.lost for channel in self._channels.values())
        return self._lost + live + self._stream.dropped

    async def answered(self) -> None:
        """The relay takes this node. Raises: LimpetError."""
        why = await asyncio.shield(self._pong) or self._ended
        if why:
            raise LimpetError(why)

    async def open(self, peer: str) -> Endpoint:
        """Where the tunnel sends what is for the peer. Raises: LimpetError.

        One that was open is opened again: what is for this node comes by it from then on, also if
        it had gone by UDP.
        """
        if self._ended:
            raise LimpetError(self._ended)
        channel = self._of_peer.get(peer)
        if channel is None:
            channel = self._new_channel(peer)
            self._ask(channel)
        elif channel.answer.done():
            del self._channels[channel.number]
            self._ask(channel)
        why = await asyncio.shield(channel.answer)
        if why:
            raise LimpetError(why)
        return channel.loopback.endpoint

    def release(self, peer: str) -> None:
        channel = self._of_peer.get(peer)
        if channel is not None:
            self._drop(channel, "it was given back")
            self._stream.send_control(Close(channel.number))

    def end(self, why: str) -> None:
        if self._ended:
            return
        self._ended = why
        in_use = bool(self._channels)
        self._timer.cancel()
        self._stream.close()
        if not self._pong.done():
            self._pong.set_result(why)
        for channel in list(self._channels.values()):
            self._drop(channel, why)
        self._on_end(why, in_use)

    def _new_channel(self, peer: str) -> _Channel:
        """Raises: LimpetError."""
        send = self._stream.send_packet
        loopback = LoopbackPeer(self._tunnel_port, lambda packet: send(channel.number, packet))
        channel = _Channel(CONTROL, peer, loopback, self._loop.create_future())
        self._of_peer[peer] = channel
        return channel

    def _ask(self, channel: _Channel) -> None:
        """Under a new number; the relay lets go that which the peer had before."""
        # Numbers go up, so that late packets of a closed channel are nobody's.
        self._number = self._number % MAX_CHANNEL + 1
        while self._number in self._channels:
            self._number = self._number % MAX_CHANNEL + 1
        channel.number, channel.answer = self._number, self._loop.create_future()
        self._channels[channel.number] = channel
        self._stream.send_control(Open(channel.number, channel.peer))

    def _drop(self, channel: _Channel, why: str) -> None:
        del self._channels[channel.number], self._of_peer[channel.peer]
        self._lost += channel.loopback.lost
        channel.loopback.close()
        if not channel.answer.done():
            channel.answer.set_result(why)

    # Whether it lives

    def _ping(self) -> None:
        if self._pong.done() and not self._channels:
            self.end("nobody needs it")
            return
        self._asked_s = self._loop.time()
        self._heard = False
        self._timer = self._loop.call_later(PONG_WITHIN_S, self._look)
        self._stream.send_control(Ping())

    def _look(self) -> None:
        if self._heard:
            self._timer = self._loop.call_later(PING_EVERY_S - PONG_WITHIN_S, self._ping)
        else:
            self.end(f"nothing came from it for {PONG_WITHIN_S:g} s")

    # In

    def _take(self, frames: list[Frame]) -> None:
        self._heard = True
        packets: defaultdict[int, list[bytes]] = defaultdict(list)
        for number, body in frames:
            if number == CONTROL:
                try:
                    self._hear(parse_control(body))
                except StreamError as error:
                    self.end(str(error))
                    return
            else:
                packets[number].append(body)
        for number, together in packets.items():
            channel = self._channels.get(number)
            if channel is not None:
                channel.loopback.deliver(together)

    def _hear(self, message: Control) -> None:
        """Raises: StreamError."""
        match message:
            case Pong():
                took_s = self._loop.time() - self._asked_s
                self.rtt_s = took_s if not self.rtt_s else self.rtt_s * 0.75 + took_s * 0.25
                if not self._pong.done():
                    self._pong.set_result("")
            case Opened(number):
                channel = self._channels.get(number)
                if channel is not None and not channel.answer.done():
                    channel.answer.set_result("")
            case Refused(number, refusal):
                channel = self._channels.get(number)
                if channel is not None:
                    was_open = channel.answer.done()
                    self._drop(channel, _REFUSALS.get(refusal, "it gives no reason"))
                    if was_open:
                        self._on_refused(channel.peer)
            case Wanted(peer):
                self._on_wanted(peer)
            case _:
                raise StreamError(f"it says {type(message).__name__}, which only a node says")
