"""A TLS connection between a node and a relay: frames in and out on the event loop.

Not by asyncio's TLS: it copies everything several times. A non-blocking socket of OpenSSL's reads
and writes whole records of many packets. What a slow reader does not take is dropped, as UDP would,
the newest first; nobody waits for it.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections import deque
from collections.abc import Callable
from socket import IPPROTO_TCP, SO_MARK, SOL_SOCKET, TCP_NODELAY, TCP_USER_TIMEOUT, socket

from limpet.base.errors import ConfigError
from limpet.base.ownership import TUNNEL_MARK
from limpet.base.tls import NO_CHECK_TIME, client_context
from limpet.cluster.identity import Identity
from limpet.relay.stream.codec import (
    HEADER_BYTES,
    MAX_PACKET_BYTES,
    Control,
    Frame,
    FrameParser,
    StreamError,
    encode_control,
    encode_frame,
)

QUEUE_BYTES = 256 << 10
"""Of packets that wait for the other side to read: 7 ms at 300 Mbit/s."""
_CONTROL_BYTES = 16 << 10
"""Of control that waits: whoever does not even read that is not served."""
_RECORD_BYTES = 16 << 10
"""Largest content of a TLS record. Source: RFC 8446, section 5.1."""
_RECORDS_PER_TURN = 8
"""Then others have their turn."""
_TCP_NOTSENT_LOWAT = 25
"""Source: include/uapi/linux/tcp.h."""
_UNSENT_BYTES = 64 << 10
"""In the kernel's hands before the first transmission; more would only wait there."""
_UNANSWERED_MS = 10_000
"""Without an acknowledgement, or with a reader that reads nothing: the connection is dead."""


def tune(connection: socket) -> None:
    """Packets leave at once, and by no tunnel. Raises: OSError."""
    connection.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
    connection.setsockopt(IPPROTO_TCP, _TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
    connection.setsockopt(IPPROTO_TCP, TCP_USER_TIMEOUT, _UNANSWERED_MS)
    connection.setsockopt(SOL_SOCKET, SO_MARK, TUNNEL_MARK)


def node_context(identity: Identity) -> ssl.SSLContext:
    """Towards relays of this cluster; which one it is, `uid_of_peer` says. Raises: ConfigError."""
    try:
        context = client_context(identity.ca_path.read_text(encoding="ascii"))
        context.check_hostname = False
        context.load_cert_chain(identity.certificate_path, identity.key_path)
    except (OSError, ValueError) as error:
        raise _unusable(identity, error) from error
    return context


def relay_context(identity: Identity) -> ssl.SSLContext:
    """Towards nodes of this cluster, which have to prove who they are. Raises: ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_flags |= ssl.VerifyFlags(NO_CHECK_TIME)
    context.verify_mode = ssl.CERT_REQUIRED
    context.num_tickets = 0
    try:
        context.load_verify_locations(identity.ca_path)
        context.load_cert_chain(identity.certificate_path, identity.key_path)
    except (OSError, ValueError) as error:
        raise _unusable(identity, error) from error
    return context


def _unusable(identity: Identity, error: Exception) -> ConfigError:
    return ConfigError(
        f"use the certificates in {identity.folder}: {getattr(error, 'strerror', None) or error} "
        "(put the folder back from a back-up, or `limpet join --anew`)"
    )


async def shake_hands(connection: ssl.SSLSocket) -> None:
    """Each side has proven who it is. Raises: OSError (ssl.SSLError)."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            connection.do_handshake()
        except ssl.SSLWantReadError:
            await _ready(connection, loop.add_reader, loop.remove_reader)
        except ssl.SSLWantWriteError:
            await _ready(connection, loop.add_writer, loop.remove_writer)
        else:
            return


async def _ready(
    connection: socket, add: Callable[..., object], remove: Callable[[int], object]
) -> None:
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    descriptor = connection.fileno()

    def tell() -> None:
        if not ready.done():
            ready.set_result(None)

    add(descriptor, tell)
    try:
        await ready
    finally:
        remove(descriptor)


def uid_of_peer(connection: ssl.SSLSocket) -> str | None:
    """The node that the other side has proven to be; None: a certificate of no node."""
    from cryptography import x509  # only where TLS is spoken to a relay or by one
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    from limpet.cluster.keys import uid_of

    der = connection.getpeercert(binary_form=True)
    if der is None:
        return None
    key = x509.load_der_x509_certificate(der).public_key()
    return uid_of(key.public_bytes_raw()) if isinstance(key, Ed25519PublicKey) else None


class _Waiting:
    """What is to be written: control, and then packets."""

    def __init__(self) -> None:
        self._packets: deque[bytes] = deque()
        self._packet_bytes = 0
        self._control = b""

    def take_packet(self, channel: int, packet: bytes) -> bool:
        """False: there is no room, or no frame holds it."""
        size = HEADER_BYTES + len(packet)
        if not 0 < len(packet) <= MAX_PACKET_BYTES or self._packet_bytes + size > QUEUE_BYTES:
            return False
        self._packets.append(encode_frame(channel, packet))
        self._packet_bytes += size
        return True

    def take_control(self, message: Control) -> bool:
        """False: the other side does not read."""
        self._control += encode_control(message)
        return len(self._control) <= _CONTROL_BYTES

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


class TlsStream:
    """After the handshake. It has the connection, and closes it."""

    def __init__(
        self,
        connection: ssl.SSLSocket,
        *,
        on_frames: Callable[[list[Frame]], None],
        on_end: Callable[[str], None],
    ) -> None:
        """Within a running loop. `on_end`: once, with the reason; not after `close`."""
        self.dropped = 0
        """Packets that the other side did not read in time, or that are too large."""
        self._loop = asyncio.get_running_loop()
        self._connection = connection
        self._descriptor = connection.fileno()
        self._on_frames = on_frames
        self._on_end = on_end
        self._parser = FrameParser()
        self._waiting = _Waiting()
        self._record = b""
        """Not written yet: OpenSSL wants the same bytes again."""
        self._busy = False
        """What waits is written in a moment, or when the connection takes more."""
        self._closed = False
        self._loop.add_reader(self._descriptor, self._readable)

    def send_packet(self, channel: int, packet: bytes) -> None:
        """In its turn, or never: also what no frame holds is dropped."""
        if self._closed or not self._waiting.take_packet(channel, packet):
            self.dropped += 1
        else:
            self._write_soon()

    def send_control(self, message: Control) -> None:
        """Before the packets that wait."""
        if self._waiting.take_control(message):
            self._write_soon()
        else:
            self._end("it does not read what it is sent")

    def _write_soon(self) -> None:
        if not self._busy:
            self._busy = True
            self._loop.call_soon(self._write)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._descriptor)
        self._loop.remove_writer(self._descriptor)
        self._connection.close()

    def _end(self, why: str) -> None:
        if not self._closed:
            self.close()
            self._on_end(why)

    # In

    def _readable(self) -> None:
        frames: list[Frame] = []
        ended = ""
        try:
            for _ in range(_RECORDS_PER_TURN):
                data = self._connection.recv(_RECORD_BYTES)
                if not data:
                    ended = "it closed the connection"
                    break
                frames += self._parser.feed(data)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLWantWriteError:  # it answers a new key, and must not be asked meanwhile
            self._loop.remove_reader(self._descriptor)
            self._loop.add_writer(self._descriptor, self._writable)
        except StreamError as error:
            ended = str(error)
        except OSError as error:
            ended = cause_of(error)
        if frames:
            self._on_frames(frames)
        if ended:
            self._end(ended)

    # Out

    def _writable(self) -> None:
        self._loop.remove_writer(self._descriptor)
        self._loop.add_reader(self._descriptor, self._readable)
        self._write()

    def _write(self) -> None:
        try:
            for _ in range(_RECORDS_PER_TURN):
                self._record = self._record or self._waiting.next_record()
                if not self._record or self._closed:
                    self._busy = False
                    return
                self._connection.send(self._record)
                self._record = b""
            self._loop.call_soon(self._write)
        except ssl.SSLWantWriteError:
            self._loop.add_writer(self._descriptor, self._writable)
        except OSError as error:
            self._end(cause_of(error))


def cause_of(error: OSError) -> str:
    """In words, for a person."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"it is not of this node's cluster: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {(error.reason or str(error)).lower().replace('_', ' ')}"
    # The loop puts words of its own in the place of the system's.
    return os.strerror(error.errno) if error.errno else str(error) or type(error).__name__
