"""TLS between a node and a relay of one cluster: who proves what, and the handshake."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from socket import IPPROTO_TCP, SO_MARK, SOL_SOCKET, TCP_NODELAY, TCP_USER_TIMEOUT, socket

from limpet.base.errors import ConfigError
from limpet.base.ownership import TUNNEL_MARK
from limpet.base.tls import NO_CHECK_TIME, client_context
from limpet.cluster.identity import Identity

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
    with _told(identity):
        context = client_context(identity.ca_path.read_text(encoding="ascii"))
        context.check_hostname = False
        context.load_cert_chain(identity.certificate_path, identity.key_path)
    return context


def relay_context(identity: Identity) -> ssl.SSLContext:
    """Towards nodes of this cluster, which have to prove who they are. Raises: ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_flags |= ssl.VerifyFlags(NO_CHECK_TIME)
    context.verify_mode = ssl.CERT_REQUIRED
    context.num_tickets = 0
    with _told(identity):
        context.load_verify_locations(identity.ca_path)
        context.load_cert_chain(identity.certificate_path, identity.key_path)
    return context


@contextmanager
def _told(identity: Identity) -> Iterator[None]:
    """Raises: ConfigError for files that cannot be used."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"use the certificates in {identity.folder}: "
            f"{getattr(error, 'strerror', None) or error} "
            "(put the folder back from a back-up, or `limpet join --anew`)"
        ) from error


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


def cause_of(error: OSError) -> str:
    """In words, for a person."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"it is not of this node's cluster: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {(error.reason or str(error)).lower().replace('_', ' ')}"
    # The loop puts words of its own in the place of the system's.
    return os.strerror(error.errno) if error.errno else str(error) or type(error).__name__
