"""Whom a page asks: the agent of this node, or the controller."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from limpet.agent.client import AnotherVersion
from limpet.agent.client import call as call_agent
from limpet.base.bounds.visitors import PAGE_ASKED, PAGE_REVIEWED_PER_S
from limpet.base.decoding import convert
from limpet.base.process.threads import in_thread
from limpet.controller.admin.client import call as call_controller
from limpet.picture.pair import PairDetail
from limpet.picture.picture import Picture
from limpet.picture.said import Finding, Shown
from limpet.picture.timeline import Timeline

Kind = TypeVar("Kind", bound=Shown)
WAIT_S = 0.5
"""So long an answer may take while nothing has changed; what matters is told at once."""
FAR_WAIT_S = 5.0
"""By the API server, which asks itself about each request who may."""
FAR_REST_S = 1 / PAGE_REVIEWED_PER_S.most
FindFindings = Callable[[], tuple[Finding, ...]]


class PictureSource(Protocol):
    """Each may raise LimpetError, in words for who looks."""

    can_act: bool
    """It can do more than tell."""
    rest_s: float
    """At least between two questions for one who looks, and between two pictures."""

    async def picture(self, known: str) -> Picture | None:
        """None: it is that of version `known`."""

    async def watch(self, uids: Collection[str], for_s: float) -> None:
        """Somebody looks for so long, at these nodes before others: a way that dies has to be
        found soon."""

    async def pair(self, one: str, other: str) -> PairDetail: ...

    async def events(self, *, before: int | None, node: str, limit: int) -> Timeline: ...

    async def findings(self) -> tuple[Finding, ...] | None:
        """Looked for anew; None: they are in the picture."""

    async def act(self, verb: str, by: str, **arguments: Any) -> None:
        """`by`: who does it, for the log there."""


class AgentSource:
    """By the agent's socket: who may open that, may look."""

    can_act = False
    rest_s = 0.0

    def __init__(self, socket_path: Path, find: FindFindings) -> None:
        self._path = socket_path
        self._find = find
        self._turns = asyncio.Semaphore(PAGE_ASKED.most)

    async def picture(self, known: str) -> Picture | None:
        return _picture(await self._call("picture", known=known, wait_s=WAIT_S if known else 0.0))

    async def watch(self, uids: Collection[str], for_s: float) -> None:
        await self._call("watch", nodes=list(uids), for_s=for_s)

    async def pair(self, one: str, other: str) -> PairDetail:
        return _typed(await self._call("pair", one=one, other=other), PairDetail)

    async def events(self, *, before: int | None, node: str, limit: int) -> Timeline:
        answer = await self._call("events", before=before, node=node, limit=limit)
        return _typed(answer, Timeline)

    async def findings(self) -> tuple[Finding, ...] | None:
        return await in_thread(self._find, "findings")

    async def act(self, verb: str, by: str, **arguments: Any) -> None:
        raise NotImplementedError("an agent does what the controller says")

    async def _call(self, verb: str, **arguments: Any) -> dict[str, Any]:
        said = {name: value for name, value in arguments.items() if value is not None}
        async with self._turns:
            return await in_thread(lambda: call_agent(self._path, verb, **said), "agent")


CallController = Callable[..., Awaitable[dict[str, Any]]]
"""`call(verb, by=…, **arguments)`. Raises: LimpetError."""


def at_socket(path: Path) -> CallController:
    """The controller of this machine."""

    async def call(verb: str, *, by: str = "", **arguments: Any) -> dict[str, Any]:
        return await in_thread(lambda: call_controller(path, verb, by=by, **arguments), "page")

    return call


class ControllerSource:
    """By the controller's admin socket, or the API server."""

    can_act = True

    def __init__(
        self, call: CallController, *, wait_s: float = WAIT_S, rest_s: float = 0.0
    ) -> None:
        """`wait_s`: so long an answer may take while nothing has changed."""
        self.rest_s = rest_s
        self._call_controller = call
        self._wait_s = wait_s
        self._turns = asyncio.Semaphore(PAGE_ASKED.most)

    async def picture(self, known: str) -> Picture | None:
        wait_s = self._wait_s if known else 0.0
        return _picture(await self._call("picture", known=known, wait_s=wait_s))

    async def watch(self, uids: Collection[str], for_s: float) -> None:
        """Agents report a way that died when they find it; how often they ask is their own matter:
        who looks at a whole cluster would keep a thousand of them busy."""

    async def pair(self, one: str, other: str) -> PairDetail:
        return _typed(await self._call("pair", one=one, other=other), PairDetail)

    async def events(self, *, before: int | None, node: str, limit: int) -> Timeline:
        answer = await self._call("events", before=before, node=node, limit=limit)
        return _typed(answer, Timeline)

    async def findings(self) -> tuple[Finding, ...] | None:
        return None

    async def act(self, verb: str, by: str, **arguments: Any) -> None:
        await self._call(verb, by=by, **arguments)

    async def _call(self, verb: str, *, by: str = "", **arguments: Any) -> dict[str, Any]:
        said = {name: value for name, value in arguments.items() if value is not None}
        async with self._turns:
            return await self._call_controller(verb, by=by, **said)


def _picture(answer: dict[str, Any]) -> Picture | None:
    return None if answer.get("unchanged") else _typed(answer, Picture)


def _typed(answer: dict[str, Any], kind: type[Kind]) -> Kind:
    try:
        return convert(answer, kind)
    except msgspec.ValidationError as error:
        raise AnotherVersion(
            f"what runs here is older or newer than this page: {error} (end `limpet ui` and start "
            "it again, of the version that runs)"
        ) from error
