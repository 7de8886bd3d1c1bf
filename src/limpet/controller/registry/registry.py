"""The one writer of the cluster's records: what is asked for meanwhile is written in one commit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import msgspec
import structlog

from limpet.base.decoding import decode_json
from limpet.base.errors import LimpetError, StorageError
from limpet.cluster.api import Code
from limpet.cluster.documents import Key
from limpet.cluster.keys import SealError
from limpet.cluster.kinds import KINDS
from limpet.cluster.seal import open_sealed
from limpet.controller.node_objects.node import NodeSource
from limpet.controller.registry.batch import Waiting, answer_each, fail, make_each
from limpet.controller.registry.each import write_each
from limpet.controller.registry.order import order
from limpet.controller.registry.reading import keep_known, read_all
from limpet.controller.registry.records import (
    COMMUNITY,
    CommunityRecord,
    DocumentRecord,
    record_types,
)
from limpet.controller.registry.refusal import RefusedError
from limpet.controller.registry.tables import Tables, is_under
from limpet.controller.store.interface import Change, ConflictError, Delete, Item, Store, StorePut

_log = structlog.get_logger("registry")
_AT_ONCE = 256
_ATTEMPTS = 4

T = TypeVar("T")


@dataclass(slots=True)
class _Others:
    """What others have written, as far as it is known."""

    heard: set[Key] = field(default_factory=set)
    """Items that are to be looked at."""
    found: set[Key] = field(default_factory=set)
    """Those that were others than here when all was read again."""
    is_stale: bool = False
    """All is to be read again."""
    gone: dict[Key, Any] = field(default_factory=dict)
    """Records that were taken away or put back by hand, or made nonsense of, and are not written
    again yet."""
    best: Tables | None = None
    """What was known when the store was found put back, until it is written."""
    is_put_right: bool = False
    """What was read was of before, and what is put into it was not written yet."""


class Registry:
    """Records in memory, in step with the store."""

    def __init__(
        self,
        store: Store,
        quarantine_s: float,
        source: NodeSource | None = None,
        loaded: Callable[[Tables], None] = lambda _: None,
    ) -> None:
        """`source`: where segments are from, None: the controller's space. `loaded`: called with
        records that were read; what it puts is written with the next commit."""
        self._store = store
        self._loaded = loaded
        self._new_tables = partial(Tables, quarantine_s, source)
        self._tables = self._new_tables()
        self._versions: dict[Key, str] = {}
        self._queue: asyncio.Queue[Waiting] = asyncio.Queue()
        self._writing: asyncio.Task[None] | None = None
        self._others = _Others()
        self.turn = 0
        """Another number when the records are others."""
        self.unreadable: dict[Key, str] = {}
        """Items that lie in the store as nobody can read them, and why; the last reading's."""
        self.trouble = ""
        """Why the last change could not be written; empty: it was."""
        self.highest_revision = 0

    async def start(self) -> None:
        """Reads the store. Raises: StorageError."""
        await self._load()
        self._writing = asyncio.create_task(self._write_all())

    async def stop(self) -> None:
        """What was asked for is written first."""
        if self._writing is None:
            return
        await self._queue.join()
        self._writing.cancel()
        await asyncio.wait((self._writing,))

    async def change(self, make: Callable[[Tables], T]) -> T:
        """What `make` returns, when all that it put is durable. It sees all changes before it.

        Raises: what `make` raises, and then nothing that it put counts; StorageError;
        RefusedError when another controller wrote at the same time.
        """
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((make, done))
        return await done

    def is_member(self, uid: str) -> bool:
        """Whether the cluster has granted it something, and has not removed it."""
        grant = self._tables.grants.get(uid)
        return grant is not None and not grant.tombstone

    def name_of(self, uid: str) -> str:
        """Name of the node, removed or not; empty: none has ever had that uid."""
        grant = self._tables.grants.get(uid)
        return "" if grant is None else grant.name

    # What others have written

    def has_written(self, kind: str, name: str, version: str) -> bool:
        """Whether the item is this version of it here, too."""
        return self._versions.get((kind, name)) == version

    async def hear(self, keys: Collection[Key]) -> None:
        """These items are not as this registry left them: what a node may write is taken if it is
        newer and signed, what only a controller may write or take away is written again, and what
        another controller wrote is read."""
        self._others.heard.update(keys)
        await self.change(lambda tables: None)

    async def read_again(self) -> None:
        """All items."""
        self._others.is_stale = True
        await self.change(lambda tables: None)

    def take_found(self) -> set[Key]:
        """Items that all of the store was read for again, and that were others than here."""
        found, self._others.found = self._others.found, set()
        return found

    async def _refresh(self) -> None:
        """Between commits, when no change of its own is under way. Raises: LimpetError."""
        if self._others.is_stale:
            await self._load()
            self._others.is_stale = False
            self._others.heard.clear()
        while self._others.heard:
            key = self._others.heard.pop()
            item = await self._store.get(*key)
            if item is None:
                self._note_gone(key)
            elif item.version != self._versions.get(key) and not self._take(key, item):
                _log.error("another controller wrote", kind=key[0], name=key[1])
                await self._load()

    def _note_gone(self, key: Key) -> None:
        kind, name = key
        if self._versions.pop(key, None) is None:
            return
        record = self._tables.record(kind, name)
        if kind == COMMUNITY or is_under(kind):
            self._tables.put(kind, name, None)
        else:
            _log.warning("taken away by hand, written again", kind=kind, name=name)
            self._others.gone[key] = record
            self._tables.put(kind, name, record)

    def _take(self, key: Key, item: Item) -> bool:
        """False: another controller has written it."""
        kind, name = key
        record = self._tables.record(kind, name)
        self._versions[key] = item.version
        if self._tables.is_under_removed(kind, name):
            self._tables.put(kind, name, None)
            return True
        if record is not None and item.value == msgspec.json.encode(record):
            return True  # its status, or a label
        if kind == COMMUNITY:
            self._tables.load(kind, name, item.value, CommunityRecord)
            self.turn += 1
            return True
        if KINDS.get(kind) is None:
            return False
        if not is_under(kind):
            return self._take_signed(key, item, record)
        try:
            sealed = decode_json(item.value, DocumentRecord).sealed
            document = open_sealed(sealed, self._tables)
        except (msgspec.MsgspecError, SealError) as error:
            _log.warning("not taken", kind=kind, name=name, error=str(error))
            if record is not None:
                self._tables.put(kind, name, record)
            return True
        if document.is_newer(self._tables.find(key)):
            self._tables.load(kind, name, item.value, record_types()[kind])
            self.turn += 1
        elif record is not None:
            self._tables.put(kind, name, record)
        return True

    def _take_signed(self, key: Key, item: Item, record: Any) -> bool:
        """Takes what only a controller signs. False: another one has; else it is an old one, or
        nobody signed it, and what is known is written again."""
        try:
            sealed = decode_json(item.value, DocumentRecord).sealed
            if record is None or open_sealed(sealed, self._tables).is_newer(self._tables.find(key)):
                return False
            is_same = sealed == record.sealed
        except (msgspec.MsgspecError, SealError):
            is_same = False
        if is_same or record is None:
            return False
        _log.warning("put back by hand, written again", kind=key[0], name=key[1])
        self._others.gone[key] = record
        self._tables.put(*key, record)
        return True

    # Reading and writing

    async def _load(self) -> None:
        """Raises: StorageError where the cluster's secrets cannot be read; all else can be made
        again, or comes from the nodes."""
        tables = self._new_tables()
        versions, unreadable = await read_all(self._store, tables)
        # What was not written is forgotten first: a store that lacks it was not put back.
        self._tables.undo(0)
        before = self._others.best or self._tables
        is_behind = keep_known(before, tables, unreadable, self._others.gone)
        self._others.best = before if is_behind else None
        self.unreadable = unreadable
        existed, epoch = tables.exists, tables.state.epoch if tables.has_state else -1
        self._loaded(tables)
        is_begun = tables.has_state and tables.state.epoch != epoch
        self._others.is_put_right = is_behind or (existed and is_begun)
        if before.exists:
            keys = versions.keys() | self._versions.keys()
            self._others.found |= {
                key for key in keys if versions.get(key) != self._versions.get(key)
            }
        self._tables, self._versions = tables, versions
        self._note_revision()
        self.turn += 1

    def _note_revision(self) -> None:
        if self._tables.has_state:
            self.highest_revision = max(self.highest_revision, self._tables.state.revision)

    async def _write_all(self) -> None:
        while True:
            batch = [await self._queue.get()]
            while len(batch) < _AT_ONCE and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            await self._refresh_if_possible()
            await self._write(batch)
            for _ in batch:
                self._queue.task_done()

    async def _refresh_if_possible(self) -> None:
        try:
            await self._refresh()
        except Exception as error:  # noqa: BLE001 - as of what is asked: no later one waits for ever
            is_ours = isinstance(error, LimpetError)
            _log.error("not read", error=str(error), exc_info=not is_ours)
            self._others.is_stale = True

    async def _write(self, batch: Sequence[Waiting]) -> None:
        """Where another wrote meanwhile (a former leader, or this process with an answer that was
        lost), all is read and what was asked for is made again of that; so is what saw something
        that was not written then."""
        lost: dict[Key, Exception] = {}
        for _ in range(_ATTEMPTS):
            position = self._tables.position  # before it is what others made necessary
            made = make_each(self._tables, batch, lost)
            changed = list(self._tables.changed())
            failed: dict[Key, Exception] = {}
            try:
                if changed:
                    failed = await self._commit(changed)
            except ConflictError as error:
                _log.error("another controller wrote", error=str(error))
                await self._reload(position)
                batch = [each.waiting for each in made if not each.waiting[1].done()]
            except Exception as error:  # noqa: BLE001 - each asker is told; no later one waits for ever
                self.trouble = str(error)
                if isinstance(error, StorageError):
                    _log.error("not written", error=str(error))
                    self._tables.undo(position)
                else:
                    _log.error("not written", exc_info=True)
                    await self._reload(position)
                for each in made:
                    fail(each.waiting[1], error)
                return
            else:
                self._note_failed(failed)
                batch = answer_each(self._tables, made, failed)
                lost.update(failed)
                if not batch:
                    return
        refused = RefusedError(
            Code.TRY_AGAIN, "another controller writes at the same time: ask again"
        )
        for _, done in batch:
            fail(done, refused)

    def _note_failed(self, failed: dict[Key, Exception]) -> None:
        """`failed`: of what nodes write too, and why."""
        for key, error in failed.items():
            self._others.heard.add(key)
            self._versions[key] = ""  # whatever it is now
            _log.warning("not written", kind=key[0], name=key[1], error=str(error))

    async def _reload(self, position: int) -> None:
        self._tables.undo(position)
        try:
            await self._load()
        except Exception as error:  # noqa: BLE001 - what is known may still be right
            _log.error("not read", error=str(error), exc_info=not isinstance(error, LimpetError))

    async def _commit(self, changed: list[tuple[str, str, Any]]) -> dict[Key, Exception]:
        """What was not written, and why: of what nodes write too, each is written by itself."""
        place = partial(order, state_last=self._others.is_put_right)
        changes = [
            change
            for kind, name, record in sorted(changed, key=place)
            if (change := self._change(kind, name, record)) is not None
        ]
        ours = [each for each in changes if not is_under(each.kind)]
        if ours:
            for change, version in zip(ours, await self._store.write(ours), strict=True):
                self._note_written(change, version)
        theirs = [each for each in changes if is_under(each.kind)]
        failed: dict[Key, Exception] = {}
        for change, outcome in zip(theirs, await write_each(self._store, theirs), strict=True):
            if isinstance(outcome, str):
                self._note_written(change, outcome)
            else:
                failed[change.kind, change.name] = outcome
        self._tables.commit(but=failed)
        # That another wrote is no trouble, nor does it say that the store takes anything.
        troubles = [each for each in failed.values() if not isinstance(each, RefusedError)]
        if troubles or len(changes) > len(failed):
            self.trouble = str(troubles[0]) if troubles else ""
        self._others.is_put_right, self._others.best = False, None
        self._others.gone.clear()
        self._note_revision()
        self.turn += 1
        return failed

    def _note_written(self, change: Change, version: str) -> None:
        key = (change.kind, change.name)
        if isinstance(change, Delete):
            del self._versions[key]
        else:
            self._versions[key] = version
        self.unreadable.pop(key, None)

    def _change(self, kind: str, name: str, record: Any) -> Change | None:
        version = self._versions.get((kind, name))
        if record is None:
            return Delete(kind, name, version) if version is not None else None
        return StorePut(kind, name, msgspec.json.encode(record), version)
