"""Where a controller is, and what is said of it when it is not there."""

from __future__ import annotations

import ssl

from limpet.base.http.connection import Connection, HttpServer, HttpWords, LinkError
from limpet.cluster.api import SERVER_NAME

_DEFAULT_PORT = 7470
_WORDS = HttpWords(
    not_trusted="it is not of this node's cluster: {} (does another cluster's controller answer "
    "there, or somebody in between?)",
    no_tls="it does not speak TLS as a controller does: {}",
    not_it="what answers is no controller",
    no_listener="nothing listens there (is `limpet controller` running, and is the port right?)",
    no_name="is there a DNS server? The controller's address works without",
)


def parse_controller(text: str) -> tuple[str, int]:
    """Host and port of `host`, `host:port`, `[IPv6]:port`. Raises: LinkError."""
    host, port = text, str(_DEFAULT_PORT)
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        port = rest[1:] if rest.startswith(":") else port
        if not bracket or (rest and not rest.startswith(":")):
            host = ""
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    number = int(port) if port.isascii() and port.isdigit() and len(port) < 6 else 0
    if not host or not 0 < number < 65536 or not host.isascii() or set(host) & set(" /@[]"):
        raise LinkError(
            f"controller {text!r}: not an address as 192.0.2.1:{_DEFAULT_PORT}, "
            f"[2001:db8::1]:{_DEFAULT_PORT} or controller.example:{_DEFAULT_PORT}"
        )
    return host, number


async def connect_to_controller(at: str, context: ssl.SSLContext) -> Connection:
    """Connected, and the other side has proven who it is. Raises: LinkError."""
    host, port = parse_controller(at)
    name = f"the controller at {at}"
    return await Connection.open(
        HttpServer(name, host, port, context, SERVER_NAME, SERVER_NAME, _WORDS)
    )
