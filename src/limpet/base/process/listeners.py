"""Sockets that a process listens on, and the end of the servers behind them."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from pathlib import Path

import structlog

from limpet.base.addresses import Listen
from limpet.base.disk import refusals
from limpet.base.errors import StorageError
from limpet.base.timer import Timer

_log = structlog.get_logger("listeners")
_IP_FREEBIND = 15
"""Source: ip(7), include/uapi/linux/in.h."""
_REST_S = 1.0
"""Pause of accepting after descriptors or memory ran out."""


def listen_on_socket(path: Path, backlog: int) -> socket.socket:
    """A Unix socket for the owner alone; whoever waits for it finds one that answers.

    Raises: StorageError.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    temporary = Path(f"{path}.new")
    try:
        with refusals("listen on", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.unlink(missing_ok=True)
            listener.bind(str(temporary))
            temporary.chmod(0o600)
            listener.listen(backlog)
            temporary.rename(path)
    except StorageError:
        listener.close()
        raise
    return listener


class UnixServer:
    """Accepts connections on a Unix socket for the owner alone, one for each turn of the loop.

    Where descriptors or memory have run out it rests: whoever waits keeps the socket readable, and
    the loop would do nothing else.
    """

    def __init__(
        self, path: Path, backlog: int, connected: Callable[[socket.socket], None]
    ) -> None:
        """`connected`: has the connection, which does not block, as its own."""
        self._path = path
        self._backlog = backlog
        self._connected = connected
        self._listener: socket.socket | None = None
        self._again = Timer("accepting", self.resume)
        self._has_told = False
        """Whether it was logged that it rests, since the last connection."""

    def start(self) -> None:
        """Makes the socket, anew where it is there already. Raises: StorageError."""
        self.close()
        self._listener = listen_on_socket(self._path, self._backlog)
        self.resume()

    def close(self) -> None:
        """The socket's file stays: it may be another process's by now."""
        self._again.stop()
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    def pause(self) -> None:
        """Accepts nobody until `resume`; who comes waits, as many as the backlog holds."""
        self._again.stop()
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)

    def resume(self) -> None:
        """Accepts again; nothing once it is closed."""
        if self._listener is not None:
            asyncio.get_running_loop().add_reader(self._listener, self._accept, self._listener)

    def _accept(self, listener: socket.socket) -> None:
        try:
            accepted, _ = listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionError):
            return  # who came has gone
        except OSError as error:
            if not self._has_told:
                _log.error(
                    "no connections are taken for a while",
                    socket=str(self._path),
                    error=error.strerror,
                    again_s=_REST_S,
                )
            self._has_told = True
            asyncio.get_running_loop().remove_reader(listener)
            self._again.set_in(_REST_S)
            return
        self._has_told = False
        accepted.setblocking(False)
        self._connected(accepted)


def open_listener(at: Listen, *, may_come_later: bool = False) -> socket.socket:
    """A bound TCP socket that does not block; `::` is every address of both families, also where
    the kernel has but one.

    `may_come_later`: the address need not be the machine's yet. Raises: OSError.
    """
    family = socket.AF_INET6 if ":" in at[0] else socket.AF_INET
    try:
        listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    except OSError as error:
        if error.errno != errno.EAFNOSUPPORT or at[0] != "::":
            raise
        return open_listener(("0.0.0.0", at[1]), may_come_later=may_come_later)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, may_come_later)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(at)
    except OSError:
        listener.close()
        raise
    return listener


async def start_server(
    connected: Callable[[asyncio.StreamReader, asyncio.StreamWriter], None],
    listener: socket.socket,
    *,
    limit_bytes: int,
) -> asyncio.Server:
    """The listener is closed where no server comes of it, also if the caller's task is cancelled.

    Raises: OSError.
    """
    try:
        return await asyncio.start_server(connected, sock=listener, limit=limit_bytes)
    except BaseException:
        asyncio.get_running_loop().remove_reader(listener.fileno())
        listener.close()
        raise


async def close_server(server: asyncio.Server) -> None:
    """Close `server` once each connection that it has accepted is known to its protocol.

    asyncio accepts in one turn of the loop, makes the transport in the next, and calls
    `connection_made` in the one after. A server that is closed before the transport is made never
    makes it, and says nothing: the connection stays open and unanswered until the garbage collector
    comes by (`Server._attach` of Python 3.11). Afterwards the caller knows every one that is open.
    """
    loop = server.get_loop()
    for listener in server.sockets:
        loop.remove_reader(listener.fileno())
    try:
        await asyncio.sleep(0)
    finally:
        server.close()  # also where the caller's task is cancelled just here
    await asyncio.sleep(0)
