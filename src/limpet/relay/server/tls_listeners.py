"""Where a relay listens for TLS connections, and goes on trying to."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable
from ipaddress import ip_address
from typing import Any

import structlog

from limpet.base.addresses import Listen
from limpet.base.ownership import TUNNEL_MARK
from limpet.base.process import open_listener
from limpet.base.timer import Timer
from limpet.datapath.event import RelayTlsPortChanged, Tell

_log = structlog.get_logger("relay-tls")

_RETRY_S = 30.0
_BACKLOG = 256
_ACCEPTED_PER_TURN = 16
_PAUSE_S = 5.0
"""Pause of accepting after descriptors or memory ran out."""


class TlsListeners:
    """Runs on the event loop."""

    def __init__(
        self, listen: Iterable[Listen], admit: Callable[[socket.socket, bytes], None], tell: Tell
    ) -> None:
        """Tells RelayTlsPortChanged. `admit` gets each connection, and what tells its source."""
        self.troubles: dict[Listen, str] = {}
        """Where listening failed, and why."""
        self.addresses: list[Listen] = []
        """Where the relay listens."""
        self._waiting = list(listen)
        self._admit = admit
        self._tell = tell
        self._sockets: list[socket.socket] = []
        self._again = Timer("relay over TLS", self.start)

    def stop(self) -> None:
        self._again.stop()
        for listener in self._sockets:
            asyncio.get_running_loop().remove_reader(listener.fileno())
            listener.close()
        self._sockets.clear()

    def report(self) -> dict[str, Any]:
        """For `limpet status`."""
        return {
            "listen": [f"{host}:{port}" for host, port in self.addresses],
            "troubles": {f"{host}:{port}": why for (host, port), why in self.troubles.items()},
        }

    def start(self) -> None:
        """Listens wherever nothing does yet, and accepts everywhere."""
        for at in list(self._waiting):
            try:
                listener = _listener(at)
            except OSError as error:
                why = error.strerror or str(error)
                if self.troubles.get(at) != why:
                    _log.error(
                        "nothing is relayed over TLS",
                        listen=f"{at[0]}:{at[1]}",
                        error=why,
                        what_to_do="free the port, or set another relay_tls_listen and restart",
                    )
                self.troubles[at] = why
                continue
            self._waiting.remove(at)
            self.troubles.pop(at, None)
            self._sockets.append(listener)
            self.addresses.append(listener.getsockname()[:2])
            self._tell(RelayTlsPortChanged(self.addresses[0][1]))
        for listener in self._sockets:
            asyncio.get_running_loop().add_reader(listener.fileno(), self._accept, listener)
        if self._waiting:
            self._again.set_in(_RETRY_S)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTED_PER_TURN):
            try:
                connection, source = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptors or no memory: it would be told for ever
                _log.warning("no connections are taken for a while", error=error.strerror)
                asyncio.get_running_loop().remove_reader(listener.fileno())
                self._again.set_in(_PAUSE_S)
                return
            self._admit(connection, _source(source[0]))


def _source(text: str) -> bytes:
    """The address of IPv4, or the /64 of IPv6, of which an attacker rarely has many."""
    address = ip_address(text.partition("%")[0])
    if address.version == 6 and address.ipv4_mapped is None:
        return address.packed[:8]
    return address.packed[-4:]


def _listener(at: Listen) -> socket.socket:
    """Raises: OSError."""
    listener = open_listener(at, may_come_later=True)
    try:
        # Of the listener, since the first answer is sent before there is a connection.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, TUNNEL_MARK)
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
