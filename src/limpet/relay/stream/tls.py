"""TLS between a node and a relay of one cluster: who proves what, and the handshake."""

from __future__ import annotations

import asyncio
import ssl
from socket import IPPROTO_TCP, SO_MARK, SOL_SOCKET, TCP_NODELAY, TCP_USER_TIMEOUT, socket

from limpet.base.errors import ConfigError
from limpet.base.http.tls import NO_CHECK_TIME
from limpet.base.ownership import TUNNEL_MARK
from limpet.cluster.identity import Identity
from limpet.cluster.keys import uid_of

_TCP_NOTSENT_LOWAT = 25
"""Source: include/uapi/linux/tcp.h."""
_UNSENT_BYTES = 64 << 10
"""Unsent bytes that the kernel takes; more would only wait there."""
_UNANSWERED_MS = 10_000
"""Without an acknowledgement, or with a reader that reads nothing: the connection is dead."""


def tune(connection: socket) -> None:
    """Packets leave at once, and by no tunnel. Raises: OSError."""
    connection.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
    connection.setsockopt(IPPROTO_TCP, _TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
    connection.setsockopt(IPPROTO_TCP, TCP_USER_TIMEOUT, _UNANSWERED_MS)
    connection.setsockopt(SOL_SOCKET, SO_MARK, TUNNEL_MARK)


def mutual_context(identity: Identity, *, server: bool) -> ssl.SSLContext:
    """TLS 1.3 between two nodes of a cluster, who both have to prove that they are.

    Certificates are not checked against the clock: an edge node's may say 1970.
    Raises: ConfigError.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_flags |= ssl.VerifyFlags(NO_CHECK_TIME)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    if server:
        context.num_tickets = 0
    try:
        context.load_verify_locations(identity.ca_path)
        context.load_cert_chain(identity.certificate_path, identity.key_path)
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"use the certificates in {identity.folder}: {cause} "
            "(put the folder back from a back-up, or `limpet join --new-identity`)"
        ) from error
    return context


async def shake_hands(
    connection: socket, context: ssl.SSLContext, *, server: bool
) -> tuple[ssl.SSLSocket, str | None]:
    """The connection in TLS, and the uid that the other side has proven; None: not a node's.

    `connection` is non-blocking, and taken over. Raises: OSError (ssl.SSLError); it is closed then.
    """
    loop = asyncio.get_running_loop()
    tls = context.wrap_socket(connection, server_side=server, do_handshake_on_connect=False)
    try:
        while True:
            ready: asyncio.Future[None] = loop.create_future()
            try:
                tls.do_handshake()
                return tls, _uid_of_peer(tls)
            except ssl.SSLWantReadError:
                loop.add_reader(tls.fileno(), _wake, ready)
            except ssl.SSLWantWriteError:
                loop.add_writer(tls.fileno(), _wake, ready)
            try:
                await ready
            finally:
                loop.remove_reader(tls.fileno())
                loop.remove_writer(tls.fileno())
    except BaseException:
        tls.close()
        raise


def _wake(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _uid_of_peer(connection: ssl.SSLSocket) -> str | None:
    """The node that the other side has proven to be; None: a certificate of no node."""
    from cryptography import x509  # only where TLS is spoken to a relay or by one
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    der = connection.getpeercert(binary_form=True)
    if der is None:
        return None
    key = x509.load_der_x509_certificate(der).public_key()
    return uid_of(key.public_bytes_raw()) if isinstance(key, Ed25519PublicKey) else None
