"""This node's own objects at the API server: what the controller says of the node in their status,
and whether its grant is there as the node has it.

Where it is not (deleted while no controller ran, etcd put back from an old copy), and where the
controller grants nothing until it has heard of all, the node says hello to it and shows what it
has: nothing else would tell it, since a node that hears the API server holds no connection to it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import msgspec
import structlog

from limpet.base.decoding import decode_json
from limpet.base.errors import LimpetError
from limpet.cluster.documents import Sealed
from limpet.cluster.keys import SealError
from limpet.cluster.kinds import GRANT, KINDS, NETWORK
from limpet.cluster.membership import Membership
from limpet.cluster.seal import read_sealed
from limpet.kubernetes.client import Client
from limpet.kubernetes.errors import NotFoundError
from limpet.kubernetes.kinds.objects import Resource, Viewed
from limpet.kubernetes.kinds.resources import GROUP, NODE_GRANT, UID_LABEL, VERSION, Signed
from limpet.kubernetes.kinds.resources import node_object_names as names_of

_log = structlog.get_logger("api server")
_MOST_TOLD = 8
_WAIT_S, _SPREAD_S = 2.0, 6.0
"""Before it is looked at: a controller that leads writes again what is deleted; and all nodes hear
of it at once."""
_AGAIN_S = 30.0


class Carrier(Viewed, frozen=True, kw_only=True, rename="camel"):
    """An object that carries a document; what it says beside that is for people."""

    document: Signed | None = None
    status: msgspec.Raw = msgspec.Raw(b"null")
    """Read of the network, and of this node's own objects."""


class _Condition(msgspec.Struct, frozen=True):
    type: str = ""
    status: str = ""
    message: str = ""


class _Conditions(msgspec.Struct, frozen=True):
    conditions: list[_Condition] | None = None


_GRANTS = Resource(NODE_GRANT.object_kind, NODE_GRANT.plural, Carrier, GROUP, VERSION)


class OwnObjects:
    """For one event loop."""

    def __init__(
        self,
        membership: Membership,
        say_hello: Callable[[], None],
        *,
        random: Callable[[], float],
    ) -> None:
        self._membership = membership
        self._say_hello = say_hello
        self._random = random
        self._doubt = asyncio.Event()
        self._is_awaited = False
        """The controller waits for every node to say hello."""
        self._told: dict[str, tuple[str, ...]] = {}
        """By kind: what the controller says of this node."""

    @property
    def told(self) -> tuple[str, ...]:
        """What the controller says is not as it should be, in words."""
        return tuple(words for several in self._told.values() for words in several)

    def hear(self, kind: str, item: Carrier) -> None:
        """Any object that was told."""
        if kind == NETWORK.name:
            recovers = any(each.startswith("Granting:") for each in not_as_it_should_be(item))
            if recovers and not self._is_awaited:
                self._doubt.set()
            self._is_awaited = recovers
        elif (item.metadata.labels or {}).get(UID_LABEL) == self._membership.uid:
            self._told[kind] = not_as_it_should_be(item)
            if kind == GRANT.name and self._version_of(item) < self._version:
                self._doubt.set()

    def doubt(self) -> None:
        """The grant may be gone: objects were deleted, or all was told anew."""
        self._doubt.set()

    async def run(self, client: Client) -> None:
        """Until it is cancelled."""
        while True:
            await self._doubt.wait()
            self._doubt.clear()
            await asyncio.sleep(_WAIT_S + _SPREAD_S * self._random())
            is_awaited = self._is_awaited
            while is_awaited or not await self._is_there(client):
                _log.info("the controller does not know this node's grant, and is told")
                self._say_hello()
                is_awaited = False
                if await self._is_doubted_within(_AGAIN_S * (1 + self._random())):
                    break

    async def _is_doubted_within(self, wait_s: float) -> bool:
        """Something was taken away again, or a recovery began: that is looked at anew."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._doubt.wait()
        return self._doubt.is_set()

    async def _is_there(self, client: Client) -> bool:
        """Also when that cannot be found out: the reflectors say that the server is away, and list
        all when it is back."""
        grant = self._membership.grant
        if grant is None or self._membership.removed:
            return True
        try:
            for name in names_of(grant.name, grant.uid):
                try:
                    found = await client.get(_GRANTS, name)
                except NotFoundError:
                    continue
                if self._version_of(found) >= self._version:
                    return True
        except LimpetError:
            return True
        return False

    @property
    def _version(self) -> int:
        grant = self._membership.grant
        return grant.generation if grant is not None else 0

    def _version_of(self, item: Carrier) -> int:
        """-1: it does not carry this node's grant."""
        if item.document is None:
            return -1
        try:
            sealed = Sealed(GRANT.name, item.document.body, item.document.signature)
            document = read_sealed(sealed, KINDS)
        except SealError:
            return -1
        return document.version if document.name == self._membership.uid else -1


def not_as_it_should_be(found: Carrier) -> tuple[str, ...]:
    """What the controller says of the object, in words; nonsense says nothing."""
    try:
        status = decode_json(found.status, _Conditions | None)
    except msgspec.MsgspecError:
        return ()
    conditions = (status.conditions if status is not None else None) or ()
    wrong = [each for each in conditions if each.status == "False"]
    return tuple(f"{each.type}: {each.message}" for each in wrong[:_MOST_TOLD])
