"""The store at a Kubernetes API server: every item is an object there, every change by itself.

A change is compare-and-swap by what the object was when it was read, so two controllers that both
take themselves for the leader spoil nothing: of two changes of one item one is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import aclosing
from itertools import groupby

import structlog

from limpet.base.errors import StorageError
from limpet.controller.registry.records import AUTHORITY, COMMUNITY, NODE, PRESENCE
from limpet.controller.store.interface import (
    Change,
    ConflictError,
    Delete,
    Event,
    Item,
    Listing,
    StorePut,
)
from limpet.controller.store.kubernetes.crowd import Crowd
from limpet.controller.store.kubernetes.follower import change_of, version_of
from limpet.controller.store.kubernetes.items import (
    ItemObject,
    ObjectPlace,
    Row,
    label_of,
    operations,
)
from limpet.controller.store.kubernetes.rows import row_of
from limpet.controller.store.kubernetes.watches import Watches
from limpet.controller.store.kubernetes.words import told
from limpet.kubernetes.client import Client
from limpet.kubernetes.errors import ExistsError, GoneError, NotFoundError, StatusError
from limpet.kubernetes.errors import ObjectConflictError as ObjectConflictError
from limpet.kubernetes.kinds.resources import ResourceError, read_document
from limpet.kubernetes.lists import Selection

_log = structlog.get_logger("store")
KEPT_EVENTS = 4_096
"""Events of each kind kept for watchers; who is further behind lists anew."""
_AT_ONCE = 16
"""New items of one kind that are written at the same time."""
_ATTEMPTS = 5
_OF_PEOPLE = (COMMUNITY, AUTHORITY)
"""Kinds whose object is never thrown away: nobody has it a second time."""


class KubernetesStore:
    """For one event loop, and one client that others may use too."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        *,
        kept_events: int = KEPT_EVENTS,
        may_write: Callable[[], None] = lambda: None,
    ) -> None:
        """`namespace`: of Secrets and ConfigMaps. `may_write` raises when nothing may be written;
        it is asked before each change."""
        self._client = client
        self._namespace = namespace
        self._may_write = may_write
        self._watches = Watches(client, namespace, kept_events)
        self._closed = False
        self._grant_objects: dict[str, str] = {}
        """Names of the objects of grants, by uid, as they were listed last."""

    async def close(self) -> None:
        self._closed = True
        await self._watches.close()

    # Reading

    async def get(self, kind: str, name: str) -> Item | None:
        row = row_of(kind)
        with told(f"read {kind}", name):
            found = await self._find(kind, name, row)
            return None if found is None else Item(kind, *row.decode(found), version_of(found))

    async def listing(self, kind: str) -> Listing:
        row = row_of(kind)
        with told("list", kind):
            for _ in range(_ATTEMPTS):
                try:
                    unreadable: list[tuple[str, str]] = []
                    found, version = await self._list(row, unreadable=unreadable)
                    break
                except GoneError:
                    continue  # it took too long from one page to the next
            else:
                raise StorageError("list", kind, "it changes faster than it can be read")
            items: dict[str, tuple[Item, ItemObject]] = {}
            for each in found:
                try:
                    name, value = row.decode(each)
                except ResourceError as error:
                    unreadable.append((row.guess(each), str(error)))
                    continue
                before = items.get(name)
                if before is None or self._rank(row, name, each) > self._rank(row, name, before[1]):
                    items[name] = (Item(kind, name, value, version_of(each)), each)
        if kind == NODE:
            self._grant_objects = {uid: each.metadata.name for uid, (_, each) in items.items()}
        for _, why in unreadable:
            _log.error("passed over", error=why)
        return Listing(
            tuple(items[name][0] for name in sorted(items)), f"0-{version}", tuple(unreadable)
        )

    async def _list(
        self, row: Row, labels: str = "", unreadable: list[tuple[str, str]] | None = None
    ) -> tuple[list[ItemObject], str]:
        """Objects, and the version to watch from. `unreadable`: takes up what are no objects."""
        found: list[ItemObject] = []
        crowd = Crowd(row)
        version = ""
        selection = Selection(namespace=self._space(row), labels=labels or row.labels)
        pages = self._client.pages(row.resource, selection=selection, limit=500)
        async with aclosing(pages):
            async for page in pages:
                version = version or page.resource_version
                for bad in page.unreadable:
                    if unreadable is not None:
                        unreadable.append(("", f"read {row.resource} {bad.name}: {bad.cause}"))
                found += filter(crowd.admits, page.items)
        return found, version

    def _grant_object(self, uid: str) -> str:
        """Name of the object of the node's grant, which its presence has too; empty: not known."""
        place = self._watches.follower(NODE).place(uid)
        return place.object_name if place is not None else self._grant_objects.get(uid, "")

    def _rank(self, row: Row, name: str, found: ItemObject) -> tuple[int, ...]:
        """First what nobody but the node itself and a controller can have written."""
        is_its_own = row.is_others_too and found.metadata.name == self._grant_object(name)
        return (int(is_its_own), *row.rank(found))

    async def _find(self, kind: str, name: str, row: Row) -> ItemObject | None:
        """The item's object as of now; what nobody can read is as if it were not there.

        Raises: LimpetError.
        """
        labels = label_of(kind, name)
        if not labels:
            found = await self._object(row, row.places(name, b"")[0].object_name)
            return found if found is not None and _is_of(row, found, name) else None
        place = self._watches.follower(kind).place(name)
        object_name = (self._grant_object(name) if kind == PRESENCE else "") or (
            place.object_name if place is not None else ""
        )
        if object_name:
            found = await self._object(row, object_name)
            if found is not None and _is_of(row, found, name):
                return found
        several, _ = await self._list(row, labels)
        of_name = [each for each in several if _is_of(row, each, name)]
        return max(of_name, key=lambda each: self._rank(row, name, each), default=None)

    async def _object(self, row: Row, object_name: str) -> ItemObject | None:
        try:
            return await self._client.get(row.resource, object_name, namespace=self._space(row))
        except NotFoundError:
            return None

    def _space(self, row: Row) -> str:
        return self._namespace if row.resource.namespaced else ""

    # Writing

    async def write(self, changes: Sequence[Change]) -> list[str]:
        if self._closed:
            raise StorageError("write", "the API server's objects", "the store is closed")
        versions: list[str] = []
        for (_, is_new), group in groupby(changes, key=_group):
            batch = list(group)
            # What is new of one kind stands by itself: any part of it is a safe beginning.
            size = _AT_ONCE if is_new else 1
            for start in range(0, len(batch), size):
                versions += await self._write_at_once(batch[start : start + size])
        return versions

    async def _write_at_once(self, changes: Sequence[Change]) -> list[str]:
        if len(changes) == 1:
            return [await self._change(changes[0])]
        outcomes = await asyncio.gather(*map(self._change, changes), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return [outcome for outcome in outcomes if isinstance(outcome, str)]

    async def _change(self, change: Change) -> str:
        """Raises: ConflictError, StorageError."""
        self._may_write()
        row = row_of(change.kind)
        with told(f"write {change.kind}", change.name):
            if isinstance(change, Delete):
                return await self._delete(change, row)
            if change.version is None:
                return await self._create(change, row)
            return await self._replace(change, row)

    async def _create(self, change: StorePut, row: Row) -> str:
        places = row.places(change.name, change.value) or await self._place_of_grant(change.name)
        for place in places:
            for _ in range(_ATTEMPTS):
                item = row.encode(change.name, change.value, place)
                try:
                    made = await self._client.create(row.resource, item, namespace=self._space(row))
                    return self._wrote(change, made)
                except ExistsError:
                    there = await self._object(row, place.object_name)
                if there is not None and not await self._make_room(change, row, there):
                    break  # another machine has the name: the next one
        raise ConflictError(change.kind, change.name, "another object has its name")

    async def _make_room(self, change: StorePut, row: Row, there: ItemObject) -> bool:
        """Moves a removed node's grant out of the way, and what nobody can read. False: another
        item stays there.

        Raises: ConflictError where the item itself is there.
        """
        try:
            name, _ = row.decode(there)
        except ResourceError as error:
            if change.kind in _OF_PEOPLE:
                raise ConflictError(change.kind, change.name, str(error)) from error
            _log.error("written over", error=str(error))
            await self._take_away(row, there)
            return True
        if name == change.name:
            key, _, label = row.labels.partition("=")
            if change.kind in _OF_PEOPLE or (there.metadata.labels or {}).get(key, "") == label:
                raise ConflictError(change.kind, name, "it is there already")
            await self._take_away(row, there)  # without its label nobody finds it
            return True
        if change.kind == PRESENCE:
            await self._take_away(row, there)  # another's, where only this one's grant is
            return True
        if change.kind != NODE or not read_document(NODE, there.builtins).tombstone:
            return False
        _, value = row.decode(there)
        # First the copy, then away with it here: a tombstone is never not there.
        for place in row.places(name, value)[1:]:
            with contextlib.suppress(ExistsError):
                copy = row.encode(name, value, place)
                await self._client.create(row.resource, copy, namespace=self._space(row))
            await self._take_away(row, there)
            return True
        return False

    async def _take_away(self, row: Row, there: ItemObject) -> None:
        """If it is still as it was read."""
        metadata = there.metadata
        with contextlib.suppress(NotFoundError, ObjectConflictError):
            await self._client.delete(
                row.resource,
                metadata.name,
                namespace=self._space(row),
                uid=metadata.uid,
                resource_version=metadata.resource_version,
            )

    async def _place_of_grant(self, uid: str) -> tuple[ObjectPlace, ...]:
        """A presence is named as the grant of its node. Raises: StorageError."""
        place = self._watches.follower(NODE).place(uid)
        if place is None:
            row = row_of(NODE)
            found = await self._find(NODE, uid, row)
            if found is None:
                raise StorageError("write presence", uid, "there is no NodeGrant of its node")
            place = row.place(found)
        return (place,)

    async def _replace(self, change: StorePut, row: Row) -> str:
        assert change.version is not None
        there, tests = await self._expected(change.kind, change.name, change.version, row)
        item = row.encode(change.name, change.value, row.place(there))
        try:
            made = await self._client.patch(
                row.resource,
                there.metadata.name,
                [*tests, *operations(item, row.fields)],
                namespace=self._space(row),
            )
        except StatusError as error:
            await self._check_conflict(change, row, there, error)
            raise
        return self._wrote(change, made)

    async def _delete(self, change: Delete, row: Row) -> str:
        follower = self._watches.follower(change.kind)
        await follower.ready()
        there, _ = await self._expected(change.kind, change.name, change.version, row)
        uid = there.metadata.uid
        for _ in range(_ATTEMPTS):
            try:
                await self._client.delete(
                    row.resource,
                    there.metadata.name,
                    namespace=self._space(row),
                    uid=uid,
                    resource_version=there.metadata.resource_version,
                )
                return await follower.gone(uid)
            except StatusError as error:
                there = await self._check_conflict(change, row, there, error)
        raise ConflictError(change.kind, change.name, "it was changed by another")

    async def _expected(
        self, kind: str, name: str, version: str, row: Row
    ) -> tuple[ItemObject, list[dict[str, object]]]:
        """The object as the change expects it, and what the API server has to test.

        Raises: ConflictError.
        """
        found = await self._find(kind, name, row)
        if found is None:
            raise ConflictError(kind, name, "it is gone")
        seen, _, at = version.rpartition("-")
        metadata = found.metadata
        same = version_of(found).rpartition("-")[0] == seen
        if not same or not (metadata.generation or metadata.resource_version == at):
            raise ConflictError(kind, name, "it was changed by another")
        tests: list[dict[str, object]] = [
            {"op": "test", "path": "/metadata/uid", "value": metadata.uid}
        ]
        if metadata.generation:
            at_path, value = "/metadata/generation", metadata.generation
            tests.append({"op": "test", "path": at_path, "value": value})
        else:
            value_at = metadata.resource_version
            tests.append({"op": "test", "path": "/metadata/resourceVersion", "value": value_at})
        return found, tests

    async def _check_conflict(
        self, change: Change, row: Row, before: ItemObject, error: StatusError
    ) -> ItemObject:
        """The object as it is now, if the item has not changed. Raises: ConflictError, `error`."""
        if not isinstance(error, NotFoundError | ObjectConflictError) and error.status.code != 422:
            raise error
        now = await self._object(row, before.metadata.name)
        if now is None:
            raise ConflictError(change.kind, change.name, "it is gone") from error
        if change_of(now) != change_of(before):
            raise ConflictError(change.kind, change.name, "it was changed by another") from error
        return now

    def _wrote(self, change: StorePut, made: ItemObject) -> str:
        self._watches.note(change.kind, change.name, made)
        return version_of(made)

    # Watching

    async def mark(self, kinds: Collection[str]) -> str:
        return await self._watches.mark(kinds)

    def watch(self, kinds: Collection[str], since: str) -> AsyncGenerator[Event, None]:
        return self._watches.watch(kinds, since)


def _is_of(row: Row, found: ItemObject, name: str) -> bool:
    """Whether the object holds the item of this name."""
    try:
        return row.decode(found)[0] == name
    except ResourceError:
        return False


def _group(change: Change) -> tuple[str, bool]:
    return change.kind, isinstance(change, StorePut) and change.version is None
