"""The sockets of the process that answers names, held by the node's agent while its pod is away.

A pod that is deleted ends before the next one begins; what is asked meanwhile waits in the sockets,
as it does where a service manager keeps them (`listening`). Both ends: an agent's, which imports
this module alone, and that of the process, which asks for them at its start and then leaves them.

A connection to `SOCKET` is told the descriptors at once, perhaps none. Whoever then says `keep` and
sends descriptors has them held, for as long as the connection is open and `HOLD_S` longer. Words of
a later version (`words`) are told in the log, and he who said them goes unheard.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import os
import socket
from collections.abc import Sequence
from pathlib import Path

import structlog

from limpet.base.process.listeners import UnixServer
from limpet.base.timer import Timer
from limpet.dns.handover.words import HERE, KEEP, VersionError, is_word

_log = structlog.get_logger("names")

SOCKET = "dns-held.sock"
"""In the run_dir."""
HOLD_S = 60.0
"""Until another pod is there; then who asks is refused at once, and tries the next server."""
_MOST_SOCKETS = 32
_ANSWER_S = 2.0


class SocketHolder:
    """The agent's end. Runs on the event loop's thread."""

    def __init__(self, run_dir: Path, hold_s: float = HOLD_S) -> None:
        self._path = run_dir / SOCKET
        self._hold_s = hold_s
        self._server = UnixServer(self._path, 4, self._connected)
        self._held: list[int] = []
        self._of: socket.socket | None = None
        """The connection of whoever has left them."""
        self._connections: set[socket.socket] = set()
        self._forget = Timer("names", self._drop)
        self._refused = ""
        """What was refused last, which is told once."""

    def start(self) -> None:
        """Raises: StorageError."""
        self._server.start()

    def close(self) -> None:
        self._server.close()
        for connection in list(self._connections):
            self._leave(connection)
        self._drop()

    def _connected(self, accepted: socket.socket) -> None:
        self._connections.add(accepted)
        asyncio.get_running_loop().add_reader(accepted, self._readable, accepted)
        with contextlib.suppress(OSError):
            _send(accepted, HERE, self._held)

    def _readable(self, connection: socket.socket) -> None:
        try:
            said, fds, _, _ = socket.recv_fds(connection, 64, _MOST_SOCKETS)
        except BlockingIOError:
            return
        except OSError:
            said, fds = b"", []
        try:
            if is_word(said, KEEP):
                self._drop()
                self._held, self._of = fds, connection
                return
        except VersionError as error:
            self._refuse(connection, str(error))
        for fd in fds:
            os.close(fd)
        self._leave(connection)

    def _refuse(self, connection: socket.socket, why: str) -> None:
        with contextlib.suppress(OSError):
            connection.send(f"refused: {why}\n".encode())
        if why != self._refused:
            _log.warning("sockets of names are not held", socket=str(self._path), error=why)
        self._refused = why

    def _leave(self, connection: socket.socket) -> None:
        asyncio.get_running_loop().remove_reader(connection)
        connection.close()
        self._connections.discard(connection)
        if connection is self._of:
            self._of = None
            self._forget.set_in(self._hold_s)

    def _drop(self) -> None:
        self._forget.stop()
        for fd in self._held:
            os.close(fd)
        self._held, self._of = [], None


class Left:
    """The end of the process that answers, whether an agent is there or not."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / SOCKET
        self._connection: socket.socket | None = None

    def take(self) -> list[int]:
        """Descriptors that are held now; they are ours from now on."""
        client = self._connect()
        if client is None:
            return []
        with client:
            try:
                said, fds, _, _ = socket.recv_fds(client, 64, _MOST_SOCKETS)
            except OSError:
                return []
        try:
            is_ours = is_word(said, HERE)
        except VersionError as error:
            _log.warning("sockets that the agent holds", socket=str(self._path), error=str(error))
            is_ours = False
        for fd in fds:
            if is_ours:
                os.set_inheritable(fd, False)
            else:
                os.close(fd)
        return fds if is_ours else []

    def keep(self, sockets: Sequence[socket.socket]) -> None:
        """These are held from now on; again and again, since another agent may have begun."""
        if self._connection is not None and not _has_ended(self._connection):
            return
        self.close()
        self._connection = self._connect()
        if self._connection is not None:
            with contextlib.suppress(OSError):
                _send(self._connection, KEEP, [each.fileno() for each in sockets])
            # With a timeout Python waits for words, whatever the flags of a call say.
            self._connection.setblocking(False)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> socket.socket | None:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        made.settimeout(_ANSWER_S)
        try:
            made.connect(str(self._path))
        except OSError:
            made.close()
            return None
        return made


def _has_ended(connection: socket.socket) -> bool:
    """The other end is closed; what it has said is passed over."""
    while True:
        try:
            said, fds, _, _ = socket.recv_fds(connection, 64, _MOST_SOCKETS, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True
        for fd in fds:
            os.close(fd)
        if not said:
            return True


def _send(to: socket.socket, words: bytes, fds: Sequence[int]) -> None:
    controls = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    to.sendmsg([words], controls)
