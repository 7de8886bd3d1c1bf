"""What a node asks its controllers, over mutual TLS; one of them at a time."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from dataclasses import replace
from typing import TypeVar
from urllib.parse import urlencode

import msgspec

from limpet.base.bounds.servers import FEED_LINE
from limpet.base.errors import LimpetError
from limpet.base.http.connection import Connection, HttpAnswer, LinkError
from limpet.base.http.kept import KeptConnections
from limpet.base.http.lines import read_lines, read_whole
from limpet.base.http.tls import client_context
from limpet.cloud.https import connect_to_controller
from limpet.cluster.api import REVISION_HEADER, ApiError, Refused, WatchLine, decode, encode
from limpet.cluster.identity import Identity, keep_controllers

SILENCE_S = 90.0
"""Silence that ends a watch: three bookmarks are missing."""

T = TypeVar("T")


class ControllerRefusedError(LimpetError):
    """What the controller does not do, in its words."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.error)
        self.refused = refused


def read_answer(answer: HttpAnswer, kind: type[T], at: str) -> T:
    """Raises: RefusedError; LinkError for what no controller says."""
    try:
        if answer.status == 200:
            return decode(answer.body, kind)
        refused = decode(answer.body, Refused)
    except ApiError as error:
        raise LinkError(
            f"ask the controller at {at}: HTTP status {answer.status} with what no controller "
            f"says ({error}); is something else there, or a proxy in between?"
        ) from error
    raise ControllerRefusedError(refused)


class ControllerLink:
    """One connection for requests, kept open, and one for each watch. For one event loop."""

    def __init__(
        self, identity: Identity, *, silence_s: float = SILENCE_S, answer_s: float = 20.0
    ) -> None:
        """`answer_s`: for a whole answer. Nothing is read or sent before the first request."""
        self._identity = identity
        self._silence_s = silence_s
        self._answer_s = answer_s
        self._turn = 0
        self._context: ssl.SSLContext | None = None
        self._requests = KeptConnections(self._connect, most=1)

    @property
    def controller(self) -> str:
        """The one that is asked now."""
        return self._identity.controllers[self._turn]

    @property
    def controllers(self) -> int:
        return len(self._identity.controllers)

    def follow(self, addresses: tuple[str, ...]) -> bool:
        """Asks these from the next connection on, the first of them first; they are kept, but not
        their order alone: each leader puts itself first, and the file says who this node is.

        False: nothing changes, also where a person said whom this node asks. Raises: StorageError,
        and then they count until the agent ends.
        """
        before = self._identity
        if not before.by_account or addresses == before.controllers:
            return False
        self._identity = replace(before, controllers=addresses)
        self._turn = 0
        if set(addresses) != set(before.controllers):
            keep_controllers(before, addresses)
        return True

    def use(self, addresses: tuple[str, ...]) -> bool:
        """Asks these from the next connection on; they are on the disk already.

        The one that is asked now goes on being asked if it is among them. False: it does.
        """
        now = self.controller
        self._identity = replace(self._identity, controllers=addresses)
        self._turn = addresses.index(now) if now in addresses else 0
        return self.controller != now

    def turn(self) -> None:
        """Asks the next controller from now on."""
        self.close()
        self._turn = (self._turn + 1) % self.controllers

    def close(self) -> None:
        """Ends the connection of requests; the next request makes one."""
        self._requests.close()

    async def ask(
        self, verb: str, path: str, message: msgspec.Struct, kind: type[T], *, revision: int
    ) -> T:
        """The answer. Raises: RefusedError, LinkError."""
        body = encode(message)
        headers = [
            ("Content-Type", "application/json"),
            (REVISION_HEADER, str(revision)),
        ]
        answer = await self._requests.request(
            verb, path, body=body, headers=headers, timeout_s=self._answer_s
        )
        return read_answer(answer, kind, self.controller)

    async def _connect(self) -> Connection:
        return await connect_to_controller(self.controller, self._tls())

    async def watch(
        self, since: str | None, *, revision: int, kinds: Collection[str] = ()
    ) -> AsyncGenerator[list[WatchLine], None]:
        """Lines as they come, each time all that are there; ends where the controller ends it.

        `kinds`: of documents that are to be told; none: all. Raises: RefusedError before the first
        line; LinkError, also when it is silent.
        """
        query = {} if since is None else {"since": since}
        if kinds:
            query["kinds"] = ",".join(kinds)
        path = f"/v1/watch?{urlencode(query)}" if query else "/v1/watch"
        connection = await self._connect()
        try:
            status, chunks = await connection.stream(
                path,
                headers=[(REVISION_HEADER, str(revision))],
                timeout_s=self._answer_s,
                silence_s=self._silence_s,
            )
            async with aclosing(chunks):
                if status != 200:
                    body = await read_whole(chunks, most_bytes=FEED_LINE.most)
                    read_answer(HttpAnswer(status, body), Refused, self.controller)
                async for lines in read_lines(chunks, most_bytes=FEED_LINE.most):
                    yield [_line(line, self.controller) for line in lines]
        except ValueError as error:
            raise _not_a_controller(self.controller, str(error)) from error
        finally:
            connection.close()

    def _tls(self) -> ssl.SSLContext:
        """Raises: LinkError."""
        if self._context is None:
            identity = self._identity
            try:
                context = client_context(identity.ca_path.read_text(encoding="ascii"))
                context.load_cert_chain(identity.certificate_path, identity.key_path)
            except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
                raise LinkError(
                    f"use the certificates in {identity.folder}: "
                    f"{getattr(error, 'strerror', None) or error} (put the folder back from a "
                    "back-up, or `limpet join --new-identity`)"
                ) from error
            self._context = context
        return self._context


def _line(line: bytes, at: str) -> WatchLine:
    try:
        return decode(line, WatchLine)
    except ApiError as error:
        raise _not_a_controller(at, str(error)) from error


def _not_a_controller(at: str, why: str) -> LinkError:
    return LinkError(f"watch the controller at {at}: what it says is not for a node: {why}")
