"""The socket of the process itself: what it knows, for a person; its sockets, for the next one.

A request is a line of JSON, with its version (`handover/words`), and so is its answer. To
`sockets` the sockets come; who has taken them over says `taken`, and then this process leaves them
alone for as long as that one is there. Should that one end, this one goes on.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import structlog

from limpet.base import faults
from limpet.base.decoding import decode_plain_json
from limpet.base.errors import LimpetError
from limpet.base.process.listeners import UnixServer
from limpet.dns.explain import explain, status
from limpet.dns.handover import listening
from limpet.dns.handover.held import Left
from limpet.dns.handover.ready import POD
from limpet.dns.handover.words import (
    SOCKETS,
    TAKEN,
    VersionError,
    check_request,
    encode_request,
    is_word,
)
from limpet.dns.resolver import Resolver
from limpet.dns.server import Client, DnsServer
from limpet.dns.status.answers import NamesSaid, NamesStatus

_log = structlog.get_logger("dns")

SOCKET = "dns.sock"
_LARGEST_REQUEST_BYTES = 4096
_LARGEST_WORDS_BYTES = 1024
"""Words that come with the sockets, or why they do not come."""
_TAKE_OVER_S = 5.0


class Control:
    """Runs on the event loop's thread."""

    def __init__(
        self,
        run_dir: Path,
        resolver: Resolver[Client],
        server: DnsServer,
        trouble: Callable[[], str] = str,
    ) -> None:
        """`trouble`: what cannot be done just now, in words; empty: nothing."""
        self._trouble = trouble
        self.path = run_dir / SOCKET
        self._resolver = resolver
        self._server = server
        self._listener = UnixServer(self.path, 16, self._connected)
        self._tasks: set[asyncio.Task[None]] = set()
        self._left = Left(run_dir)
        self._before: socket.socket | None = None
        """To the process whose sockets we have: it is told, and sees when we end."""
        self._refused = ""
        """What was refused last, which is told once."""

    async def start(self) -> None:
        """Raises: StorageError."""
        self._listener.start()

    def close(self) -> None:
        """The socket's file stays: it may be the next one's by now."""
        for task in self._tasks:
            task.cancel()
        self._listener.close()
        if self._before is not None:
            self._before.close()
        self._left.close()

    # The process before

    def ask_before(self) -> list[int]:
        """Descriptors of the process that runs now, or of one whose pod has ended; else none."""
        return self._ask_running() or self._left.take()

    def leave_sockets(self) -> None:
        """For the next one, should this one's pod end. Now and then: an agent may be another."""
        if os.environ.get(POD):
            self._left.keep(self._server.sockets)

    def _ask_running(self) -> list[int]:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        client.settimeout(_TAKE_OVER_S)
        try:
            client.connect(str(self.path))
            client.sendall(encode_request({"ask": "sockets"}))
            said, fds, _, _ = socket.recv_fds(client, _LARGEST_WORDS_BYTES, listening.MOST_SOCKETS)
        except OSError:
            client.close()
            return []
        if not self._has_given(said):
            client.close()
            for fd in fds:
                os.close(fd)
            return []
        for fd in fds:
            os.set_inheritable(fd, False)
        self._before = client
        return fds

    def _has_given(self, said: bytes) -> bool:
        """Whether this is what comes with sockets; what else is said, is told."""
        why = said.decode(errors="replace").strip()
        try:
            if is_word(said, SOCKETS):
                return True
        except VersionError as error:
            why = str(error)
        if why:
            _log.warning("the process before keeps its sockets", socket=str(self.path), error=why)
        return False

    def has_taken_over(self) -> None:
        if self._before is not None:
            with contextlib.suppress(OSError):
                self._before.sendall(TAKEN)

    # Whoever asks

    def _connected(self, accepted: socket.socket) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(accepted))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, client: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            with client:
                request = await loop.sock_recv(client, _LARGEST_REQUEST_BYTES)
                document = decode_plain_json(request or b"{}")
                if refusal := self._refusal(document):
                    words = json.dumps({"error": refusal}).encode() + b"\n"
                    await loop.sock_sendall(client, words)
                elif document.get("ask") == "sockets":
                    await self._hand_over(client)
                else:
                    answer = msgspec.json.encode(await self._answer(document))
                    await loop.sock_sendall(client, answer + b"\n")
        except (OSError, msgspec.MsgspecError, AttributeError):
            return
        except Exception as error:  # noqa: BLE001 - names are answered all the same
            faults.note("dns control", error)

    def _refusal(self, request: dict[str, Any]) -> str:
        """Why it is not understood; empty: it is of our version."""
        try:
            check_request(request)
        except VersionError as error:
            why = f"read what is asked at {self.path}: {error}"
            if why != self._refused:
                _log.warning("refused", error=why)
            self._refused = why
            return why
        return ""

    async def _answer(self, document: dict[str, Any]) -> NamesSaid | dict[str, str]:
        try:
            if document.get("ask") == "query":
                name, kind = str(document.get("name", "")), str(document.get("type", "A"))
                return await explain(self._resolver, self._server, name, kind)
        except LimpetError as error:
            return {"error": str(error)}
        return self.status()

    def status(self) -> NamesStatus:
        """As `limpet dns status` tells it."""
        return status(self._resolver, os.environ.get(POD, ""), self._trouble())

    async def _hand_over(self, client: socket.socket) -> None:
        """Both read for a moment, so that nobody is unheard; then the other one alone."""
        loop = asyncio.get_running_loop()
        fds = array.array("i", [each.fileno() for each in self._server.sockets])
        client.sendmsg([SOCKETS], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        if await loop.sock_recv(client, 64) != TAKEN:
            return
        self._server.pause()
        _log.info("handed over: the next process answers now")
        try:
            await loop.sock_recv(client, 64)
        except OSError:
            pass
        self._server.resume()
        self._listener.start()  # what is at our path is that one's
        self._left.close()
        self.leave_sockets()
        _log.warning("the next process has ended: this one answers again")
