"""A TLS session between a node and a relay, alike at both ends: control, packets, and its end.

Not by asyncio's TLS: it copies everything several times. A non-blocking socket of OpenSSL's reads
and writes whole records of many packets. What a slow reader does not take is dropped, as UDP would,
the newest first; nobody waits for it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Protocol

from limpet.base.bounds.members import (
    RELAY_TINY_PACKETS_PER_S,
    RELAY_UNREAD,
    RELAY_UNREAD_WORDS,
)
from limpet.base.process.connecting import cause_of
from limpet.base.timer import Timer
from limpet.relay.stream.codec import (
    CONTROL,
    HEADER_BYTES,
    MAX_PACKET_BYTES,
    Control,
    Frame,
    FrameParser,
    StreamError,
    encode_control,
    encode_frame,
    parse_control,
)

_RECORD_BYTES = 16 << 10
"""Largest content of a TLS record. Source: RFC 8446, section 5.1."""
_RECORDS_PER_TURN = 8
"""Records until others have their turn."""
_FRAMES_PER_TURN = 256
"""Frames after which no further record is read then: to hand on one costs the same, however small,
and a record holds eleven large packets, or three thousand of a byte."""
_BYTES_PER_FRAME = 64
"""Who sends less is read more seldom."""
_SHORTEST_REST_S = 0.005
"""Shorter ones are added up: a word now and then costs no timer."""


def rest_after(packets: int, size_bytes: int) -> float:
    """How long a connection is not read after packets that came in so many bytes, with all else."""
    tiny = packets - size_bytes / _BYTES_PER_FRAME
    return max(0.0, tiny) / RELAY_TINY_PACKETS_PER_S.most


class _Rest:
    """A connection is not read for a while after tiny packets."""

    def __init__(self, read_on: Callable[[], None]) -> None:
        self._timer = Timer("a connection to a relay", read_on)
        self._due_s = 0.0

    @property
    def holds(self) -> bool:
        """It must not be read now."""
        return self._timer.is_set

    def begins(self, packets: int, size_bytes: int) -> bool:
        """Whether it must not be read from now on, after packets that came in so many bytes."""
        self._due_s += rest_after(packets, size_bytes)
        if self._due_s < _SHORTEST_REST_S:
            return False
        self._timer.set_in(self._due_s)
        self._due_s = 0.0
        return True

    def stop(self) -> None:
        self._timer.stop()


class SessionSide(Protocol):
    """What an end, a node or a relay, does with what it hears."""

    def hear(self, message: Control) -> None:
        """Raises: StreamError: the other end does not keep to the rules; the session ends."""

    def deliver(self, channel: int, packets: Sequence[bytes]) -> None:
        """Takes packets that came together."""

    def session_ended(self, why: str) -> None:
        """Is called once, also after `end`."""


class _Waiting:
    """What is to be written: control, and then packets."""

    def __init__(self) -> None:
        self._packets: deque[bytes] = deque()
        self._packet_bytes = 0
        self._control = b""

    def take_packet(self, channel: int, packet: bytes) -> bool:
        """False: the queue is full, or no frame holds the packet."""
        size = HEADER_BYTES + len(packet)
        if not 0 < len(packet) <= MAX_PACKET_BYTES or self._packet_bytes + size > RELAY_UNREAD.most:
            return False
        self._packets.append(encode_frame(channel, packet))
        self._packet_bytes += size
        return True

    def take_control(self, message: Control) -> bool:
        """False: the other side does not read."""
        self._control += encode_control(message)
        return len(self._control) <= RELAY_UNREAD_WORDS.most

    def next_record(self) -> bytes:
        """Control, then as many packets as one record holds whole."""
        parts = [self._control]
        size = len(self._control)
        self._control = b""
        packets = self._packets
        while packets and size + len(packets[0]) <= _RECORD_BYTES:
            packet = packets.popleft()
            size += len(packet)
            self._packet_bytes -= len(packet)
            parts.append(packet)
        return b"".join(parts)


class TlsSession:
    """Owns the connection from the handshake on, and closes it."""

    def __init__(self, connection: ssl.SSLSocket, side: SessionSide) -> None:
        """Within a running loop."""
        self.why_ended = ""
        """Reason of the end; empty: the session lives."""
        self.malformed = False
        """The session has ended because the other end broke the protocol."""
        self.dropped = 0
        """Packets that the other side did not read in time, or that are too large."""
        self._side = side
        self._loop = asyncio.get_running_loop()
        self.heard_s = self._loop.time()
        """When anything came last."""
        self._connection = connection
        self._parser = FrameParser()
        self._waiting = _Waiting()
        self._record = b""
        """A record being written: after a partial write OpenSSL wants the same bytes again."""
        self._busy = False
        """A write is scheduled, or waits for the connection to take more."""
        self._rest = _Rest(self._read_on)
        self._loop.add_reader(connection.fileno(), self._readable)

    def send_packet(self, channel: int, packet: bytes) -> None:
        """Queues the packet, or drops it if the queue is full or no frame holds it."""
        if self.why_ended or not self._waiting.take_packet(channel, packet):
            self.dropped += 1
        else:
            self._write_soon()

    def send_control(self, message: Control) -> None:
        """Queues control, which overtakes waiting packets."""
        if self._waiting.take_control(message):
            self._write_soon()
        else:
            self.end("it does not read what it is sent")

    def end(self, why: str) -> None:
        if not self.why_ended:
            self.why_ended = why
            self._rest.stop()
            descriptor = self._connection.fileno()
            self._loop.remove_reader(descriptor)
            self._loop.remove_writer(descriptor)
            self._connection.close()
            self._side.session_ended(why)

    # In

    def _readable(self) -> None:
        frames: list[Frame] = []
        size = 0
        ended: str | StreamError = ""
        try:
            for _ in range(_RECORDS_PER_TURN):
                data = self._connection.recv(_RECORD_BYTES)
                if not data:
                    ended = "it closed the connection"
                    break
                size += len(data)
                frames += self._parser.feed(data)
                if len(frames) > _FRAMES_PER_TURN:
                    break
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLWantWriteError:  # it answers a new key, and must not be asked meanwhile
            self._loop.remove_reader(self._connection.fileno())
            self._loop.add_writer(self._connection.fileno(), self._writable)
        except StreamError as error:
            ended = error
        except OSError as error:
            ended = cause_of(error)
        if frames:
            try:
                self._take(frames)
            except StreamError as error:
                ended = error
        if ended and not self.why_ended:
            self.malformed = isinstance(ended, StreamError)
            self.end(str(ended))
        if not self.why_ended and self._rest.begins(len(frames), size):
            self._loop.remove_reader(self._connection.fileno())

    def _read_on(self) -> None:
        self._loop.add_reader(self._connection.fileno(), self._readable)

    def _take(self, frames: list[Frame]) -> None:
        """Raises: StreamError."""
        self.heard_s = self._loop.time()
        packets: defaultdict[int, list[bytes]] = defaultdict(list)
        for channel, body in frames:
            if channel != CONTROL:
                packets[channel].append(body)
                continue
            # What came before a channel was opened or closed is not for who has it then.
            self._deliver(packets)
            self._side.hear(parse_control(body))
            if self.why_ended:
                return
        self._deliver(packets)

    def _deliver(self, packets: defaultdict[int, list[bytes]]) -> None:
        for channel, together in packets.items():
            self._side.deliver(channel, together)
        packets.clear()

    # Out

    def _write_soon(self) -> None:
        if not self._busy:
            self._busy = True
            self._loop.call_soon(self._write)

    def _writable(self) -> None:
        self._loop.remove_writer(self._connection.fileno())
        if not self._rest.holds:
            self._read_on()
        self._write()

    def _write(self) -> None:
        try:
            for _ in range(_RECORDS_PER_TURN):
                self._record = self._record or self._waiting.next_record()
                if not self._record or self.why_ended:
                    self._busy = False
                    return
                self._connection.send(self._record)
                self._record = b""
            self._loop.call_soon(self._write)
        except ssl.SSLWantWriteError:
            self._loop.add_writer(self._connection.fileno(), self._writable)
        except OSError as error:
            self.end(cause_of(error))
