"""What happens to the objects of one kind: listed once, then watched, the last events kept.

Watchers of the store read from here, so the API server has one watch for each kind, however many
agents there are.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import msgspec
import structlog

from limpet.base import faults
from limpet.base.decoding import convert, decode_json
from limpet.base.errors import LimpetError
from limpet.controller.store.interface import Deleted, Item, TooOldError
from limpet.controller.store.kubernetes.crowd import Crowd
from limpet.controller.store.kubernetes.items import ItemObject, ObjectPlace, Row
from limpet.kubernetes.client import Client
from limpet.kubernetes.errors import FutureVersionError, GoneError
from limpet.kubernetes.kinds.objects import Status
from limpet.kubernetes.kinds.resources import ResourceError
from limpet.kubernetes.lists import PageOfList, Selection

_log = structlog.get_logger("store")
_WATCH_S, _SILENCE_S = 300.0, 150.0
"""An API server sends a bookmark about once a minute."""
_BACK_S = 3.0
"""Length of a watch that reaches back: 2 s before its end the API server sends a bookmark."""
_AGAIN_S = (0.2, 10.0)
_GONE_S = 15.0
"""Time that the API server has to tell a deletion that it has answered."""


class _Event(msgspec.Struct, frozen=True):
    type: str
    object: Any = None


@dataclass(slots=True)
class _Told:
    """One object, as it was told to watchers."""

    name: str
    """Name of the item."""
    generation: int
    digest: bytes


@dataclass(slots=True)
class _Ring:
    """The last events, each with the resource version of its change."""

    base: int
    """Everything after this version is here."""
    position: int
    """Everything up to this version was told."""
    events: deque[tuple[int, Item | Deleted]] = field(default_factory=deque)


def version_of(found: ItemObject) -> str:
    """The item's version: of which object, how often changed, and when."""
    metadata = found.metadata
    return f"{metadata.uid}.{metadata.generation}-{metadata.resource_version}"


def change_of(found: ItemObject) -> tuple[str, int | str]:
    """What differs when the item has changed; a status or a label does not count where the object
    has a generation."""
    metadata = found.metadata
    return metadata.uid, metadata.generation or metadata.resource_version


@dataclass(frozen=True, slots=True)
class ItemSource:
    """The objects of one kind of items, at one API server."""

    client: Client
    kind: str
    row: Row
    namespace: str

    @property
    def selection(self) -> Selection:
        namespace = self.namespace if self.row.resource.namespaced else ""
        return Selection(namespace=namespace, labels=self.row.labels)

    def pages(self) -> AsyncGenerator[PageOfList[ItemObject], None]:
        return self.client.pages(self.row.resource, selection=self.selection)

    async def first_page(self) -> PageOfList[ItemObject]:
        """A list's version, with one item at most; the rest of it is not asked for."""
        return await self.client.list_page(self.row.resource, selection=self.selection, limit=1)

    def watch(self, since: int, for_s: float) -> AsyncGenerator[list[bytes], None]:
        return self.client.watch(
            self.row.resource,
            str(since),
            selection=self.selection,
            for_s=for_s,
            silence_s=_SILENCE_S,
        )


class Follower:
    """Follows one kind, for one store."""

    def __init__(self, source: ItemSource, kept: int) -> None:
        self.source = source
        self._kept = kept
        self._ring: _Ring | None = None
        self._told: dict[str, _Told] = {}
        self._crowd = Crowd(source.row)
        self._places: dict[str, ObjectPlace] = {}
        self._written = 0
        self._listed = False
        self._reaching_back = asyncio.Lock()
        self._changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._follow())
        self.life = 0
        """Another number: what was told before is of another history (etcd was restored)."""

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait((self._task,))
        self._wake()

    # What is known

    def place(self, name: str) -> ObjectPlace | None:
        """Where the item was last seen."""
        return self._places.get(name)

    def note(self, name: str, found: ItemObject) -> None:
        """This store has written it."""
        self._places[name] = self.source.row.place(found)
        self._written = max(self._written, int(found.metadata.resource_version))

    @property
    def changed(self) -> asyncio.Future[None]:
        """Done when there is something new."""
        return self._changed

    async def ready(self) -> int:
        """Up to where all is told, with everything that this store has written."""
        while self._ring is None or self._ring.position < self._written:
            await asyncio.wait((self._changed,))
        return self._ring.position

    async def gone(self, uid: str) -> str:
        """The version of the deletion of the object, once the API server has told it."""
        life, end_s = self.life, asyncio.get_running_loop().time() + _GONE_S
        while self.life == life and (left_s := end_s - asyncio.get_running_loop().time()) > 0:
            if self._ring is not None:
                for _, event in reversed(self._ring.events):
                    if isinstance(event, Deleted) and event.version.startswith(f"{uid}."):
                        return event.version
            await asyncio.wait((self._changed,), timeout=left_s)
        return f"{uid}.0-{self.position}"  # it is gone, and perhaps nobody tells it any more

    def since(self, position: int) -> list[Item | Deleted]:
        """Raises: TooOldError."""
        ring = self._ring
        assert ring is not None
        if position < ring.base:
            raise TooOldError(f"watch {self.source.kind} from {position}: that is no longer known")
        newest_first = []
        for version, event in reversed(ring.events):
            if version <= position:
                break
            newest_first.append(event)
        return newest_first[::-1]

    @property
    def position(self) -> int:
        return self._ring.position if self._ring is not None else 0

    async def reach_back(self, since: int) -> None:
        """Learns what has happened from there until it began. Raises: TooOldError, LimpetError."""
        async with self._reaching_back:
            await self.ready()
            ring = self._ring
            assert ring is not None
            if since >= ring.base:
                return
            events = await self._between(since, ring.base)
            if ring is not self._ring or len(ring.events) + len(events) > self._kept:
                raise TooOldError(
                    f"watch {self.source.kind} from {since}: too much has happened since"
                )
            ring.events.extendleft(reversed(events))
            ring.base = since

    async def _between(self, since: int, until: int) -> list[tuple[int, Item | Deleted]]:
        events: list[tuple[int, Item | Deleted]] = []
        try:
            lines_of = self.source.watch(since, _BACK_S)
            async with aclosing(lines_of):
                async for lines in lines_of:
                    for line in lines:
                        kind, version, found = read_line(line)
                        if kind != "BOOKMARK" and version <= until:
                            if (event := self._event(kind, found)) is not None:
                                events.append((version, event))
                            if len(events) > self._kept:
                                return events
                        if version >= until:
                            return events
        except (GoneError, FutureVersionError) as error:
            raise TooOldError(f"watch {self.source.kind} from {since}: {error}") from error
        raise TooOldError(f"watch {self.source.kind} from {since}: the API server did not tell all")

    # Following

    async def _follow(self) -> None:
        again_s = _AGAIN_S[0]
        while True:
            try:
                if not self._listed:
                    await self._list()
                await self._watch()
                again_s = _AGAIN_S[0]
                continue
            except (GoneError, FutureVersionError):
                self._listed = False
            except LimpetError as error:
                # Not watched from where it was: etcd may be put back while nobody is connected, and
                # have come up to that version again with other changes.
                self._listed = False
                _log.warning(
                    "not watched", kind=self.source.kind, error=str(error), again_s=again_s
                )
            except Exception as error:  # noqa: BLE001 - who waits for this kind waits for no other
                self._listed = False
                faults.note(f"watching {self.source.kind}", error)
            await asyncio.sleep(again_s)
            again_s = min(2 * again_s, _AGAIN_S[1])

    async def _list(self) -> None:
        """What differs from what was told is told.

        A list is as of after all that was written before it was asked for; where it is older, it
        is of another history (etcd was put back), and what was written before does not count.
        """
        known = max(self._written, self.position)
        found: list[ItemObject] = []
        crowd = Crowd(self.source.row)
        at = 0
        pages = self.source.pages()
        async with aclosing(pages):
            async for page in pages:
                at = at or _version(page.resource_version)
                found += filter(crowd.admits, page.items)
        self._crowd = crowd
        ring = self._ring
        if at < known:
            self._written = 0
        if ring is None or at < known:
            self._told.clear()
            self.life += 1
            for each in found:
                self._note(each)
            self._ring = _Ring(at, at)
        else:
            present = {each.metadata.uid for each in found}
            events: list[tuple[int, Item | Deleted]] = [
                (at, self._gone(uid, at)) for uid in list(self._told) if uid not in present
            ]
            for each in found:
                at_version = _version(each.metadata.resource_version)
                events += [(at_version, event) for event in self._events_if_new("ADDED", each)]
            self._take(sorted(events, key=lambda each: each[0]), at)
        self._listed = True
        self._wake()

    async def _watch(self) -> None:
        assert self._ring is not None
        parts = self.source.watch(self._ring.position, _WATCH_S)
        async with aclosing(parts):
            async for lines in parts:
                for line in lines:
                    kind, version, found = read_line(line)
                    if version < self._ring.position:
                        raise LimpetError(f"watch: version {version} after {self._ring.position}")
                    events = [] if kind == "BOOKMARK" else self._events_if_new(kind, found)
                    self._take([(version, event) for event in events], version)
                self._wake()

    def _take(self, events: list[tuple[int, Item | Deleted]], position: int) -> None:
        ring = self._ring
        assert ring is not None
        ring.events.extend(events)
        ring.position = max(ring.position, position)
        while len(ring.events) > self._kept:
            ring.base = ring.events.popleft()[0]

    def _events_if_new(self, kind: str, found: ItemObject) -> list[Item | Deleted]:
        """None: the item is as it was told. An object that holds another item now: two."""
        if kind != "DELETED" and not self._crowd.admits(found):
            _log.warning(
                "an object is not kept: its node has too many, or all have",
                by_others=True, kind=self.source.kind, name=found.metadata.name,
            )  # fmt: skip
            return []
        before = self._told.get(found.metadata.uid)
        event = self._event(kind, found)
        if kind == "DELETED":
            self._told.pop(found.metadata.uid, None)
            self._crowd.forget(found.metadata.uid)
            if event is not None and self._place_of(event.name) == found.metadata.name:
                self._places.pop(event.name, None)
            return [] if event is None else [event]
        after = self._note(found)
        if event is None or (before is not None and before == after):
            return []
        if before is None or before.name == event.name:
            return [event]
        if self._place_of(before.name) == found.metadata.name:
            self._places.pop(before.name, None)
        return [Deleted(self.source.kind, before.name, version_of(found)), event]

    def _place_of(self, name: str) -> str:
        place = self._places.get(name)
        return place.object_name if place is not None else ""

    def _event(self, kind: str, found: ItemObject) -> Item | Deleted | None:
        """None: the object is none of ours, which is logged."""
        try:
            name, value = self.source.row.decode(found)
        except ResourceError as error:
            told = self._told.get(found.metadata.uid)
            if told is not None and (kind == "DELETED" or not self.source.row.is_others_too):
                # What was made nonsense of is as if it were taken away: it is written again.
                return Deleted(self.source.kind, told.name, version_of(found))
            _log.error("passed over", error=str(error))
            return None
        if kind == "DELETED":
            return Deleted(self.source.kind, name, version_of(found))
        return Item(self.source.kind, name, value, version_of(found))

    def _note(self, found: ItemObject) -> _Told | None:
        try:
            name, value = self.source.row.decode(found)
        except ResourceError:
            return None
        told = _Told(name, found.metadata.generation, hashlib.sha256(value).digest())
        self._told[found.metadata.uid] = told
        self._places[name] = self.source.row.place(found)
        return told

    def _gone(self, uid: str, at: int) -> Deleted:
        told = self._told.pop(uid)
        self._places.pop(told.name, None)
        return Deleted(self.source.kind, told.name, f"{uid}.{told.generation}-{at}")

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.get_running_loop().create_future()
        changed.set_result(None)


def read_line(line: bytes) -> tuple[str, int, ItemObject]:
    """What became of an object, by which version, and the object.

    Raises: GoneError and others for an error in the midst of a watch, LimpetError for a line that
    no API server writes (a proxy between has).
    """
    try:
        event = decode_json(line, _Event)
        if event.type != "ERROR":
            found = convert(event.object, ItemObject)
            return event.type, _version(found.metadata.resource_version), found
    except ValueError as error:
        raise LimpetError(f"watch: a line that is no event: {error}") from error
    code = event.object.get("code") if isinstance(event.object, dict) else None
    message = event.object.get("message", "") if isinstance(event.object, dict) else ""
    if code in (410, 504):
        raise GoneError(f"watch: {message}", Status(code=code))
    raise LimpetError(f"watch: {message}")


def _version(said: str) -> int:
    """Raises: LimpetError."""
    try:
        return int(said)
    except ValueError as error:
        raise LimpetError(f"resourceVersion {said!r}: no number") from error
