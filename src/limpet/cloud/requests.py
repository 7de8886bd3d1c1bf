"""Putting a question to the controller, and doing first what it wants first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec
import structlog

from limpet.base.bounds.members import SHOW_BODY, SHOWN_DOCUMENTS
from limpet.base.bounds.servers import CONTROLLER_WAIT_S
from limpet.base.http.connection import LinkError
from limpet.cloud.link import ControllerLink, ControllerRefusedError
from limpet.cluster.api import (
    Code,
    HelloAnswer,
    HelloRequest,
    ShowAnswer,
    ShowRequest,
)
from limpet.cluster.documents import Sealed, Source, essentials
from limpet.cluster.membership import Membership

_log = structlog.get_logger("session")

_MOST_WAITS = 10
"""Until a batch of shown documents is taken."""
PATIENCE = 4
"""How often one question is put again after what the controller wanted first."""

T = TypeVar("T")


class Requests:
    """Questions of one node. For one event loop."""

    def __init__(
        self,
        membership: Membership,
        link: ControllerLink,
        *,
        on_hello: Callable[[HelloAnswer], None],
    ) -> None:
        """`on_hello`: hears each answer to a hello, after the snapshot has."""
        self._membership = membership
        self._link = link
        self._on_hello = on_hello

    async def ask(self, verb: str, path: str, message: msgspec.Struct, kind: type[T]) -> T:
        """The answer; what the controller wants first is done. Raises: RefusedError, LinkError."""
        for _ in range(PATIENCE):
            try:
                return await self._put(verb, path, message, kind)
            except ControllerRefusedError as error:
                await self.satisfy(error)
        raise self._insatiable()

    async def say_hello(self) -> None:
        """Raises: RefusedError, LinkError."""
        shown = False
        for _ in range(PATIENCE):
            try:
                answer = await self._put("POST", "/v1/hello", self._hello(), HelloAnswer)
            except ControllerRefusedError as error:
                if error.refused.code is not Code.SHOW:
                    self._hear_removal(error)
                    raise
                await self._show(error.refused.above)
                shown = True
            else:
                break
        else:
            raise self._insatiable()
        self._membership.offer(answer.documents, source=Source.CLOUD)
        if answer.show_above is not None and not shown:
            await self._show(answer.show_above)
        self._on_hello(answer)

    async def satisfy(self, error: ControllerRefusedError) -> None:
        """Does what has to come before the question; raises `error` again where nothing helps."""
        code = error.refused.code
        if code is Code.SHOW:
            await self._show(error.refused.above)
        elif code in (Code.SAY_HELLO, Code.UNKNOWN_NODE):
            await self.say_hello()
        else:
            self._hear_removal(error)
            raise error

    async def _put(self, verb: str, path: str, message: msgspec.Struct, kind: type[T]) -> T:
        revision = self._membership.replica.known.revision
        return await self._link.ask(verb, path, message, kind, revision=revision)

    def _hello(self) -> HelloRequest:
        known = self._membership.replica.known
        own = [each.sealed for each in essentials(known, self._membership.uid)]
        if self._membership.own is None:
            raise LinkError("say hello to the controller: this node's own grant is not known")
        return HelloRequest(known.revision, tuple(own))

    def _hear_removal(self, error: ControllerRefusedError) -> None:
        """Signed, so it counts whoever says it; a claim alone would not."""
        refused = error.refused
        if refused.code is Code.REMOVED and refused.document is not None:
            # The key that has signed it may be one that this node has not heard of.
            self._membership.offer([*refused.roots, refused.document], source=Source.CLOUD)

    async def _show(self, above: int | None) -> None:
        """All that the cluster has signed above this revision: the controller was restored."""
        known = self._membership.replica.known
        shown = [
            document.sealed
            for document in known
            if not known.kinds[document.kind].under
            and (above is None or document.revision > above or known.kinds[document.kind].root)
        ]
        taken = await self.show(shown)
        _log.warning(
            "the controller was restored from a back-up: showed it what it may not know",
            shown=len(shown),
            taken=taken,
        )

    async def show(self, documents: list[Sealed]) -> int:
        """How many of them the controller did something about. Raises: RefusedError, LinkError."""
        taken = 0
        for batch in _batches(documents):
            taken += await self._show_batch(batch)
        return taken

    async def _show_batch(self, batch: tuple[Sealed, ...]) -> int:
        """How many of them the controller did not have; of many it takes so many a minute."""
        for _ in range(_MOST_WAITS):
            try:
                answer = await self._put("POST", "/v1/show", ShowRequest(batch), ShowAnswer)
            except ControllerRefusedError as error:
                if error.refused.code is not Code.TRY_AGAIN or error.refused.after_s is None:
                    raise
                await asyncio.sleep(_wait_s(error.refused.after_s))
            else:
                return answer.taken
        raise self._insatiable()

    def _insatiable(self) -> LinkError:
        return LinkError(
            f"ask the controller at {self._link.controller}: it wants the same again and again "
            "(its log says why)"
        )


def _batches(documents: list[Sealed]) -> Iterator[tuple[Sealed, ...]]:
    """At least one, which may be empty; none is larger than a request may be."""
    batch: list[Sealed] = []
    size = 0
    for document in documents:
        added = len(document.body) * 4 // 3 + 256
        if batch and (len(batch) == SHOWN_DOCUMENTS.most or size + added > SHOW_BODY.most // 2):
            yield tuple(batch)
            batch, size = [], 0
        batch.append(document)
        size += added
    yield tuple(batch)


def _wait_s(after_s: float) -> float:
    """How long it is waited where a controller says so."""
    return min(max(after_s, 0.1), float(CONTROLLER_WAIT_S.most))
