"""A TLS session between a node and a relay, alike at both ends: control, packets, and its end."""

from __future__ import annotations

import asyncio
import ssl
from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol

from limpet.relay.stream.codec import CONTROL, Control, Frame, StreamError, parse_control
from limpet.relay.stream.tls_stream import TlsStream


class SessionSide(Protocol):
    """What an end does with what it hears."""

    def hear(self, message: Control) -> None:
        """Raises: StreamError: the other end does not keep to the rules; the session ends."""

    def deliver(self, channel: int, packets: Sequence[bytes]) -> None:
        """That came together."""

    def session_ended(self, why: str) -> None:
        """Once, also after `end`."""


class TlsSession:
    """From the handshake to the end of the connection."""

    def __init__(self, connection: ssl.SSLSocket, side: SessionSide) -> None:
        """Within a running loop."""
        self.why_ended = ""
        """Empty: it has not."""
        self.malformed = False
        """It has ended since the other end did not keep to the rules."""
        self._side = side
        self._loop = asyncio.get_running_loop()
        self.heard_s = self._loop.time()
        """When anything came last."""
        self._stream = TlsStream(connection, on_frames=self._take, on_end=self.end)
        self.send_packet = self._stream.send_packet
        self.send_control = self._stream.send_control

    @property
    def dropped(self) -> int:
        """Packets that the other end did not read in time."""
        return self._stream.dropped

    def end(self, why: str) -> None:
        if not self.why_ended:
            self.why_ended = why
            self._stream.close()
            self._side.session_ended(why)

    def refuse(self, error: StreamError) -> None:
        self.malformed = True
        self.end(str(error))

    def _take(self, frames: list[Frame]) -> None:
        self.heard_s = self._loop.time()
        packets: defaultdict[int, list[bytes]] = defaultdict(list)
        for channel, body in frames:
            if channel != CONTROL:
                packets[channel].append(body)
                continue
            # What came before a channel was opened or closed is not for who has it then.
            self._deliver(packets)
            try:
                self._side.hear(parse_control(body))
            except StreamError as error:
                self.refuse(error)
            if self.why_ended:
                return
        self._deliver(packets)

    def _deliver(self, packets: defaultdict[int, list[bytes]]) -> None:
        for channel, together in packets.items():
            self._side.deliver(channel, together)
        packets.clear()
