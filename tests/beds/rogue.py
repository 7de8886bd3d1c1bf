"""Servers in a controller's place that say what no controller says, behind its certificate."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID

from limpet.base.process.listeners import close_server
from limpet.cluster.api import SERVER_NAME
from limpet.cluster.identity import Identity

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Authority:
    """A CA whose certificates were good in the year 2000 alone: who minds the clock, fails."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self._key = Ed25519PrivateKey.generate()
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "limpet test")])
        self.ca = self._certify("limpet test", self._key, ca=True)

    def identity(
        self, *controllers: str, private_key: bytes | None = None, pinned_key: bytes = bytes(32)
    ) -> Identity:
        """A node of this cluster."""
        key = Ed25519PrivateKey.generate()
        if private_key is not None:
            key = Ed25519PrivateKey.from_private_bytes(private_key)
        (self.folder / "ca.pem").write_text(self.ca)
        (self.folder / "node.pem").write_text(self._certify("node", key))
        (self.folder / "node.key.pem").write_bytes(_pem(key))
        return Identity(self.folder, key.private_bytes_raw(), "node", pinned_key, controllers)

    def server_context(self) -> ssl.SSLContext:
        key = Ed25519PrivateKey.generate()
        path = self.folder / "server.pem"
        path.write_bytes(self._certify(SERVER_NAME, key).encode() + _pem(key))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        return context

    def _certify(self, name: str, key: Ed25519PrivateKey, *, ca: bool = False) -> str:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = (
            x509.CertificateBuilder()
            .subject_name(self._name if ca else subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(datetime(2000, 1, 1))
            .not_valid_after(datetime(2000, 12, 31))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), True)
        )
        if not ca:
            names = x509.SubjectAlternativeName([x509.DNSName(name)])
            builder = builder.add_extension(names, False)
        made = builder.sign(self._key, None)
        return made.public_bytes(serialization.Encoding.PEM).decode()


def _pem(key: Ed25519PrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


@contextlib.asynccontextmanager
async def serving(serve: Serve, context: ssl.SSLContext | None) -> AsyncIterator[str]:
    """`host:port` of a server on loopback; connections that are left end with it."""
    tasks: set[asyncio.Task[None]] = set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await serve(reader, writer)

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(talk(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        # Also of one that has never had its turn.
        task.add_done_callback(lambda _: writer.transport.abort())

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=context)
    host, port = server.sockets[0].getsockname()
    try:
        yield f"{host}:{port}"
    finally:
        await close_server(server)
        for task in list(tasks):
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for transport in _transports():
            if transport.get_extra_info("sockname") == (host, port):
                transport.abort()
        await asyncio.sleep(0)  # aborted transports end


def _transports() -> list[asyncio.Transport]:
    """All of the loop's, also of a client that left as its TLS handshake began: no server of
    asyncio's knows of it, and the loop may end before it does."""
    return list(getattr(asyncio.get_running_loop(), "_transports", {}).values())


def says(data: bytes) -> Serve:
    """Takes a request, answers `data`, and closes the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take_request(reader)
        writer.write(data)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    return serve


async def take_request(reader: asyncio.StreamReader) -> bytes:
    """Head and body of it."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1])
        for line in head.lower().split(b"\r\n")
        if line.startswith(b"content-length:")
    )
    return head + await reader.readexactly(length)


def answer(body: bytes, status: str = "200 OK") -> bytes:
    """A whole answer that leaves the connection open."""
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
