"""This node's presence, as an object of the API server that the node writes itself."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import structlog

from limpet.base.decoding import convert
from limpet.base.errors import LimpetError
from limpet.cluster.documents import Document, Sealed, Source
from limpet.cluster.kinds import PRESENCE
from limpet.cluster.membership import Membership
from limpet.cluster.replica import Outcome
from limpet.kubernetes.client import Client
from limpet.kubernetes.errors import ExistsError, NotFoundError, ObjectConflictError
from limpet.kubernetes.kinds.objects import Object, Resource
from limpet.kubernetes.kinds.resources import (
    GROUP,
    NODE_PRESENCE,
    VERSION,
    ResourceError,
    document_object,
    node_object_names,
    read_document,
)

_log = structlog.get_logger("api server")

_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
_PATIENCE = 4
"""How often it is read and compared anew, when somebody else writes it too."""


class PresenceObject(Object, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    spec: dict[str, Any] | None = None
    document: dict[str, Any] | None = None
    record: dict[str, Any] | None = None
    """The controller's; a node leaves that of its presence as it is."""


PRESENCES = Resource(
    NODE_PRESENCE.object_kind, NODE_PRESENCE.plural, PresenceObject, GROUP, VERSION
)


class PresenceWriter:
    """Keeps the object as the node's newest presence is. For one event loop."""

    def __init__(self, membership: Membership, *, random: Callable[[], float]) -> None:
        self._membership = membership
        self._random = random
        self._wake = asyncio.Event()
        self._back = asyncio.Event()
        self._shown: Document | None = None
        """As the API server has it; None: that is to be found out."""
        self._name = ""
        """Name of the object that was written last."""
        self.refused = ""
        """Why it does not have the newest, in words."""

    def wake(self) -> None:
        self._wake.set()

    def hurry(self) -> None:
        """The API server is there again: a pause after it was not ends."""
        self._back.set()

    def compare(self, told: Mapping[str, Sealed | None], *, all_told: bool) -> None:
        """What objects carry now, by name; None: that one is gone. If ours is among them and not as
        it was written, or may be missing in what is all, it is looked at, and written again."""
        if self._shown is None:
            return
        if all_told or told.get(self._name, self._shown.sealed) != self._shown.sealed:
            self._shown = None
            self._wake.set()

    async def run(self, client: Client) -> None:
        """Until it is cancelled. Raises nothing that the API server or the way there did."""
        failures = 0
        self._shown = None
        while True:
            self._wake.clear()
            try:
                await self._write(client)
            except LimpetError as error:
                failures += 1
                if str(error) != self.refused:
                    _log.warning("this node's presence is not at the API server", error=str(error))
                self.refused = str(error)
                longest_s = min(_LONGEST_PAUSE_S, _SHORTEST_PAUSE_S * 2 ** min(failures, 10))
                # A wake-up does not hurry: what refuses is asked for each presence, not more often.
                self._back.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(longest_s * (1 + self._random()) / 2):
                        await self._back.wait()
                        failures = 0
            else:
                failures, self.refused = 0, ""
                await self._wake.wait()

    async def _write(self, client: Client) -> None:
        """Raises: LimpetError."""
        for _ in range(_PATIENCE):
            document = self._membership.replica.known.find(self._membership.introduction)
            own = self._membership.grant
            if document is None or own is None or self._membership.cloned:
                return
            if document == self._shown:
                return
            with contextlib.suppress(ObjectConflictError, ExistsError, NotFoundError):
                if await self._put(client, document, own.name):
                    self._shown = document
        if self._shown != self._membership.replica.known.find(self._membership.introduction):
            raise LimpetError(
                f"write {PRESENCES} of {self._membership.name_of(self._membership.uid)}: somebody "
                "else writes it at the same time, again and again (does another machine have this "
                "node's name?)"
            )

    async def _put(self, client: Client, document: Document, node: str) -> bool:
        """Whether it is there now. Raises: StatusError, LinkError."""
        for name in node_object_names(node, document.name):
            wanted = _object(document, name, node)
            self._name = name
            try:
                found = await client.get(PRESENCES, name)
            except NotFoundError:
                await client.create(PRESENCES, wanted)
                return True
            holder = document_of(found)
            if holder is not None and holder.sealed == document.sealed:
                return True
            if holder is not None and holder.name != document.name:
                if self._membership.is_member(holder.name):
                    continue  # another member has the name
            elif holder is not None and holder.version >= document.version:
                self._go_on_above(holder)
                return False
            metadata = found.metadata
            labels = {**(metadata.labels or {}), **(wanted.metadata.labels or {})}
            kept = msgspec.structs.replace(metadata, labels=labels)
            same_machine = (found.spec or {}).get("uid") == document.name
            record = found.record if same_machine else None
            await client.replace(
                PRESENCES, msgspec.structs.replace(wanted, metadata=kept, record=record)
            )
            return True
        raise LimpetError(
            f"write {PRESENCES} of {node}: other nodes have each name that it could have "
            "(limpet node list, where the controller runs)"
        )

    def _go_on_above(self, found: Document) -> None:
        """The API server has another presence of this node, which counts as much or more."""
        [outcome] = self._membership.offer([found.sealed], source=Source.CLOUD)
        if outcome is not Outcome.BAD:
            self._membership.jump_above(found.version)


def _object(document: Document, name: str, node: str) -> PresenceObject:
    return convert(document_object(document, name, node), PresenceObject)


def document_of(found: PresenceObject) -> Document | None:
    """None: it carries nothing that anybody could have signed."""
    try:
        return read_document(PRESENCE.name, msgspec.to_builtins(found))
    except ResourceError:
        return None
