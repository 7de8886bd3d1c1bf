"""Addresses of pods, as the nodes report them: in the store, and not in memory."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar
from weakref import WeakValueDictionary

import msgspec
import structlog
from msgspec.structs import replace as replace_fields

from limpet.base.decoding import decode_json
from limpet.cluster.api import Code, PodPage, PodReport
from limpet.controller.registry.records import (
    REPORT,
    REPORT_PART,
    PartMark,
    ReportPart,
    ReportRecord,
)
from limpet.controller.registry.refusal import RefusedError
from limpet.controller.state.report_parts import (
    Merged,
    Pods,
    check_report,
    merge_report,
    stale,
    touched_parts,
)
from limpet.controller.store.interface import Change, ConflictError, Delete, Item, Store, StorePut

_ATTEMPTS = 5
_log = structlog.get_logger("reports")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ReportedByNode:
    """All that a node has reported."""

    sequence: int
    at_s: float
    pods: Pods


class NodeReports:
    """For one event loop.

    What cannot be decoded (edited by hand, or of a later version) counts as never reported: it is
    told once, and the node is asked for all of its pods again.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._hear: list[Callable[[str], None]] = []
        self._busy: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._times: dict[str, float | None] = {}
        """When each node reported last, of those that were asked for or have reported; None: never.
        A record has a node's pods beside it, up to a mebibyte, so each is read for that once."""
        self._reading = asyncio.Lock()
        self._whole: dict[str, str] = {}
        """Versions of the records, by uid, of which this process knows that no part was written
        for a report after it, which never was: another controller may have ended amid that."""
        self._damaged: set[str] = set()
        """Uids whose report, or a part of it, cannot be decoded, which was told."""

    def subscribe(self, hear: Callable[[str], None]) -> None:
        """`hear`: told the uid of a node that has reported, or whose report is gone."""
        self._hear.append(hear)

    def _tell(self, uid: str) -> None:
        for hear in self._hear:
            hear(uid)

    async def put(
        self, uid: str, report: PodReport, now_s: float, afford: Callable[[int], None]
    ) -> int:
        """The sequence that counts now.

        `afford`: raises RefusedError where the node may not have so many bytes written now.
        Raises: RefusedError, StorageError.
        """
        lock = self._busy.setdefault(uid, asyncio.Lock())
        async with lock:
            for _ in range(_ATTEMPTS):
                try:
                    sequence = await self._put(uid, report, now_s, afford)
                except ConflictError:
                    continue
                self._tell(uid)
                return sequence
        raise RefusedError(Code.TRY_AGAIN, "two reports of this node at once")

    async def _put(
        self, uid: str, report: PodReport, now_s: float, afford: Callable[[int], None]
    ) -> int:
        """Raises: ConflictError, RefusedError, StorageError."""
        item = await self._store.get(REPORT, uid)
        known = self._record(uid, item)
        checked = check_report(known, report)
        if checked is None:
            return report.sequence
        touched: dict[int, Pods] = {}
        if known is not None and checked.base is not None:
            wanted = touched_parts(known, checked)
            is_whole = item is not None and self._whole.get(uid) == item.version
            for part in range(len(known.parts)) if not is_whole else wanted:
                pods = await self._pods_of(uid, known, part)
                if pods is None:
                    raise stale(report, None)
                if part in wanted:
                    touched[part] = pods
        merged = merge_report(known, touched, checked, now_s, _number)
        afford(merged.size_bytes)
        self._whole.pop(uid, None)
        is_damaged = item is not None and known is None
        stray = await self._parts_from(uid, len(merged.record.parts)) if is_damaged else []
        self._whole[uid] = await self._write(uid, merged, item, stray)
        self._damaged.discard(uid)
        self._times[uid] = now_s
        return merged.record.sequence

    async def _write(
        self, uid: str, merged: Merged, item: Item | None, stray: Iterable[str]
    ) -> str:
        """The version of the record. It goes after the parts that it names: where a store stops
        amid this, what it holds is not what the record says, and all is asked for again.

        `stray`: names of parts that no record tells of, which are deleted.
        """
        changes: list[Change] = []
        for part, value in merged.parts.items():
            name = _name(uid, part)
            before = await self._store.get(REPORT_PART, name)
            version = before.version if before else None
            changes.append(StorePut(REPORT_PART, name, msgspec.json.encode(value), version))
        at = len(changes)
        encoded = msgspec.json.encode(merged.record)
        changes.append(StorePut(REPORT, uid, encoded, item.version if item else None))
        gone = [_name(uid, part) for part in merged.gone]
        changes += await self._deletions([*gone, *stray])
        return (await self._store.write(changes))[at]

    async def _deletions(self, names: Iterable[str]) -> list[Change]:
        items = [await self._store.get(REPORT_PART, name) for name in names]
        return [Delete(REPORT_PART, item.name, item.version) for item in items if item is not None]

    async def _parts_from(self, uid: str, first: int) -> list[str]:
        """Names of the further parts from `first` on that follow one another in the store, where
        no record says how many there are."""
        names: list[str] = []
        while await self._store.get(REPORT_PART, name := _name(uid, first + len(names))):
            names.append(name)
        return names

    async def _pods_of(self, uid: str, known: ReportRecord, part: int) -> Pods | None:
        """None: the part is not the one that the record names."""
        if part == 0:
            return known.pods
        item = await self._store.get(REPORT_PART, _name(uid, part))
        found = self._decoded(uid, item, ReportPart) if item is not None else None
        if found is None:
            self._whole.pop(uid, None)  # the next report looks at each part
        return found.pods if found and found.written == known.parts[part].written else None

    # What is known

    async def sequence(self, uid: str) -> int:
        """-1: there is no report of it, or one in which a controller of before has left something
        out: the node tells all again."""
        record = self._record(uid, await self._store.get(REPORT, uid))
        return record.sequence if record is not None and record.knows_kept else -1

    async def has(self, uid: str) -> bool:
        """There is a report of it, of whatever controller."""
        return await self._store.get(REPORT, uid) is not None

    async def get(self, uid: str) -> ReportedByNode | None:
        record = self._record(uid, await self._store.get(REPORT, uid))
        if record is None:
            return None
        parts = [await self._pods_of(uid, record, part) or () for part in range(len(record.parts))]
        pods = sorted((pod for held in parts for pod in held), key=msgspec.structs.astuple)
        return ReportedByNode(record.sequence, record.at_s, tuple(pods))

    async def page(self, uid: str, number: int) -> PodPage:
        """One part of what the node has reported, from 0. Raises: RefusedError."""
        record = self._record(uid, await self._store.get(REPORT, uid))
        count = len(record.parts) if record is not None else 0
        if record is None or number >= count:
            raise RefusedError(Code.NOT_FOUND, f"page {number} of a report of pods: it has {count}")
        return PodPage(record.sequence, count, await self._pods_of(uid, record, number) or ())

    async def pages(self, uid: str) -> int:
        record = self._record(uid, await self._store.get(REPORT, uid))
        return len(record.parts) if record is not None else 0

    async def times(self, uids: Iterable[str]) -> dict[str, float]:
        """When each of these nodes reported last, by uid; without those that never have.

        What is not known yet is read one after the other, with a turn for others after each.
        """
        wanted = list(uids)
        async with self._reading:
            for uid in wanted:
                if uid not in self._times:
                    item = await self._store.get(REPORT, uid)
                    time = self._decoded(uid, item, _Time) if item is not None else None
                    self._times.setdefault(uid, time.at_s if time is not None else None)
                    await asyncio.sleep(0)
        found = ((uid, self._times.get(uid)) for uid in wanted)
        return {uid: at_s for uid, at_s in found if at_s is not None}

    def _record(self, uid: str, item: Item | None) -> ReportRecord | None:
        """None: there is none, or none that can be decoded."""
        record = self._decoded(uid, item, ReportRecord) if item is not None else None
        if record is not None and not record.parts:  # of before there were parts
            record = replace_fields(record, parts=(PartMark(len(record.pods), 0),))
        return record

    def _decoded(self, uid: str, item: Item, kind: type[_T]) -> _T | None:
        """None: it cannot be decoded, which is told once of each node."""
        try:
            return decode_json(item.value, kind)
        except msgspec.MsgspecError as error:
            if uid not in self._damaged:
                self._damaged.add(uid)
                _log.warning(
                    "a node's report of its pods cannot be read: it is asked for all of them again",
                    uid=uid,
                    item=f"{item.kind} {item.name}",
                    error=str(error),
                )
            return None

    # What else becomes of it

    async def hand_over(self, former: str, uid: str) -> None:
        """A machine that replaces another is as if it had reported the same, once."""
        item = await self._store.get(REPORT, former)
        record = self._record(former, item)
        if item is None:
            return
        if record is None:
            await self.drop(former)
            return
        puts: list[Change] = []
        further = range(1, len(record.parts))
        for part in further:
            found = await self._store.get(REPORT_PART, _name(former, part))
            there = await self._store.get(REPORT_PART, _name(uid, part))
            if found is not None:
                version = there.version if there is not None else None
                puts.append(StorePut(REPORT_PART, _name(uid, part), found.value, version))
        puts.append(StorePut(REPORT, uid, msgspec.json.encode(replace_fields(record, sequence=-1))))
        gone = await self._deletions(_name(former, part) for part in further)
        try:
            await self._store.write([*puts, Delete(REPORT, former, item.version), *gone])
        except ConflictError:
            return  # it has reported by itself
        self._times.pop(former, None)
        self._times[uid] = record.at_s
        self._tell(former)
        self._tell(uid)

    async def drop(self, uid: str) -> None:
        item = await self._store.get(REPORT, uid)
        record = self._record(uid, item)
        self._whole.pop(uid, None)
        self._times.pop(uid, None)
        self._damaged.discard(uid)
        self._tell(uid)
        if item is None:
            return
        if record is not None:
            names = [_name(uid, part) for part in range(1, len(record.parts))]
        else:
            names = await self._parts_from(uid, 1)
        gone = await self._deletions(names)
        try:
            await self._store.write([Delete(REPORT, uid, item.version), *gone])
        except ConflictError:
            return  # of a node that was removed; nobody reads it


class _Time(msgspec.Struct):
    at_s: float


def _name(uid: str, part: int) -> str:
    return f"{uid}.{part}"


def _number() -> int:
    return 1 + secrets.randbelow(1 << 48)
