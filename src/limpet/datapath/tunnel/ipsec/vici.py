"""Conversations with the IKE daemon at its VICI socket."""

from __future__ import annotations

import errno
import socket
import struct
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import vici
from vici.exception import (
    CommandException,
    DeserializationException,
    EventUnknownException,
    SessionException,
)
from vici.protocol import Packet, Transport

from limpet.base.errors import KernelError
from limpet.datapath.tunnel.ipsec.process import ANSWER_S, IpsecProcess

_EVENTS = ("ike-updown", "child-updown", "ike-rekey", "child-rekey", "ike-update")
_UNREADABLE = (
    *(SessionException, EventUnknownException, DeserializationException),
    # What the package raises for bytes that are no message, or not the one that it looks for.
    *(struct.error, ValueError, LookupError, TypeError, AttributeError),
)
Answer = TypeVar("Answer")


class Vici:
    """A connection for commands, one at a time; made when needed, also after a failure."""

    def __init__(
        self, process: IpsecProcess, *, waits_s: float = ANSWER_S, asks_anyway: bool = True
    ) -> None:
        """`asks_anyway` false: fail at once while the daemon gives others no answer."""
        self._process = process
        self._waits_s = waits_s
        self._asks_anyway = asks_anyway
        self._session: Any = None
        self._socket: socket.socket | None = None

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._session = self._socket = None

    def ask(self, command: str, message: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Raises: KernelError (EPROTO: the daemon refused; GONE: it does not run)."""
        return self._asked(command, lambda session: dict(session.request(command, message)))

    def each(self, command: str, event: str, message: Mapping[str, Any] | None = None) -> list[Any]:
        """All events that the command is answered with. Raises: KernelError."""
        return self._asked(
            command, lambda session: list(session.streamed_request(command, event, message))
        )

    def _asked(self, command: str, question: Callable[[Any], Answer]) -> Answer:
        if self._process.silent_since_s is not None and not self._asks_anyway:
            self.close()
            raise self._process.error(command, TimeoutError())
        try:
            answer = question(self._connected())
            self._process.silent_since_s = None
            return answer
        except CommandException as error:
            self._process.silent_since_s = None
            why = str(error).removeprefix("Command failed: ")
            raise KernelError(command, "strongSwan", errno.EPROTO, why) from error
        except _UNREADABLE as error:
            self.close()
            why = f"an answer that makes no sense: {error}"
            raise KernelError(command, "strongSwan", errno.EBADMSG, why) from error
        except OSError as error:
            self.close()
            self._note(error)
            raise self._process.error(command, error) from error

    def _note(self, error: OSError) -> None:
        process = self._process
        if not isinstance(error, TimeoutError | BlockingIOError):
            process.silent_since_s = None
        elif self._waits_s >= ANSWER_S and process.silent_since_s is None:
            process.silent_since_s = time.monotonic()

    def _connected(self) -> Any:
        if self._socket is not None and _has_hung_up(self._socket):
            self.close()
        if self._session is None:
            self._socket = self._process.connect(self._waits_s)
            self._session = vici.Session(self._socket)
        return self._session


def _has_hung_up(connection: socket.socket) -> bool:
    """The daemon has closed the connection; it never sends anything unasked."""
    try:
        return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


class ViciEvents:
    """A connection that becomes readable when an SA has changed."""

    def __init__(self, process: IpsecProcess) -> None:
        """Raises: KernelError."""
        try:
            self._socket = process.connect(ANSWER_S)
        except OSError as error:
            raise process.error("listen to", error) from error
        transport = Transport(self._socket)
        try:
            for event in _EVENTS:
                transport.send(Packet.register_event(event))
                transport.receive()
        except OSError as error:
            self.close()
            raise process.error("listen to", error) from error
        except _UNREADABLE as error:
            self.close()
            raise KernelError("listen to", "strongSwan", errno.EBADMSG, str(error)) from error

    def fileno(self) -> int:
        return self._socket.fileno()

    def drain(self) -> bool:
        """Discards all events that have come; False: the daemon has closed the connection."""
        try:
            while True:
                if not self._socket.recv(1 << 16, socket.MSG_DONTWAIT):
                    return False
        except BlockingIOError:
            return True
        except OSError:
            return False

    def close(self) -> None:
        self._socket.close()
