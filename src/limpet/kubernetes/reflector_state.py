"""List and watch of one kind of objects: what to do next, and what is to be told. Pure.

First all is listed, page by page, then it is watched from the list's version, again and again from
the newest version that was told. Where the server has that no more (410), or not yet (504: it was
put back from a copy), all is listed anew. An API server says nothing to who watches from a version
that is not there yet, and drops what happens until then; so it is asked for that version after each
failure (`Check`).

An exact mirror is told of what a new list has no more. Who takes only what is told (`mirror`
False) is never told that something is gone by its absence, and no index is kept for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic

from limpet.base.bounds.room import Room
from limpet.base.bounds.tenants import LIST_PAGES, OBJECTS, OBJECTS_OF_ONE
from limpet.base.errors import LimpetError
from limpet.base.text.shared import share
from limpet.kubernetes.kinds.objects import AnyViewed
from limpet.kubernetes.watch_event import (
    ObjectDeleted,
    ObjectPut,
    Unreadable,
    WatchBookmark,
    WatchEnded,
    WatchEvent,
)

WATCH_S = 300.0
"""Length of one watch; half as much again at random, so that those of many nodes do not end
together."""
ALIVE_S = 5.0
"""A watch that lived so long is no failure when it ends."""
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
_SMALLEST_PAGE, _LARGEST_PAGE = 1, 800

ObjectKey = tuple[str, str]
"""Namespace and name."""


class Failure(Enum):
    """Why a request or a watch ended."""

    GONE = "gone"
    """The version or the part of the list to go on from is too old (410)."""
    FUTURE = "future"
    """The version is not there yet (504)."""
    TOO_LARGE = "too large"
    """A page that is larger than an answer may be."""
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class ListPage:
    """Ask for a part of the list."""

    go_on: str
    limit: int


@dataclass(frozen=True, slots=True)
class Check:
    """Ask whether the server has this version, or a later one."""

    resource_version: str


@dataclass(frozen=True, slots=True)
class Watch:
    """Watch from there, for so long."""

    resource_version: str
    for_s: float


@dataclass(frozen=True, slots=True)
class Wait:
    until_s: float


Step = ListPage | Check | Watch | Wait


@dataclass(frozen=True, slots=True)
class ObjectChanges(Generic[AnyViewed]):
    """What is told; `gone` before `put`."""

    put: list[AnyViewed] = field(default_factory=list)
    gone: list[ObjectKey] = field(default_factory=list)
    """Deleted, as the server says; for a mirror also what a whole list has no more."""
    unreadable: list[Unreadable] = field(default_factory=list)
    crowded: dict[ObjectKey, str] = field(default_factory=dict)
    """Those that are there and are not told, and why, in words: there are too many."""
    listed: bool = False
    """With these, all that was there at one moment has been told."""

    def __bool__(self) -> bool:
        told = self.put or self.gone or self.unreadable or self.crowded
        return bool(told or self.listed)

    def then(self, later: ObjectChanges[AnyViewed]) -> ObjectChanges[AnyViewed]:
        """Both as one: what is put, unreadable or crowded first and gone later is gone, and what
        is put later is neither unreadable nor crowded."""
        gone = set(later.gone)
        put, unreadable, crowded = self.put, self.unreadable, self.crowded
        if gone:
            put = [item for item in put if key_of(item) not in gone]
        if unreadable or crowded:
            over = gone.union(map(key_of, later.put))
            unreadable = [each for each in unreadable if (each.namespace, each.name) not in over]
            crowded = {key: why for key, why in crowded.items() if key not in over}
        return ObjectChanges(
            put + later.put,
            self.gone + later.gone,
            unreadable + later.unreadable,
            {**crowded, **later.crowded},
            self.listed or later.listed,
        )


@dataclass(slots=True)
class _Listing:
    """A list that is being read."""

    go_on: str = ""
    pages: int = 0
    seen: set[ObjectKey] = field(default_factory=set)
    is_cut: bool = False
    """The rest of an answer was not taken yet."""


class _Known(dict[ObjectKey, str]):
    """Uids of what was told and is there. How many a namespace may have of all is bounded, so that
    one which has very many leaves room for the others'."""

    def __init__(self) -> None:
        self._room = Room(OBJECTS, OBJECTS_OF_ONE)
        self._plain = Room(OBJECTS)
        """For objects that are in no namespace."""

    def refusal(self, key: ObjectKey) -> str:
        """Why one more cannot be known, in words; empty: it can, or is."""
        if key in self:
            return ""
        return self._room.refusal(key[0], 1) if key[0] else self._plain.refusal("", 1)

    def put(self, key: ObjectKey, uid: str) -> None:
        if key not in self:
            self._room_of(key).change(key[0], 1)
        self[key] = uid

    def forget(self, key: ObjectKey) -> None:
        if self.pop(key, None) is not None:
            self._room_of(key).change(key[0], -1)

    def _room_of(self, key: ObjectKey) -> Room:
        return self._room if key[0] else self._plain


class ReflectorState(Generic[AnyViewed]):
    """Times are of one monotonic clock; `random` is from 0 to below 1."""

    def __init__(self, *, mirror: bool, page: int = 100) -> None:
        self._known = _Known() if mirror else None
        self._page = page
        self._listing: _Listing | None = _Listing()
        self._version = ""
        self._checked = True
        """The server has had the version since it failed last."""
        self._failures = 0
        self._not_before_s = 0.0
        self.listed = False
        """All has been told once."""

    def next_step(self, now_s: float, random: float) -> Step:
        if now_s < self._not_before_s:
            return Wait(self._not_before_s)
        if self._listing is not None:
            if self._listing.is_cut:  # what was taken of it may be gone when it is asked for again
                self._listing = _Listing()
            return ListPage(self._listing.go_on, self._page)
        if not self._checked:
            return Check(self._version)
        return Watch(self._version, WATCH_S * (1 + random / 2))

    # What came

    def take_page(
        self,
        items: Iterable[AnyViewed],
        unreadable: Iterable[Unreadable],
        *,
        resource_version: str,
        go_on: str,
        more: bool = False,
    ) -> ObjectChanges[AnyViewed]:
        """A part of the list, as it was asked for; the last one has no `go_on`. `more`: the rest
        of the same answer is taken next. Raises: LimpetError for one list without an end."""
        listing = self._listing
        assert listing is not None, "a page comes while all is listed"
        listing.pages += 1
        if listing.pages > LIST_PAGES.most:
            self._listing = _Listing()
            raise LimpetError(f"a list has more than {LIST_PAGES.most:,} {LIST_PAGES.unit}")
        changes: ObjectChanges[AnyViewed] = ObjectChanges(listed=not (go_on or more))
        listing.is_cut = more
        for item in items:
            if self._put(item, changes) and self._known is not None:
                listing.seen.add(key_of(item))
        # What cannot be read is there nevertheless.
        for each in unreadable:
            self._put_unreadable(each, changes)
        if more:
            return changes
        if go_on:
            listing.go_on = go_on
            return changes
        if self._known is not None:
            for key in self._known.keys() - listing.seen:
                self._known.forget(key)
                changes.gone.append(key)
            changes.gone.sort()
        self._listing, self._version, self.listed = None, resource_version, True
        self._checked = True
        return changes

    def take_check(self) -> None:
        """The server has the version."""
        self._checked = True

    def take_event(self, event: WatchEvent[AnyViewed]) -> ObjectChanges[AnyViewed]:
        """An event of the watch, which shows that it lives; not for `WatchEnded`, which ends it."""
        assert not isinstance(event, WatchEnded), "what ends a watch is a failure"
        self._failures = 0
        changes: ObjectChanges[AnyViewed] = ObjectChanges()
        match event:
            case ObjectPut(item):
                self._put(item, changes)
                version = item.metadata.resource_version
            case ObjectDeleted(item):
                version = item.metadata.resource_version
                self._take_away(key_of(item), changes)
            case WatchBookmark(version):
                pass
            case Unreadable():
                version = event.resource_version
                self._put_unreadable(event, changes)
                if event.is_gone:
                    self._take_away((event.namespace, event.name), changes)
        self._version = version or self._version
        return changes

    def _put(self, item: AnyViewed, changes: ObjectChanges[AnyViewed]) -> bool:
        """False: there is no room to know one more."""
        if self._known is not None:
            key, uid = key_of(item), item.metadata.uid
            if not self._has_room(key, changes):
                return False
            if self._known.get(key, uid) != uid:
                changes.gone.append(key)  # another object has its name
            self._known.put(key, uid)
        changes.put.append(item)
        return True

    def _take_away(self, key: ObjectKey, changes: ObjectChanges[AnyViewed]) -> None:
        """Told whether it is known or had no room to be: who hears of it may have it on the disk,
        from when there was room."""
        if self._known is not None:
            self._known.forget(key)
        changes.gone.append(key)

    def _has_room(self, key: ObjectKey, changes: ObjectChanges[AnyViewed]) -> bool:
        refusal = self._known.refusal(key) if self._known is not None else ""
        if refusal:
            changes.crowded[key] = refusal
        return not refusal

    def _put_unreadable(self, unreadable: Unreadable, changes: ObjectChanges[AnyViewed]) -> None:
        """It is told as gone, too, once it is: who hears of it may have done something for it."""
        key = unreadable.namespace, unreadable.name
        if self._known is not None and not unreadable.is_gone:
            if not self._has_room(key, changes):
                return
            self._known.put(key, self._known.get(key, ""))
            if self._listing is not None:
                self._listing.seen.add(key)
        changes.unreadable.append(unreadable)

    # How it ended

    def watch_ended(
        self, now_s: float, random: float, *, lived_s: float, silent: bool = False
    ) -> None:
        """As servers end it, or since it was silent: it goes on from the newest version."""
        self._checked = lived_s >= ALIVE_S and not silent
        if lived_s >= ALIVE_S:
            self._failures = 0
        else:
            self._pause(now_s, random, None)

    def fail(
        self, failure: Failure, now_s: float, random: float, *, retry_after_s: float | None = None
    ) -> None:
        """`retry_after_s`: as the server asks for."""
        self._checked = False
        if failure is Failure.TOO_LARGE and self._page > _SMALLEST_PAGE:
            self._page = max(self._page // 4, _SMALLEST_PAGE)
            return
        if failure in (Failure.GONE, Failure.FUTURE):
            if self._listing is not None and self._listing.go_on:
                # Who reads too slowly for the server asks for more at a time.
                self._page = min(self._page * 2, _LARGEST_PAGE)
            self._listing = _Listing()
        self._pause(now_s, random, retry_after_s)

    def begin_again(self, untaken: ObjectChanges[AnyViewed]) -> None:
        """All is listed and told once more: these changes were not taken."""
        self._listing = _Listing()
        if self._known is not None:
            for key in untaken.gone:
                self._known.put(key, self._known.get(key, ""))

    def list_again(self) -> None:
        """All is told once more, whatever was told."""
        self._listing = _Listing()

    def moved(self) -> None:
        """At once: there may be a way to the server now."""
        self._not_before_s = 0.0
        self._failures = 0
        self._checked = False

    def _pause(self, now_s: float, random: float, retry_after_s: float | None) -> None:
        """A list alone ends no row of failures: what a cache lists may be too old to watch."""
        longest_s = min(_LONGEST_PAUSE_S, _SHORTEST_PAUSE_S * 2 ** min(self._failures, 10))
        self._failures += 1
        pause_s = longest_s * (1 + random) / 2
        if retry_after_s is not None:
            pause_s = max(pause_s, min(retry_after_s, _LONGEST_PAUSE_S) * (1 + random / 4))
        self._not_before_s = now_s + pause_s


def key_of(item: AnyViewed) -> ObjectKey:
    """By words that others may keep, too."""
    return share(item.metadata.namespace), share(item.metadata.name)
