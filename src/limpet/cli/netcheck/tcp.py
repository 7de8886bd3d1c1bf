"""What TCP does on the way out: whether a connection and TLS come about, and whose time it is."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from dataclasses import dataclass

from limpet.base.addresses import Address
from limpet.base.bounds.strangers import NETCHECK_ANSWER
from limpet.base.process.connecting import cause_of
from limpet.cli.netcheck.targets import Observer, ObserverKind
from limpet.kubernetes.access.server_clock import read_date_s

_CONNECT_S = 5.0
_REQUEST = b"GET /healthz HTTP/1.1\r\nHost: limpet\r\nConnection: close\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Connected:
    """What became of one try."""

    rtt_s: float | None
    """Round trip of the connection; None: there was none."""
    problem: str = ""
    """Why it is of no use."""
    ahead_s: float | None = None
    """How far this machine's clock is ahead of the controller's; None: it did not say."""


async def connect(observer: Observer) -> Connected:
    """TCP, then TLS as agents speak it. Who the other is is not checked: nothing is known yet."""
    port = observer.target.tcp_port
    began_s = time.monotonic()
    try:
        async with asyncio.timeout(_CONNECT_S):
            _, plain = await asyncio.open_connection(str(observer.address), port)
            rtt_s = time.monotonic() - began_s
            plain.close()
    except TimeoutError:
        return Connected(None, f"no answer within {_CONNECT_S:g} s")
    except OSError as error:
        return Connected(None, cause_of(error))
    try:
        async with asyncio.timeout(_CONNECT_S):
            return await _speak_tls(observer.address, port, observer.target.kind, rtt_s)
    except TimeoutError:
        return Connected(rtt_s, f"it connects, and TLS is not answered within {_CONNECT_S:g} s")
    except (OSError, EOFError) as error:
        cause = cause_of(error) if isinstance(error, OSError) else "it hung up"
        return Connected(rtt_s, f"it connects, and TLS does not come about: {cause}")


async def _speak_tls(address: Address, port: int, kind: ObserverKind, rtt_s: float) -> Connected:
    """Raises: OSError, EOFError, TimeoutError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    reader, writer = await asyncio.open_connection(str(address), port, ssl=context)
    try:
        if kind is not ObserverKind.CONTROLLER:
            return Connected(rtt_s)  # it goes on with nodes of its cluster only
        writer.write(_REQUEST)
        date_s = date_in(await head_of(reader))
        return Connected(rtt_s, ahead_s=None if date_s is None else time.time() - date_s)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def head_of(reader: asyncio.StreamReader) -> bytes:
    """What a controller answers, as far as it is looked at."""
    found = b""
    while len(found) < NETCHECK_ANSWER.most and b"\r\n\r\n" not in found:
        piece = await reader.read(NETCHECK_ANSWER.most - len(found))
        if not piece:
            break
        found += piece
    return found


def date_in(head: bytes) -> float | None:
    """The time that it says, in seconds since 1970."""
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"date" and len(value) < 64:
            return read_date_s(value.decode("ascii", "replace").strip())
    return None
